"""Which decoder reads pickled dumps here: the C one (native/dump_decoder.c) where it was built, else Python."""

from __future__ import annotations

import os

try:
    from hangscope.reader.dumps import _decoder
except ImportError:  # installed without a C compiler
    _decoder = None  # type: ignore[assignment]

VARIABLE = "HANGSCOPE_DECODER"
"""``python`` in this variable of the environment has everything read by Python."""


def built() -> bool:
    """Whether the C decoder is here."""
    return _decoder is not None


def in_use() -> bool:
    """Whether pickled dumps are read by the C decoder."""
    return built() and os.environ.get(VARIABLE) != "python"


def decode(data: bytes, limits: tuple[int, ...], handed_over: object) -> tuple[object, ...] | None:
    """What the C decoder found; None where the Python reader has to read these bytes."""
    return _decoder.decode(data, limits, handed_over) if in_use() else None
