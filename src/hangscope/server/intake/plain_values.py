"""What a stranger's JSON may say, as plain values: of the right type, short, and without characters that do harm.

A field of another type counts as not said, as in manifests; a field that is needed and not said is an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hangscope.errors import InputError

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Controls, what turns the direction of text, half surrogates: no name needs them, and NUL no database takes."""
LATEST = 1 << 33


def clean(value: str, most: int) -> str:
    """One line of text that can be kept and shown anywhere."""
    return _CONTROL.sub(" ", value[: most * 2]).strip()[:most]


def text(value: Mapping[str, Any], name: str, most: int = 200) -> str:
    """A text or a number as text; empty where it is not said."""
    found = value.get(name)
    if isinstance(found, bool) or not isinstance(found, (str, int)):
        return ""
    return clean(str(found) if not isinstance(found, int) or abs(found) < 1 << 63 else "", most)


def needed(value: Mapping[str, Any], name: str, most: int = 200) -> str:
    found = text(value, name, most)
    if not found:
        raise InputError(f"`{name}` is missing")
    return found


def whole(value: Mapping[str, Any], name: str, most: int = 1 << 31) -> int | None:
    """A whole number from 0 up to `most`."""
    found = value.get(name)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < most:
        return None
    return found


def moment(value: Mapping[str, Any], name: str, now: float) -> float:
    """A time in seconds since 1970; the server's own where nothing believable is said. Nobody reports the future."""
    found = value.get(name)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
        return now
    return float(found) if 0 < found <= now + 300 else now


def items(value: Mapping[str, Any], name: str, most: int) -> Iterator[Any]:
    found = value.get(name)
    yield from found[:most] if isinstance(found, list) else ()


def table(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}
