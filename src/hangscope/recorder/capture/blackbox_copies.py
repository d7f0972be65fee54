"""Black boxes: what NCCL's transfers on this node wait for, of every process that wrote one, of killed ones too.

A process writes while its file is copied. The copy marks what changed meanwhile as torn, by the sequence lock that each
slot begins with, and carries the time at which it was taken: so a later reader knows which heartbeat was old then.
"""

from __future__ import annotations

import glob
import struct
import time
from collections.abc import Collection
from pathlib import Path

from hangscope.incident import blackbox_layout as layout
from hangscope.incident.node_dir import NodeDir
from hangscope.processes.target_rights import Rights

SUFFIX = ".ncclbb"
MOST_BYTES = 2 << 30
MOST_SLOTS = 2_000_000
"""Of one table: a real one has thousands."""


def save(
    node_dir: NodeDir,
    folder: Path,
    pids: Collection[int],
    rights: Rights | None = None,
    earlier: Collection[int] = (),
) -> int:
    """Copy the black boxes of these processes, all where none is theirs; how many there were.

    A folder may also hold those of an earlier start of the same ranks, whose processes are left out. It is named by a
    rank's environment, so it is read with that rank's rights.
    """
    rights = rights or Rights()
    try:
        files = sorted(rights.find(f"{glob.escape(str(folder))}/*{SUFFIX}"))
    except OSError as error:
        node_dir.gap("black boxes", f"{folder} cannot be listed: {error.strerror}")
        return 0
    files = [path for path in files if _pid_of(path) not in {str(pid) for pid in earlier}]
    ours = [path for path in files if _pid_of(path) in {str(pid) for pid in pids}]
    saved = 0
    left = MOST_BYTES
    for path in ours or files:
        if left <= 0:
            node_dir.gap("black boxes", f"more than {MOST_BYTES} bytes in {folder}: the rest is left there")
            break
        try:
            data = copy_of(path, rights)
        except OSError as error:
            node_dir.gap(f"black box {path.name}", f"{type(error).__name__}: {error}")
            continue
        if data is None:
            node_dir.gap(f"black box {path.name}", "it has no header that hangscope knows")
            continue
        left -= len(data)
        node_dir.write(f"blackbox/{path.name}", data)
        saved += 1
    return saved


def _pid_of(path: Path) -> str:
    return path.name.removesuffix(SUFFIX).rpartition(".")[2]


def copy_of(path: Path, rights: Rights | None = None) -> bytes | None:
    """A copy that a reader can trust slot by slot; None where the file is no black box."""
    rights = rights or Rights()
    first = bytearray(rights.read(path, layout.MAX_BYTES))
    now_ns = time.time_ns()
    second = rights.read(path, layout.MAX_BYTES)
    if len(first) < layout.LEAST_BYTES or not first.startswith(layout.MAGIC):
        return None
    if struct.unpack_from("<I", first, layout.VERSION_AT)[0] != layout.VERSION:
        return None
    for table in range(layout.TABLES):
        offset, size, slots, _ = struct.unpack_from("<4I", first, layout.TABLES_AT + 16 * table)
        _mark_torn(first, second, offset, size, slots, events=table == layout.TABLES - 1)
    struct.pack_into("<Q", first, layout.COPIED_AT, now_ns)
    return bytes(first)


def _mark_torn(first: bytearray, second: bytes, offset: int, size: int, slots: int, *, events: bool) -> None:
    end = offset + size * slots
    if size < 8 or slots > MOST_SLOTS or end > min(len(first), len(second)) or first[offset:end] == second[offset:end]:
        return
    for at in range(offset, end, size):
        if events:
            if first[at : at + size] != second[at : at + size]:
                struct.pack_into("<Q", first, at, 0)
        elif first[at : at + 4] != second[at : at + 4]:
            struct.pack_into("<I", first, at, 1)
