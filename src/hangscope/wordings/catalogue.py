"""All rows, in the order in which they are tried; and the words that lines have to hold to be looked at."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from hangscope.wordings import (
    amd,
    ascend,
    engines,
    gloo,
    horovod,
    intel,
    jax,
    kubernetes,
    mpi,
    neuron,
    ray,
    storage,
    tpu,
    transfers,
    ucx,
)
from hangscope.wordings.read_elsewhere import READ_ELSEWHERE
from hangscope.wordings.wording import Wording

ROWS: tuple[Wording, ...] = (
    *jax.ROWS,
    *tpu.ROWS,
    *gloo.ROWS,
    *horovod.ROWS,
    *ascend.ROWS,
    *amd.ROWS,
    *intel.ROWS,
    *neuron.ROWS,
    *mpi.ROWS,
    *ucx.ROWS,
    *transfers.ROWS,
    *engines.ROWS,
    *ray.ROWS,
    *kubernetes.ROWS,
    *storage.ROWS,
)


@cache
def words() -> tuple[str, ...]:
    """What lines of failure hold: every line of a wording has one of these."""
    return tuple(sorted({word for row in (*ROWS, *READ_ELSEWHERE) for word in row.words}))


def words_beyond(parts: Iterable[str]) -> tuple[str, ...]:
    """The words that hold none of these parts, for one who looks for the parts anyhow."""
    known = tuple(parts)
    return tuple(word for word in words() if not any(part in word for part in known))


@cache
def _any() -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted({word for row in ROWS for word in row.words}))))


def begun(text: str) -> tuple[Wording, ...]:
    """The wordings of which a line may have the beginning: it holds a word of theirs, and has none whole."""
    if _any().search(text) is None:
        return ()
    rows = tuple(row for row in ROWS if any(word in text for word in row.words))
    return () if any(row.search(text) is not None for row in rows) else rows


def find(text: str) -> Iterator[tuple[Wording, re.Match[str]]]:
    """The wordings that a line has, in the order of the rows."""
    if _any().search(text) is None:
        return
    for row in ROWS:
        if (match := row.search(text)) is not None:
            yield row, match
