"""The recorder's rooms: each imports those below it alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RECORDER = Path(__file__).parents[2] / "src" / "hangscope" / "recorder"
ROOMS = ("setup", "rundir", "live", "probe", "capture", "ray", "doctor", "alerts", "agent", "launch")
"""From the lowest up."""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_those_below_it_alone(room: str) -> None:
    """What looks at ranks saves nothing, and no room knows who launches."""
    below = ROOMS[: ROOMS.index(room) + 1]
    paths = sorted((RECORDER / room).rglob("*.py"))
    assert paths
    for path in paths:
        for match in re.finditer(r"from hangscope\.recorder(?:\.(\w+))?\S* import (\w+)", path.read_text()):
            assert (match[1] or match[2]) in below, f"{path.relative_to(RECORDER)}: {match[0]}"


def test_every_folder_of_the_recorder_has_a_place_in_the_order() -> None:
    """A new room says where it belongs."""
    assert {path.parent.name for path in RECORDER.glob("*/__init__.py")} == set(ROOMS)
