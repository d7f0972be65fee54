"""Sizes and times as people type them, for options: `callback=size`, `type=DURATION`."""

from __future__ import annotations

import re

import click

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_AMOUNT = r"\d+(?:\.\d+)?"
_PART = rf"({_AMOUNT})\s*(ms|[smhd])"


def size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Bytes: `50MB`, `1.5GiB`, `700000`."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", value.strip().lower())
    if match is None or (match[3] and not match[2]):
        raise click.BadParameter(f"{value!r} is not a size such as 50MB", ctx, param)
    return int(float(match[1]) * (_BINARY[match[2]] if match[3] else _DECIMAL[match[2]]))


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 alone
    """A time in seconds, also as `90s`, `5m`, `1h30m`; from a settings file a number too."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        found = seconds(str(value))
        if found is None:
            self.fail(f"{value!r} is not a time such as 90, 30s or 5m", param, ctx)
        return found


DURATION = Duration()


def seconds(text: str) -> float | None:
    """``90``, ``30s``, ``1h30m`` in seconds; None where it is no time."""
    text = text.strip().lower()
    if re.fullmatch(_AMOUNT, text):
        return float(text)
    parts = re.findall(_PART, text)
    if not parts or "".join(amount + unit for amount, unit in parts) != re.sub(r"\s", "", text):
        return None
    return sum(float(amount) * _SECONDS[unit] for amount, unit in parts)
