"""Memory for the columns of dumps that wait to be joined, in large blocks that go back to the system as a whole.

What malloc is given back in small pieces it keeps, so a large job would be there twice while it is joined. A block goes
when the last column in it does, which is soon: dumps are joined in about the order in which they were read.
"""

from __future__ import annotations

import mmap
import threading

import numpy as np

from hangscope.reader.dumps.raw_dump import Columns

_BLOCK_BYTES = 16 << 20
_SMALL = 32 << 10
"""Columns of fewer bytes stay where they are: a few dumps need no block."""
_ALIGNMENT = 64


class _Block(threading.local):
    """The block that is being filled. Each thread fills one of its own."""

    memory: mmap.mmap | None = None
    used: int = 0


_block = _Block()


def move_into_block(columns: Columns, kinds: dict[str, np.dtype]) -> Columns:
    """These columns with these types, in a block where they are large enough."""
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
    """A block, and where in it so many bytes are free."""
    at = -(-_block.used // _ALIGNMENT) * _ALIGNMENT
    memory = _block.memory
    if memory is None or at + size > len(memory):
        memory = mmap.mmap(-1, max(_BLOCK_BYTES, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)  # a page fault for every 4 KiB costs more than the copy
        _block.memory = memory
        at = 0
    _block.used = at + size
    return memory, at
