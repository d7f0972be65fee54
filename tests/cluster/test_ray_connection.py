"""What is said where no cluster can be reached: in one line, with what to do."""

from __future__ import annotations

import sys

import pytest

from hangscope.cluster import ray_connection
from hangscope.errors import SettingsError

MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.9.3
    Python: 3.9.18
This process on node 10.0.0.7 was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""


def test_another_version_names_both_and_the_cure() -> None:
    """Ray connects only the same versions: which ones they are, and where to run it instead."""
    error = ray_connection._refused("10.0.0.1:6379", RuntimeError(MISMATCH))
    for word in ("Ray 2.9.3", "Python 3.9.18", "Ray 2.60.0", "Python 3.11.7"):
        assert word in str(error)
    assert error.hint and "cluster's own Python" in error.hint


def test_where_nothing_listens_nobody_waits_for_ray() -> None:
    """Ray's client would try for long and then end the process: the address is tried first."""
    with pytest.raises(SettingsError, match=r"no Ray cluster answers at ray://127\.0\.0\.1:1:"):
        ray_connection._check_listens("ray://127.0.0.1:1")
    ray_connection._check_listens("local")  # no address to try


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Ray is not installed, the extra to install is said."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError) as raised:
        ray_connection.installed_ray()
    assert raised.value.hint and "hangscope[ray]" in raised.value.hint
