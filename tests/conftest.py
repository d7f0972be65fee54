"""What holds for all tests: which of them may not run beside each other, and that mistakes of ours fail them."""

from __future__ import annotations

import os

import pytest

from hangscope.errors import RAISE

os.environ.setdefault(RAISE, "1")  # a mistake of ours fails the test, in this process and in all that it starts


def pytest_itemcollected(item: pytest.Item) -> None:
    """Two Ray clusters that start at the same time do not come up: their tests stay in one process, one by one."""
    if item.get_closest_marker("ray") and not item.get_closest_marker("xdist_group"):
        item.add_marker(pytest.mark.xdist_group("ray"))
