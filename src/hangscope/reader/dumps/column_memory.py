"""Memory for the columns of dumps that wait to be joined, in large pieces that go back to the system as a whole.

What malloc is given back in small pieces it keeps, so a large job would be there twice while it is joined. A slab goes
when the last column in it does, which is soon: dumps are joined in about the order in which they were read.
"""

from __future__ import annotations

import mmap
import threading

import numpy as np

from hangscope.reader.dumps.raw_dump import Columns

SLAB = 16 << 20
_SMALL = 32 << 10
"""Columns of fewer bytes stay where they are: a few dumps need no slab."""


class _Slabs(threading.local):
    """Each thread fills a slab of its own."""

    memory: mmap.mmap | None = None
    used: int = 0


_slabs = _Slabs()


def moved(columns: Columns, kinds: dict[str, np.dtype]) -> Columns:
    """These columns with these types, in a slab where they are large enough."""
    count = len(columns["seq"])
    size = sum(kind.itemsize for kind in kinds.values()) * count
    if size < _SMALL:
        return {name: columns[name].astype(kind, copy=False) for name, kind in kinds.items()}
    memory, at = _reserve(size)
    found: Columns = {}
    # the widest first, so that each begins where its type may
    for name, kind in sorted(kinds.items(), key=lambda item: -item[1].itemsize):
        found[name] = np.frombuffer(memory, dtype=kind, count=count, offset=at)
        found[name][:] = columns.pop(name)
        at += found[name].nbytes
    return found


def _reserve(size: int) -> tuple[mmap.mmap, int]:
    """Where so many bytes are free."""
    at = -(-_slabs.used // 64) * 64
    if _slabs.memory is None or at + size > len(_slabs.memory):
        memory = mmap.mmap(-1, max(SLAB, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)  # a page fault for every 4 KiB costs more than the copy
        _slabs.memory, at = memory, 0
    _slabs.used = at + size
    return _slabs.memory, at
