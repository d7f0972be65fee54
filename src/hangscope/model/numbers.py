"""Numbers as logs write them. Every reader of text turns digits into numbers here, and nowhere else.

What only looks like a number (digits of other scripts, superscripts) and what is longer than any real one raises
`Unreadable`: it costs the line that it stands in.
"""

from __future__ import annotations

MOST_DIGITS = 18
"""A signed 64-bit number holds them all."""

COUNTER_DIGITS = 20
"""Of a counter of 64 bits without a sign."""


class Unreadable(ValueError):
    """A line that has the shape of one that is known, and a value in it that none of them has."""


def is_number(text: str | None, most: int = MOST_DIGITS) -> bool:
    """Whether the text is a whole number without a sign, of at most so many digits."""
    return text is not None and text.isascii() and text.isdigit() and len(text) <= most


def integer(text: str | None, most: int = MOST_DIGITS) -> int:
    """A whole number. Raises Unreadable where it is none, or longer than any real one."""
    digits = text[1:] if text is not None and text[:1] in ("-", "+") else text
    if text is None or not is_number(digits, most):
        raise Unreadable("no number, or one of too many digits")
    return int(text)


def decimal(text: str | None) -> float:
    """A number with or without a fraction. Raises Unreadable where it is none, or longer than any real one."""
    whole, _, fraction = (text or "").lstrip("+-").partition(".")
    if text is None or not is_number(whole or "0") or not is_number(fraction or "0", 400) or not (whole or fraction):
        raise Unreadable("no number, or one of too many digits")
    return float(text)


def hexadecimal(text: str | None) -> int:
    """A whole number in base 16, with or without ``0x``. Raises Unreadable where it is none that 64 bits hold."""
    digits = (text or "").removeprefix("0x")
    if not digits.isascii() or not digits.isalnum() or len(digits) > 16:
        raise Unreadable("no number in base 16, or one of too many digits")
    try:
        return int(digits, 16)
    except ValueError:
        raise Unreadable("no number in base 16") from None
