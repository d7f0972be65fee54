"""JSON that others wrote: how much memory it will take is estimated before it is parsed.

Three bytes, ``[],``, become sixty-four in memory: a file of sixty megabytes would take gigabytes.
"""

from __future__ import annotations

import json
from typing import Any

MOST_MEMORY = 160 << 20
_HEAVIEST = 202
"""Of one byte: an opening brace."""
_MOST_DIGITS = b"0" * 1000
_DIGITS = bytes.maketrans(b"123456789", b"000000000")


class TooMuch(ValueError):
    """JSON that would take more memory than any real file of its kind."""


def weight(raw: bytes) -> int:
    """About how many bytes the parsed values take, and rather too many: as CPython lays out lists, dicts, strings and
    numbers. A bracket inside a string counts too, which real files have few of."""
    texts = raw.count(b'"') // 2
    return 2 * len(raw) + 72 * raw.count(b"[") + 200 * raw.count(b"{") + 32 * raw.count(b",") + 50 * texts


def loads(raw: bytes | str, *, most: int = MOST_MEMORY) -> Any:
    """The value. Raises ValueError where it is no JSON, nests too deep, or would take more than `most` bytes."""
    data = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw
    if len(data) * _HEAVIEST > most and weight(data) > most:
        raise TooMuch(f"its {len(data)} bytes would take more than {most >> 20} MiB")
    if len(data) > 1000 and _MOST_DIGITS in data.translate(_DIGITS):
        raise TooMuch("a number of more than a thousand digits")  # minutes, in Python before 3.10.7
    try:
        return json.loads(raw)
    except RecursionError:
        raise TooMuch("it nests too deep") from None
