"""Black boxes: what NCCL's transfers on this node wait for, of every process that wrote one, of killed ones too.

A process writes while its file is copied. The copy marks what changed meanwhile as torn, by the sequence lock that each
slot begins with, and carries the time at which it was taken: so a later reader knows which heartbeat was old then.
"""

from __future__ import annotations

import glob
import struct
import time
from pathlib import Path

from hangscope.processes.target_rights import Rights
from hangscope.sources.black_box import schema as layout
from hangscope.sources.saving import Saving

WHAT = "black boxes"
MOST_BYTES = 2 << 30
MOST_SLOTS = 2_000_000
"""Of one table: a real one has thousands."""


def save(node: Saving, sample: int) -> None:
    """Those of this node's ranks, all where none is theirs: a killed one leaves its file, and before the first
    communicator there is none.

    The folder may also hold those of an earlier start of the same ranks, whose processes are left out. Where a rank's
    environment names it, it is read with that rank's rights.
    """
    del sample
    named = node.settings.get(layout.VARIABLE)
    folder = named or node.made.get(layout.VARIABLE)
    if not folder:
        return
    rights = node.rights if named else Rights()
    try:
        files = sorted(rights.find(f"{glob.escape(folder)}/*{layout.SUFFIX}"))
    except OSError as error:
        node.gap(f"{folder} cannot be listed: {error.strerror}")
        return
    files = [path for path in files if _pid_of(path) not in {str(pid) for pid in node.earlier}]
    ours = [path for path in files if _pid_of(path) in {str(pid) for pid in node.pids}]
    left = MOST_BYTES
    for path in ours or files:
        if left <= 0:
            node.gap(f"more than {MOST_BYTES} bytes in {folder}: the rest is left there")
            break
        try:
            data = copy_of(path, rights)
        except OSError as error:
            node.gap_of(f"black box {path.name}", f"{type(error).__name__}: {error}")
            continue
        if data is None:
            node.gap_of(f"black box {path.name}", "it has no header that hangscope knows")
            continue
        left -= len(data)
        node.write(f"{layout.FOLDER}/{path.name}", data)


def _pid_of(path: Path) -> str:
    return path.name.removesuffix(layout.SUFFIX).rpartition(".")[2]


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
