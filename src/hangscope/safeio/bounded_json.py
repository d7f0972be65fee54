"""JSON that others wrote: whether it may be JSON at all is seen from its beginning, and how much memory it takes is
estimated before it is parsed.
"""

from __future__ import annotations

import json
from typing import Any

from hangscope.safeio.limits import JSON_DIGITS, JSON_MEMORY

_HEAVIEST = 202
"""Of one byte: an opening brace."""
_MOST_DIGITS = b"0" * JSON_DIGITS
_DIGITS = bytes.maketrans(b"123456789", b"000000000")


class TooMuch(ValueError):
    """JSON that would take more memory than any real file of its kind."""


def weight(raw: bytes) -> int:
    """About how many bytes the parsed values take, and rather too many: as CPython lays out lists, dicts, strings and
    numbers. A bracket inside a string counts too, which real files have few of."""
    texts = raw.count(b'"') // 2
    return 2 * len(raw) + 72 * raw.count(b"[") + 200 * raw.count(b"{") + 32 * raw.count(b",") + 50 * texts


_LOOK = 16 << 10
_CUT = 16
"""A word of JSON, an escape or a number's sign that is cut off is shorter."""
_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n"


def may_be_json(head: bytes) -> bool:
    """Whether a file that begins so may be one JSON value; False is certain. A log that begins with a brace or bracket
    (``[2026-01-15 02:30:11] …``, ``[rank0]: …``, one JSON object a line) is known by its first lines."""
    if b"\0" in head[:4]:
        return True  # UTF-16 or UTF-32, which JSON may be
    text = head[:_LOOK].decode("utf-8", "replace").lstrip(_BLANK)
    try:
        _, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        return error.pos > len(text) - _CUT or error.msg.startswith("Unterminated string")
    except (RecursionError, ValueError):
        return True  # nested too deep, or a number that is too long: who parses the whole will say so
    return not text[end:].strip(_BLANK)


def loads(raw: bytes | str, *, most: int = JSON_MEMORY) -> Any:
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
