"""How the companion comes into every Python of the job: its directory in front of PYTHONPATH; and what keeps it out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hangscope.processes import linux_process
from hangscope.sources.flight_recorder.known_layouts import LAYOUTS
from hangscope.sources.flight_recorder.layout import release_of
from hangscope.sources.known_pythons import DEBUG_OFFSETS_AT, OFFSETS

COMPANION = Path(__file__).with_name("companion")
_TAKES_WORD = "WX"
"""Of Python's own options those that are followed by a word; after `-c` and `-m` the options are the script's."""


RECORDER_IS_ON = (2, 11)
FROM_OUTSIDE = "HANGSCOPE_FROM_OUTSIDE"


def with_companion(environ: Mapping[str, str], *, sockets: Path, outside: bool = False) -> dict[str, str]:
    """The environment that makes every Python of the job register itself in `sockets`. With `outside`, nothing has to
    answer in a rank that we, its ancestor, can read from outside: it says who reads and what is known."""
    path = environ.get("PYTHONPATH")
    kept = {name: value for name, value in environ.items() if name != FROM_OUTSIDE}  # of a run around this one
    return {
        **kept,
        **_crash_stacks(environ),
        "PYTHONPATH": f"{COMPANION}{os.pathsep}{path}" if path else str(COMPANION),
        "HANGSCOPE_SOCKETS": str(sockets),
        **({FROM_OUTSIDE: _reader()} if outside else {}),
    }


def _reader() -> str:
    namespace = os.readlink("/proc/self/ns/user")
    pythons = {*OFFSETS, *DEBUG_OFFSETS_AT}
    known = (*known_torches(), (3, min(pythons)), (3, max(pythons)))
    return " ".join((str(os.getpid()), str(os.geteuid()), namespace, *(".".join(map(str, each)) for each in known)))


def known_torches() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first release whose recorder is on by itself, and the last whose layout is known."""
    last = max(release_of(proof.torch) for layout in LAYOUTS for proof in layout.proofs)
    return RECORDER_IS_ON, last


def _crash_stacks(environ: Mapping[str, str]) -> dict[str, str]:
    """A Python that a fatal signal ends shows where it was, unless the user has decided about that.

    HANGSCOPE_CRASH_STACKS tells the companion that this is ours: it sends the stacks of a rank to a file of its own, so
    that the job's output stays as it is.
    """
    if "PYTHONFAULTHANDLER" in environ:
        return {}
    return {"PYTHONFAULTHANDLER": "1", "HANGSCOPE_CRASH_STACKS": "1"}


def is_hooked(environ: Mapping[str, str]) -> bool:
    """Whether a Python with this environment would find the companion."""
    return str(COMPANION) in environ.get("PYTHONPATH", "").split(os.pathsep)


def cannot_come(pid: int) -> bool:
    """Whether it is plain that no companion will come up in this process, however long one waits."""
    if isolating_flag(linux_process.command_line(pid)) is not None:
        return True
    environ = linux_process.environment(pid)
    return bool(environ) and not is_hooked(environ)


def isolating_flag(words: Sequence[str]) -> str | None:
    """`-I`, `-E` or `-S`, where Python itself was given it: no sitecustomize is found then."""
    position = 1
    while position < len(words) and words[position].startswith("-") and words[position] not in ("-", "--"):
        word = words[position]
        position += 1
        if word.startswith("--"):
            continue
        for index, letter in enumerate(word[1:], 1):
            if letter in "IES":
                return f"-{letter}"
            if letter in "cm":
                return None
            if letter in _TAKES_WORD:
                position += index == len(word) - 1
                break
    return None
