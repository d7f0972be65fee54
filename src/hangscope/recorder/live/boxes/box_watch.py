"""The black boxes of this node's processes, looked at now and then, and what in them does not move.

A process with no operation pending is idle, however long: an engine without requests, a communicator that is used once
an hour. What is pending and has not moved for the threshold is a stall, whoever called NCCL.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from hangscope.processes import linux_process
from hangscope.processes.target_rights import Rights
from hangscope.recorder.live.boxes import behind, live_box
from hangscope.recorder.live.boxes.behind import Member
from hangscope.recorder.live.boxes.live_box import LiveBox, LiveComm
from hangscope.recorder.live.unfinished_ops import BOX, Unfinished
from hangscope.sources.black_box.schema import MAX_BYTES

SUFFIX = ".ncclbb"
LEAST_S = 0.9
BETWEEN_S = 5.0
"""Looks are a sixth of the threshold apart, or this where that is less."""
TIMES_FIRST = 4.0
"""Until a communicator's first operation is over, ranks still start and NCCL still connects: so many thresholds."""
MOST_BOXES = 1024


class BoxWatch:
    """`folder` is where the processes of the run keep their boxes."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._boxes: dict[int, LiveBox] = {}
        self._first_seen: dict[int, float] = {}
        self._next = 0.0

    def look(self, now: float, threshold_s: float) -> bool:
        """Read them all, where it is time to; whether it was."""
        if self._folder is None or now < self._next:
            return False
        self._next = now + max(LEAST_S, min(BETWEEN_S, threshold_s / 6))
        found: dict[int, LiveBox] = {}
        for path in self._files(self._folder):
            with contextlib.suppress(OSError):
                box = live_box.read(Rights().read(path, MAX_BYTES))
                if box is not None and path.name.endswith(f".{box.pid}{SUFFIX}"):
                    found[box.pid] = box
        self._boxes = {pid: box for pid, box in found.items() if _lives(pid)}
        for pid in self._boxes:
            self._first_seen.setdefault(pid, now)
        return True

    def _files(self, folder: Path) -> list[Path]:
        with contextlib.suppress(OSError):
            return Rights().find(f"{folder}/*{SUFFIX}", MOST_BOXES)
        return []

    @property
    def boxes(self) -> Mapping[int, LiveBox]:
        """By process, those that live."""
        return self._boxes

    def keep(self, pids: Collection[int]) -> None:
        """Forget all other processes until the next look: they belong to another job."""
        self._boxes = {pid: box for pid, box in self._boxes.items() if pid in pids}

    def seen_for_s(self, pid: int, now: float) -> float:
        return now - self._first_seen.get(pid, now)

    def unfinished(self, threshold_s: float, elsewhere: Iterable[Member] = ()) -> dict[int, list[Unfinished]]:
        """By process, what is pending and has not moved. `created_ns` says when anything of it moved last.

        `elsewhere` are the members of communicators on other nodes, with their times on our clock.
        """
        now_ns = time.monotonic_ns()
        found: dict[int, list[Unfinished]] = {pid: [] for pid in self._boxes}
        for pid, box in self._boxes.items():
            for comm in box.comms:
                pending = comm.pending
                if pending is not None and _counts(now_ns - pending.since_ns, threshold_s, first=pending.first):
                    named = pending.func or "transfer"
                    found[pid].append(_unfinished(comm, pending.serial, named, pending.seq, pending.since_ns, now_ns))
        for wait in behind.waiting_members([*self._members(), *elsewhere]):
            mine = found.get(int(wait.member.key)) if wait.member.key.isdigit() else None
            late = _counts(now_ns - wait.since_ns, threshold_s, first=wait.seq == 0)
            if mine is not None and late and not any(each.pg == _hex(wait.member.comm) for each in mine):
                mine.append(_unfinished(wait.member.comm, wait.seq, wait.func, wait.seq, wait.since_ns, now_ns))
        return found

    def _members(self) -> list[Member]:
        return [Member(str(pid), comm) for pid, box in self._boxes.items() for comm in box.comms]


def _counts(still_ns: int, threshold_s: float, *, first: bool) -> bool:
    return not first or still_ns / 1e9 > TIMES_FIRST * threshold_s


def _hex(comm: LiveComm) -> str:
    return f"{comm.hash:#x}"


def _unfinished(comm: LiveComm, record: int, func: str, seq: int, since_ns: int, now_ns: int) -> Unfinished:
    """As the agent keeps operations of a recorder, whose times are of the wall clock."""
    return Unfinished(
        source=BOX,
        record=record,
        pg=_hex(comm),
        group=comm.name or f"NCCL communicator {_hex(comm)}",
        name=func,
        seq=seq,
        created_ns=time.time_ns() - max(0, now_ns - since_ns),
    )


def _lives(pid: int) -> bool:
    stat = linux_process.stat(pid)
    return stat is not None and stat.state not in "ZX"
