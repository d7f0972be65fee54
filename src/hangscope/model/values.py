"""Small values that several formats spell in their own way: numbers in strings, host names, PCI addresses."""

from __future__ import annotations

import math
import re
from ipaddress import AddressValueError, IPv6Address
from typing import Any

from hangscope.model.basics import Source
from hangscope.model.numbers import MOST_DIGITS, hexadecimal, integer
from hangscope.model.times import LAST_MOMENT, parse_time

RANK_LIMIT = 1 << 20
"""Ranks and sizes from here on are not believed."""

_PCI = re.compile(
    r"^(?:(?P<domain>[0-9a-fA-F]{4,8}):)?(?P<bus>[0-9a-fA-F]{2}):(?P<device>[0-9a-fA-F]{2})(?:\.(?P<fn>[0-7]))?$"
)


def pci_id(value: str | None) -> str | None:
    """A PCI address in the kernel's spelling, ``0000:9b:00.0``; None where the text is not one."""
    match = _PCI.match(value) if value else None
    if match is None:
        return None
    domain = (match["domain"] or "0000").lower()[-4:]
    return f"{domain}:{match['bus'].lower()}:{match['device'].lower()}.{match['fn'] or '0'}"


def gid(value: str | bytes | None) -> str | None:
    """A port's GID in one spelling: with the IPv4 address in it where it has one, as ``::ffff:10.0.5.6``."""
    try:
        address = IPv6Address(value) if value else None
    except AddressValueError:
        return None
    if address is None:
        return None
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)


_LOOPBACKS = frozenset(("localhost", "localhost.localdomain", "ip6-localhost", "::1", "::", "0.0.0.0"))


def is_loopback(host: str) -> bool:
    """Whether a host calls itself something that every host calls itself: it names no one."""
    return host in _LOOPBACKS or host.startswith("127.")


def host_name(value: str | None) -> str | None:
    """A host name worth showing: never a loopback's, never empty."""
    if not value or value == "<N/A>" or is_loopback(value):
        return None
    return value


def short_name(host: str) -> str:
    """The part that two spellings of one host share: NCCL logs short names, torchrun full ones."""
    return host if re.fullmatch(r"[\d.]+|.*:.*", host) else host.split(".", 1)[0].lower()


def whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else None
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value.strip()):
        return integer(value.strip())
    return None


def rank_number(value: Any) -> int | None:
    """A number that can be a rank or a size."""
    found = whole(value)
    return found if found is not None and 0 <= found <= RANK_LIMIT else None


def number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and not re.fullmatch(r"-?[0-9]{1,18}(?:\.[0-9]{0,18})?", value.strip()):
        at = parse_time(value)
        return at / 1e9 if at is not None else None
    if isinstance(value, (int, float, str)):
        found = float(value) if not isinstance(value, int) or abs(value) < 1 << 63 else math.inf
        return found if math.isfinite(found) else None
    return None


def moment(value: Any) -> float | None:
    """Seconds since 1970 that can be a time: up to the year 2242."""
    found = number(value)
    return found if found is not None and 0 <= found < LAST_MOMENT else None


def flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def text(value: Any) -> str | None:
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def comm_id(text: str) -> str:
    """A communicator's hash in one spelling, so that the log, RAS and the profiler agree."""
    digits = text.lower().removeprefix("0x")
    return f"0x{hexadecimal(digits):x}" if digits else "0x0"


def line_of(source: Source) -> int:
    """The number in a place such as ``line 12``, for order."""
    digits = re.sub(r"[^0-9]", "", source.place)[:MOST_DIGITS]
    return integer(digits or "0")
