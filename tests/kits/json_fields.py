"""Every place of a JSON value, and the value with something else there: to try each field with all nonsense."""

from __future__ import annotations

from collections.abc import Iterator


def places(value: object, at: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        yield from places(each, (*at, key))


def changed(value: object, at: tuple[object, ...], new: object) -> object:
    if not at:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)  # type: ignore[call-overload]
    copied[at[0]] = changed(copied[at[0]], at[1:], new)
    return copied
