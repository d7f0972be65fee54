"""What holds for all tests: which of them may not run beside each other."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Two Ray clusters that start at the same time do not come up: their tests stay in one process, one by one."""
    if item.get_closest_marker("ray") and not item.get_closest_marker("xdist_group"):
        item.add_marker(pytest.mark.xdist_group("ray"))
