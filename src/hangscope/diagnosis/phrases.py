"""Pieces of wording that several causes share; numbers are said as `hangscope.text` says them."""

from collections.abc import Iterable
from itertools import zip_longest

from hangscope.diagnosis.align.agreement import agreed_sides, elements
from hangscope.model import Operation, Shapes
from hangscope.text import plural, rank_list, size

_PARTS = 12


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``; long lists end in a count."""
    known = set(ranks)
    return rank_list(known, _PARTS) if known else "no rank"


def size_text(count: int | None) -> str:
    return "an unknown size" if count is None else size(count)


def shape_text(operation: Operation) -> str:
    """Sizes and types of one call: ``[65536] Float``."""
    return _tensors(
        operation.input_shapes or operation.output_shapes, operation.input_dtypes or operation.output_dtypes
    )


def _tensors(shapes: Shapes, dtypes: tuple[str, ...]) -> str:
    sizes = " ".join(str(list(s)) for s in shapes[:3]) + (" …" if len(shapes) > 3 else "")
    types = ", ".join(sorted(set(dtypes)))
    return f"{sizes} {types}".strip() or "no tensor"


def shape_texts(one: Operation, other: Operation) -> tuple[str, str]:
    """Sizes and types of two calls, in words that show where they differ: in what goes in, in what comes out, or in one
    tensor of many."""
    for side in agreed_sides(one.name):
        if side == "in":
            found = _differing(one.input_shapes, one.input_dtypes, other.input_shapes, other.input_dtypes)
        else:
            found = _differing(one.output_shapes, one.output_dtypes, other.output_shapes, other.output_dtypes)
        if found is not None:
            named = " for its output" if side == "out" and (one.input_shapes or other.input_shapes) else ""
            return f"{found[0]}{named}", f"{found[1]}{named}"
    return shape_text(one), shape_text(other)


def _differing(
    shapes: Shapes, dtypes: tuple[str, ...], other_shapes: Shapes, other_dtypes: tuple[str, ...]
) -> tuple[str, str] | None:
    if (elements(shapes), dtypes) == (elements(other_shapes), other_dtypes):
        return None
    texts = _tensors(shapes, dtypes), _tensors(other_shapes, other_dtypes)
    if texts[0] != texts[1]:
        return texts
    if len(shapes) != len(other_shapes):
        return f"{plural(len(shapes), 'tensor')} ({texts[0]})", f"{plural(len(other_shapes), 'tensor')} ({texts[1]})"
    # The same in short: one tensor of many differs, or the same types come in another order.
    pairs = zip(zip_longest(shapes, dtypes), zip_longest(other_shapes, other_dtypes), strict=False)
    at, mine, theirs = next((at, *pair) for at, pair in enumerate(pairs, 1) if pair[0] != pair[1])
    return f"{_tensor(*mine)} as tensor {at}", f"{_tensor(*theirs)} as tensor {at}"


def _tensor(shape: tuple[int, ...] | None, dtype: str | None) -> str:
    return f"{'' if shape is None else list(shape)} {dtype or ''}".strip()
