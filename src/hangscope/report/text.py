"""What every report shares: times, code lines, and text made safe to show.

Whatever comes from evidence (a file name, a log line, a group's description) is untrusted: `safe` is what stands
between it and a terminal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line needs these words before it needs numpy
    from hangscope.model import Frame

_LIBRARY_PATHS = ("/site-packages/", "/dist-packages/", "/torch/distributed/", "/torch/nn/", "/torch/_", "/lib/python3")


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
    """``train.py:88 in train_step``: the file's own name is what people look for."""
    file = frame.filename.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{file}:{frame.line} in {frame.name}" if frame.name else f"{file}:{frame.line}"
