"""What every report shares: times, code lines, and text made safe to show.

Whatever comes from evidence (a file name, a log line, a group's description) is untrusted: `safe` is what stands
between it and a terminal.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hangscope.text import is_own_code

if TYPE_CHECKING:  # the command line needs these words before it needs numpy
    from hangscope.diagnosis.verdict import Diagnosis
    from hangscope.model import Frame


def moment(at_ns: int | None) -> datetime | None:
    """A time in UTC, or None where the number is no time at all (a damaged dump may hold anything)."""
    if at_ns is None:
        return None
    try:
        seconds, rest = divmod(int(at_ns), 1_000_000_000)
        return datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=rest // 1000)
    except (OverflowError, OSError, ValueError):
        return None


def iso(at_ns: int | None, *, local: bool = False) -> str | None:
    """``2026-11-15T02:30:11.204Z``, or None; without the Z where the time is a log's own (`local`)."""
    at = moment(at_ns)
    return None if at is None else f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}{'' if local else 'Z'}"


def clock(at_ns: int | None, *, local: bool = False) -> str | None:
    """``02:30:11.204 UTC``: the day is left out, because a hang is read within hours."""
    at = moment(at_ns)
    return None if at is None else f"{at:%H:%M:%S}.{at.microsecond // 1000:03d} {'local time' if local else 'UTC'}"


def members(d: Diagnosis) -> str:
    """How many ranks the operation in flight has. Logs alone show who wrote, and not who else belongs to the group."""
    count = len(d.operation.members) if d.operation is not None else 0
    return f"{count} rank{'s' * (count != 1)}{' seen' * only_logs(d)}"


def only_logs(d: Diagnosis) -> bool:
    return d.completeness is not None and not d.completeness.dumps


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
    """The innermost frame of the user's own code; None where PyTorch made the call by itself, as in backward."""
    return next((frame for frame in frames if is_own_code(frame.filename)), None)


_HASH = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{32}\b")


def brief(diagnosis: Diagnosis) -> Diagnosis:
    """The verdict as people read it: a group whose name is a hash (of a mesh) goes by its first digits."""

    def short(text: str) -> str:
        return _HASH.sub(r"\1…", text)

    d = diagnosis
    return replace(
        d,
        headline=short(d.headline),
        summary=short(d.summary),
        culprits=tuple(replace(c, why=short(c.why)) for c in d.culprits),
        victims=tuple(replace(v, group=v.group and short(v.group)) for v in d.victims),
        operation=d.operation and replace(d.operation, group=short(d.operation.group)),
        last_completed=d.last_completed and replace(d.last_completed, group=short(d.last_completed.group)),
        also_possible=tuple(replace(other, why=short(other.why)) for other in d.also_possible),
        why=tuple(replace(f, text=short(f.text)) for f in d.why),
        ruled_out=tuple(replace(r, why=short(r.why)) for r in d.ruled_out),
        next_steps=tuple(map(short, d.next_steps)),
    )


def place(frame: Frame) -> str:
    """``train.py:88 in train_step``: the file's own name is what people look for."""
    file = frame.filename.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{file}:{frame.line} in {frame.name}" if frame.name else f"{file}:{frame.line}"
