"""One black box of a running process, with the standard library alone: native/blackbox_layout.h is the other side.

Only what the agent needs in every turn is read: each communicator's last calls, and the transfers under way. Times are
CLOCK_MONOTONIC of the node, as the process wrote them. A slot that is being written counts as one that moves.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from hangscope.sources.black_box import schema as layout

_COMM = struct.Struct("<IIQQiiiIQQQQ56s")
_LAST = struct.Struct("<16sQQQ")
_FUNCTIONS = 16
_PROXY = struct.Struct("<IIQQQQQiiihhiiiiIiq16sQQ256x")
_LIVE = 1
_DONE = 2
_PID_AT = 24
_START_AT = 56
MOST_SLOTS = 1 << 20
MOST_MEMBERS = 1 << 22
_COMMS_TABLE = 0
_PROXIES_TABLE = 3


@dataclass(frozen=True, slots=True)
class LastCall:
    """The last call of one function on a communicator: its number, and when it was launched."""

    seq: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Pending:
    """The oldest operation of a communicator whose transfers are under way. `func` is empty for a replayed graph's."""

    serial: int
    func: str
    seq: int
    since_ns: int
    """When anything of the communicator last moved."""
    first: bool
    """Nothing of the communicator has come to its end before: it may still connect, or wait for ranks that start."""


@dataclass(frozen=True, slots=True)
class LiveComm:
    """`rank` and `size` are the communicator's own."""

    hash: int
    rank: int
    size: int
    name: str
    created_ns: int
    calls: int
    last: Mapping[str, LastCall]
    pending: Pending | None = None
    finished: int = 0
    """The newest of its transfers that is over."""

    @property
    def launched_ns(self) -> int:
        """When anything was last launched on it."""
        return max((call.at_ns for call in self.last.values()), default=self.created_ns)


@dataclass(frozen=True, slots=True)
class LiveBox:
    pid: int
    rank: int | None
    """RANK, as the process was started with it."""
    world_size: int | None
    comms: tuple[LiveComm, ...]

    @property
    def largest(self) -> LiveComm | None:
        """The communicator with the most members, the oldest of those."""
        return min(self.comms, key=lambda comm: (-comm.size, comm.created_ns), default=None)

    def signature(self) -> tuple[object, ...]:
        """Changes whenever the process launches something or a transfer of its gets on."""
        return tuple(
            (comm.hash, comm.calls, comm.finished, comm.pending.since_ns if comm.pending else 0) for comm in self.comms
        )


@dataclass(slots=True)
class _Transfers:
    """Those of one communicator, as far as they were read."""

    moved_ns: int = 0
    finished: int = 0
    oldest: tuple[int, str, int, int] | None = None
    """(serial, function, number, when it was started)"""
    done: bool = False


def read(data: bytes) -> LiveBox | None:
    """The box; None where the file is none, or of another layout."""
    if len(data) < layout.LEAST_BYTES or not data.startswith(layout.MAGIC):
        return None
    if struct.unpack_from("<I", data, layout.VERSION_AT)[0] != layout.VERSION:
        return None
    pid, rank, _, world_size = struct.unpack_from("<Iiii", data, _PID_AT)
    transfers = _transfers(data, pid)
    comms = [_comm(row, lasts, transfers) for row, lasts in _comm_rows(data)]
    return LiveBox(
        pid,
        rank if 0 <= rank < MOST_MEMBERS else None,
        world_size if 0 < world_size <= MOST_MEMBERS else None,
        tuple(sorted((comm for comm in comms if comm is not None), key=lambda comm: comm.created_ns)),
    )


def _table(data: bytes, number: int, slot_bytes: int) -> memoryview:
    """The bytes of a table as far as they are there, whole slots only."""
    offset, size, slots, _ = struct.unpack_from("<4I", data, layout.TABLES_AT + 16 * number)
    if size != slot_bytes or offset >= len(data):
        return memoryview(b"")
    slots = min(slots, MOST_SLOTS, (len(data) - offset) // size)
    return memoryview(data)[offset : offset + slots * size]


def _comm_rows(data: bytes) -> list[tuple[tuple[object, ...], memoryview]]:
    table = _table(data, _COMMS_TABLE, layout.COMM_BYTES)
    slots = [table[at : at + layout.COMM_BYTES] for at in range(0, len(table), layout.COMM_BYTES)]
    return [(_COMM.unpack_from(slot), slot[_COMM.size :]) for slot in slots]


def _comm(row: tuple[object, ...], lasts: memoryview, transfers: Mapping[int, _Transfers]) -> LiveComm | None:
    lock, state, serial, hash_, rank, size, _, _, created_ns, _, collectives, p2p, name = row
    if lock == 0 or state != _LIVE:
        return None
    assert isinstance(serial, int) and isinstance(hash_, int) and isinstance(created_ns, int)
    assert isinstance(rank, int) and isinstance(size, int) and isinstance(name, bytes)
    assert isinstance(collectives, int) and isinstance(p2p, int)
    last = {
        _text(func): LastCall(seq, at_ns)
        for func, seq, _, at_ns in _LAST.iter_unpack(lasts[: _FUNCTIONS * _LAST.size])
        if func[0]
    }
    mine = transfers.get(serial, _Transfers())
    return LiveComm(hash_, rank, size, _text(name), created_ns, collectives + p2p, last, _pending(mine), mine.finished)


def _pending(mine: _Transfers) -> Pending | None:
    if mine.oldest is None:
        return None
    serial, func, seq, started_ns = mine.oldest
    return Pending(serial, func, seq, max(mine.moved_ns, started_ns), first=not mine.done)


def _transfers(data: bytes, pid: int) -> dict[int, _Transfers]:
    """Of each communicator of this process. What it moves for a neighbour (PXN) stands in the neighbour's favour."""
    found: dict[int, _Transfers] = {}
    for row in _PROXY.iter_unpack(_table(data, _PROXIES_TABLE, _PROXY.size)):
        _, state, serial, _, _, comm, seq, owner, *_, steps, _, begun, done, _, _, _, func, started_ns, changed_ns = row
        if state not in (_LIVE, _DONE) or owner != pid:
            continue
        mine = found.setdefault(comm, _Transfers())
        if state == _DONE:
            mine.done = True
            mine.finished = max(mine.finished, serial)
        elif done < steps and (mine.oldest is None or serial < mine.oldest[0]):
            mine.oldest = (serial, _text(func), seq, started_ns)
        # A transfer that only queues behind others says nothing of whether those move.
        if state == _DONE or begun:
            mine.moved_ns = max(mine.moved_ns, changed_ns)
    return found


def _text(raw: bytes) -> str:
    return "".join(c for c in raw.partition(b"\0")[0].decode("ascii", "replace") if c.isprintable())
