"""How much of one file is believed. A dump is untrusted: nothing in it decides how much memory or time it costs."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds for one dump. The defaults hold every real dump: a ring of 2,000,000 entries is about 400 MB on disk."""

    input_bytes: int = 1024 * MIB
    memory_bytes: int = 256 * MIB
    """Estimated memory of the objects that a file may hold at one time: bounds containers, objects and strings."""
    growth: int = 40
    """The same, for each byte of the file: a real dump needs up to 35, a crafted one can ask for more than 100."""
    nesting: int = 64
    memo: int = 4_000_000
    string_bytes: int = 4 * MIB
    integer_bytes: int = 32
    visits: int = 2_000_000
    """List items that may be visited beyond one per byte of the file: shared lists must not multiply the work."""
    problems: int = 50
    """Bad entries reported one by one; the rest is counted."""


DEFAULT = Limits()

MOST_GROUPS = 5000
"""Groups of one process. Real ones have some dozens."""
