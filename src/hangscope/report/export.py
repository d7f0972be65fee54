"""The verdict as JSON: the contract `hangscope.diagnosis/1`, whose JSON Schema is published beside this file.

Unknown values are null and never left out. Fields may be added in later versions, never changed. Which keys an object
has is `contract`'s to say; here a value is written as its type says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Source
from hangscope.report.contract import Time, keys_of
from hangscope.report.safe_text import whole
from hangscope.report.verdict_text import iso

Write = Callable[[Any], Any]


def to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """The verdict as plain JSON values, keys in the order of the contract."""
    value: dict[str, Any] = _object(Diagnosis)(diagnosis)
    return value


def to_json(diagnosis: Diagnosis) -> str:
    """The verdict as JSON text. Pure ASCII, so that no stream's encoding and no terminal can come to harm."""
    return json.dumps(to_dict(diagnosis), indent=1, allow_nan=False) + "\n"


@cache
def _object(cls: type) -> Write:
    keys = [(key.name, key.get, _writer(key.hint)) for key in keys_of(cls)]
    return lambda value: {name: write(get(value)) for name, get, write in keys}


def optional(hint: Any) -> Any:
    """What may be missing of this type: ``str`` of ``str | None``; None where it is always there."""
    if get_origin(hint) not in (Union, UnionType):
        return None
    (there,) = [arg for arg in get_args(hint) if arg is not NoneType]
    return there


@cache
def _writer(hint: Any) -> Write:
    """How a value of this type is written."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    there = optional(hint)
    if there is str:
        return lambda value: whole(value) if value else None
    if there is not None:
        write = _writer(there)
        return lambda value: None if value is None else write(value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return str
    if is_dataclass(hint):
        return _object(hint)  # type: ignore[arg-type]
    return _container(get_origin(hint), get_args(hint))


def _container(origin: Any, args: tuple[Any, ...]) -> Write:
    write = _writer(args[-1] if origin is Mapping else args[0]) if origin is not Literal else None
    if write is None:
        return lambda value: value
    if origin is Mapping:
        key = _writer(args[0])
        return lambda value: {str(key(name)): write(item) for name, item in sorted(value.items())}
    return lambda value: [write(item) for item in value]


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


_PLAIN: Mapping[Any, Write] = {
    bool: bool,
    int: int,
    str: whole,
    float: _number,
    float | None: _number,
    Time: iso,
    Source: lambda source: whole(str(source)),
}
