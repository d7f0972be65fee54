"""/proc as text: bounded, and empty where a process is gone or may not be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_MOST = 4 << 20
_TICKS = os.sysconf("SC_CLK_TCK")


def text(path: str, most: int = _MOST) -> str:
    try:
        with open(f"/proc/{path}", "rb") as stream:
            return stream.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


def link(path: str) -> str:
    try:
        return os.readlink(f"/proc/{path}")
    except OSError:
        return ""


def names(path: str) -> list[str] | None:
    """The names in a directory of /proc; None where they may not be seen."""
    try:
        return os.listdir(f"/proc/{path}")
    except OSError:
        return None


def numbers(path: str) -> list[int] | None:
    found = names(path)
    return None if found is None else [int(name) for name in found if name.isdecimal() and name.isascii()]


def pids() -> list[int]:
    return sorted(numbers("") or ())


@dataclass(frozen=True, slots=True)
class ProcStat:
    """The fields of a process's or thread's stat that are used here."""

    name: str
    state: str
    parent: int
    session: int
    cpu_s: float
    threads: int
    started: int


def stat(path: str) -> ProcStat | None:
    """Of ``PID`` or ``PID/task/TID``."""
    head, _, tail = text(f"{path}/stat", 4096).rpartition(")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return ProcStat(
        name=head.partition("(")[2],
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        threads=int(fields[17]),
        started=int(fields[19]),
    )


def switches(pid: int, thread: int) -> int:
    """How often the thread was given a core so far."""
    total = 0
    for line in text(f"{pid}/task/{thread}/status", 8192).splitlines():
        if line.startswith(("voluntary_ctxt", "nonvoluntary_ctxt")):
            total += int(line.split()[1])
    return total


def memory(pid: int, address: int, size: int) -> bytes:
    """Bytes of the process's memory; empty where they cannot be read."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as stream:
            stream.seek(address)
            return stream.read(size) or b""
    except (OSError, OverflowError, ValueError):
        return b""


def mapping_at(pid: int, address: int) -> tuple[bool, str, str] | None:
    """(whether it is shared, "device:inode", path) of the mapping that an address lies in."""
    for line in text(f"{pid}/maps").splitlines():
        span, _, rest = line.partition(" ")
        start, _, end = span.partition("-")
        if int(start, 16) <= address < int(end, 16):
            fields = rest.split(None, 4)
            path = fields[4] if len(fields) > 4 else ""
            return fields[0].endswith("s"), f"{fields[2]}:{fields[3]}", path
    return None


def maps_file(pid: int, key: str) -> bool:
    """Whether the process has that file ("device:inode") mapped and shared."""
    device, _, inode = key.rpartition(":")
    for line in text(f"{pid}/maps").splitlines():
        fields = line.split(None, 5)
        if len(fields) > 4 and fields[4] == inode and fields[3] == device and fields[1].endswith("s"):
            return True
    return False


def children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in numbers(f"{pid}/task") or ():
        found += (int(word) for word in text(f"{pid}/task/{thread}/children", 1 << 16).split())
    return sorted(set(found))


def descendants(pid: int, most: int) -> Iterator[int]:
    """All processes below, parents first."""
    waiting = [pid]
    seen = {pid}
    while waiting and len(seen) <= most:
        for child in children(waiting.pop(0)):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
                yield child


def command(pid: int) -> str:
    """What a process runs, as people call it: its program, and the script or module that this runs.

    Never more of the command line: people put tokens there.
    """
    words = [word for word in text(f"{pid}/cmdline", 4096).split("\0") if word]
    if not words:
        return ""
    shown = [words[0].rpartition("/")[2]]
    for before, word in pairwise(words):
        if word in ("-c", "-e"):
            break
        if before == "-m" or not word.startswith("-"):
            shown += ["-m", word] if before == "-m" else [word]
            break
    said = " ".join(shown)
    return said if len(said) <= 120 else f"{said[:119]}…"
