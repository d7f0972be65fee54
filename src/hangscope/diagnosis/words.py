"""Small pieces of wording that several rules share."""

from __future__ import annotations

from collections.abc import Iterable

from hangscope.model import Operation


def ranks_text(ranks: Iterable[int], limit: int = 12) -> str:
    """``rank 3``, ``ranks 0-2, 5``; long lists end in a count."""
    ordered = sorted(set(ranks))
    if not ordered:
        return "no rank"
    runs: list[tuple[int, int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    parts = [str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs]
    shown = ", ".join(parts[:limit])
    if len(parts) > limit:
        shown += f" and {sum(b - a + 1 for a, b in runs[limit:])} more"
    return f"rank {shown}" if len(ordered) == 1 else f"ranks {shown}"


def size_text(count: int | None) -> str:
    """Bytes as people say them."""
    if count is None:
        return "an unknown size"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{value:.4g} {unit}"
        value /= 1024
    return f"{count} B"


def shape_text(operation: Operation) -> str:
    """Sizes and types of one call: ``[65536] Float``."""
    shapes = operation.input_shapes or operation.output_shapes
    sizes = " ".join(str(list(s)) for s in shapes[:3]) + (" …" if len(shapes) > 3 else "")
    types = ", ".join(sorted(set(operation.input_dtypes or operation.output_dtypes)))
    return f"{sizes} {types}".strip() or "no tensor"


def seconds_text(seconds: float) -> str:
    """``12.1 s``, ``30m 02s``, ``2h 05m``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)}m {int(seconds % 60):02d}s"
    return f"{int(seconds // 3600)}h {int(seconds % 3600 // 60):02d}m"


def plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
