"""Pieces of wording that several causes share; numbers are said as `hangscope.text` says them."""

from collections.abc import Iterable

from hangscope.model import Operation
from hangscope.text import rank_list, size

_PARTS = 12


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``; long lists end in a count."""
    known = set(ranks)
    return rank_list(known, _PARTS) if known else "no rank"


def size_text(count: int | None) -> str:
    return "an unknown size" if count is None else size(count)


def shape_text(operation: Operation) -> str:
    """Sizes and types of one call: ``[65536] Float``."""
    shapes = operation.input_shapes or operation.output_shapes
    sizes = " ".join(str(list(s)) for s in shapes[:3]) + (" …" if len(shapes) > 3 else "")
    types = ", ".join(sorted(set(operation.input_dtypes or operation.output_dtypes)))
    return f"{sizes} {types}".strip() or "no tensor"
