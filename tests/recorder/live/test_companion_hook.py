"""How the companion comes into a Python, and what keeps it out."""

from __future__ import annotations

import pytest

from hangscope.recorder.live.companion_hook import isolating_flag


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["python", "-I", "train.py"], "-I"),
        (["python", "-uE", "train.py"], "-E"),
        (["python", "-X", "dev", "-S", "train.py"], "-S"),
        (["python", "-W", "ignore", "train.py", "-I"], None),
        (["python", "-m", "train", "-E"], None),
        (["python", "-c", "pass", "-S"], None),
        (["python"], None),
    ],
)
def test_pythons_own_flags_are_told_from_the_scripts(words: list[str], flag: str | None) -> None:
    """Only what stands before the script keeps the companion out."""
    assert isolating_flag(words) == flag
