"""Pieces of wording that several rules share; numbers are said as `hangscope.words` says them."""

from __future__ import annotations

from collections.abc import Iterable

from hangscope.model import Operation
from hangscope.words import plural, rank_list, size

__all__ = ["first_line", "plural", "ranks_text", "sentence", "shape_text", "size_text"]

_PARTS = 12


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``; long lists end in a count."""
    known = set(ranks)
    return rank_list(known, _PARTS) if known else "no rank"


def sentence(text: str) -> str:
    """`text` with a capital at its start and nothing else changed: host names keep theirs."""
    return text[:1].upper() + text[1:]


def first_line(message: str, limit: int = 160) -> str:
    """What a message says before its hints and links: its first line, and the next where that one ends in a colon."""
    lines = [" ".join(line.split()) for line in message.splitlines() if line.strip()]
    text = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    if len(text) <= limit:
        return text
    sentences = text[:limit].rfind(". ") + 1
    return text[:sentences] if sentences else text[: limit - 1] + "…"


def size_text(count: int | None) -> str:
    return "an unknown size" if count is None else size(count)


def shape_text(operation: Operation) -> str:
    """Sizes and types of one call: ``[65536] Float``."""
    shapes = operation.input_shapes or operation.output_shapes
    sizes = " ".join(str(list(s)) for s in shapes[:3]) + (" …" if len(shapes) > 3 else "")
    types = ", ".join(sorted(set(operation.input_dtypes or operation.output_dtypes)))
    return f"{sizes} {types}".strip() or "no tensor"
