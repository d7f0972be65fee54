"""What a ring of so many entries costs: host memory, bytes in a dump, seconds to write it.

Measured with torch 2.13 on x86-64. The size is in entries, not bytes; an entry is one record of one operation.
"""

from __future__ import annotations

ENTRY_BYTES_SHALLOW = 1_000  # resident, with Python stacks 10 deep
ENTRY_BYTES_DEEP = 1_760  # 30 deep
DUMP_ENTRY_BYTES = 190  # in the pickle, with stacks
BYTES_MISREADING = 2_097_152
"""The value that a vendor's guide gives as "2 MB". It is entries."""

# A real rank spent 5.4 to 5.8 s in the first symbolisation before anything was written.
_SYMBOLISE_S = 6.0
_WITH_STACKS_S = 16.5e-6
_WITHOUT_STACKS_S = 13e-6


def memory_bytes(entries: int, *, deep: bool = True) -> int:
    """Resident host memory of one rank's full ring. It grows up to this while the job runs; nothing is reserved."""
    return max(entries, 0) * (ENTRY_BYTES_DEEP if deep else ENTRY_BYTES_SHALLOW)


def dump_bytes(entries: int) -> int:
    return max(entries, 0) * DUMP_ENTRY_BYTES


def dump_seconds(entries: int, *, stacks: bool = True) -> float:
    """Time to write a full ring: with stacks, and without, which is what PyTorch tries when the first took too long."""
    per_entry = _WITH_STACKS_S if stacks else _WITHOUT_STACKS_S
    return (_SYMBOLISE_S if stacks else 0.0) + max(entries, 0) * per_entry
