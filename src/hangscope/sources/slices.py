"""Finds the slices: the folders here, by what lies in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from hangscope import sources


@cache
def found(part: str, has: str) -> tuple[ModuleType, ...]:
    """The module `part` of each slice that has one with the name `has` in it, in the order of the slices' names."""
    return tuple(module for module in _modules(part) if hasattr(module, has))


def _modules(part: str) -> Iterator[ModuleType]:
    for place in sorted(iter_modules(sources.__path__), key=lambda each: each.name):
        folder = Path(getattr(place.module_finder, "path", "")) / place.name
        if place.ispkg and any(each.name == part for each in iter_modules([str(folder)])):
            yield import_module(f"{sources.__name__}.{place.name}.{part}")


def reader_of(head: bytes) -> ModuleType | None:
    """Which slice knows a file that begins so, if any."""
    return next((module for module in found("read", "recognise") if module.recognise(head)), None)


def reader_of_object(value: Mapping[str, Any]) -> ModuleType | None:
    """Which slice knows a JSON object, if any."""
    return next((module for module in found("read", "recognise_object") if module.recognise_object(value)), None)


def name_of(module: ModuleType) -> str:
    """The slice that a module belongs to."""
    return module.__name__.split(".")[-2]
