"""Small words that every report shares: ranges of ranks, durations, sizes, times, and text made safe to show.

Whatever comes from evidence (a file name, a log line, a group's description) is untrusted: `safe` is what stands
between it and a terminal.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line needs these words before it needs numpy
    from hangscope.model import Frame

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_LIBRARY_PATHS = ("/site-packages/", "/dist-packages/", "/torch/distributed/", "/torch/nn/", "/torch/_", "/lib/python3")
_FOLD = 3
"""Two neighbours read better as ``4, 5``; three and more become ``4-6``."""


def ranges(ranks: Iterable[int], limit: int | None = None) -> str:
    """Ranks as people write them: ``0-511, 520``. At most `limit` parts, then how many ranks are left unsaid."""
    return _join(_runs(sorted(set(ranks)), strides=False), limit)


def spans(ranks: Iterable[int], limit: int | None = None) -> str:
    """As `ranges`, and evenly spaced ranks in one part too: ``3-8187 step 8``. A layout of groups repeats so."""
    return _join(_runs(sorted(set(ranks)), strides=True), limit)


def _runs(ordered: Sequence[int], *, strides: bool) -> list[tuple[str, int]]:
    """The parts of the list, each with how many ranks it stands for."""
    parts: list[tuple[str, int]] = []
    at = 0
    while at < len(ordered):
        step = ordered[at + 1] - ordered[at] if at + 1 < len(ordered) else 0
        end = at + 1
        while end < len(ordered) and ordered[end] - ordered[end - 1] == step:
            end += 1
        count = end - at
        if step == 1 and count >= _FOLD:
            parts.append((f"{ordered[at]}-{ordered[end - 1]}", count))
        elif strides and count > _FOLD:
            parts.append((f"{ordered[at]}-{ordered[end - 1]} step {step}", count))
        else:
            parts.append((str(ordered[at]), 1))
            end = at + 1
        at = end
    return parts


def _join(parts: list[tuple[str, int]], limit: int | None) -> str:
    if limit is not None and len(parts) > limit:
        left = sum(count for _, count in parts[limit:])
        parts = [*parts[:limit], (f"and {left} more", 0)]
    return ", ".join(text for text, _ in parts)


def plural(count: int, noun: str) -> str:
    """``1 rank``, ``7 ranks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def rank_list(ranks: Iterable[int], limit: int | None = None) -> str:
    """``rank 3``, ``ranks 0-2, 5`` or ``ranks 3-8187 step 8``."""
    known = set(ranks)
    return f"{'rank' if len(known) == 1 else 'ranks'} {spans(known, limit)}"


def duration(seconds: float) -> str:
    """``0.4s``, ``12s``, ``30m 02s``, ``3h 05m``, ``2d 04h``."""
    if not math.isfinite(seconds) or seconds < 0:
        return "an unknown time"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h {minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours:02d}h"


def size(count: int) -> str:
    """``512 B``, ``4.0 MiB``."""
    value = float(count)
    for unit in _UNITS[:-1]:
        if abs(value) < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def moment(at_ns: int | None) -> datetime | None:
    """A time in UTC, or None where the number is no time at all (a damaged dump may hold anything)."""
    if at_ns is None:
        return None
    try:
        seconds, rest = divmod(int(at_ns), 1_000_000_000)
        return datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=rest // 1000)
    except (OverflowError, OSError, ValueError):
        return None


def iso(at_ns: int | None) -> str | None:
    """``2026-11-15T02:30:11.204Z``, or None."""
    at = moment(at_ns)
    return None if at is None else f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def clock(at_ns: int | None) -> str | None:
    """``02:30:11.204 UTC``: the day is left out, because a hang is read within hours."""
    at = moment(at_ns)
    return None if at is None else f"{at:%H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def whole(text: str) -> str:
    r"""`text` that any UTF-8 stream takes: bytes that were no UTF-8 (lone surrogates) are shown as ``\xff``."""
    if text.isascii():
        return text
    return "".join(_escape(c) if 0xD800 <= ord(c) <= 0xDFFF else c for c in text)


def safe(text: str) -> str:
    r"""`text` that cannot move the cursor, ring, recolour or reorder: such characters are shown as ``\x1b``.

    Covers C0 and C1 controls, lone surrogates, line and paragraph separators, and invisible format characters, among
    them those that turn the direction of writing.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _UNSAFE else c for c in text.replace("\t", "    "))


_UNSAFE = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # how Python keeps a byte that was no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def own_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame outside PyTorch and installed libraries: the line that the reader of a report can change."""
    for frame in frames:
        name = frame.filename.replace("\\", "/")
        if name and not name.startswith("<") and not any(part in name for part in _LIBRARY_PATHS):
            return frame
    return frames[0] if frames else None


def place(frame: Frame) -> str:
    """``train.py:88 train_step``: the file's own name is what people look for."""
    return f"{frame.filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.line} {frame.name}".rstrip()
