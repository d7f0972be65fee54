"""The rows of the matrix: ranks that look alike are one row with a count, so that what differs stands out."""

from __future__ import annotations

from typing import Any

import numpy as np

from hangscope.diagnosis.align.column_tools import Ints
from hangscope.model import Job
from hangscope.report.page.matrix_cells import Cells, text_of
from hangscope.report.page.page_text import SHORT, rank_runs, shown
from hangscope.report.rank_strip import Letters
from hangscope.text import plural, spans

_FEW = 64
"""Up to so many ranks have a row each."""
_ROWS = 120
_AT_FAULT = "X><-"
"""Letters of the rank strip that accuse."""


def fold(job: Job, ranks: Ints, cells: Cells, letters: Letters) -> list[dict[str, Any]]:
    """One row a rank where there are few; otherwise ranks that look alike together. Those at fault come first."""
    few = len(ranks) <= _FEW
    roles = [letters.by_rank.get(int(rank), "?") for rank in ranks]
    looks = [text_of(row) for row in cells] if few else _looks(cells)
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, rank in enumerate(ranks.tolist()):
        alone = few or roles[place] in _AT_FAULT
        alike.setdefault((rank,) if alone else (roles[place], looks[place]), []).append(place)

    def weight(places: list[int]) -> tuple[bool, bool, int]:
        """Those at fault first; in a large job those that nothing is said about last."""
        role = roles[places[0]]
        return role not in _AT_FAULT, not few and role == ".", places[0]

    sets = sorted(alike.values(), key=weight)
    rows = [_row(job, ranks[places].tolist(), roles[places[0]], looks[places[0]]) for places in sets[:_ROWS]]
    if len(sets) > _ROWS:
        rows.append(_rest([ranks[places].tolist() for places in sets[_ROWS:]]))
    return rows


def _row(job: Job, ranks: list[int], role: str, look: str) -> dict[str, Any]:
    nodes = {job.nodes[rank] for rank in ranks if job.nodes.get(rank)}
    node = plural(len(nodes), "node") if nodes else ""
    if len(nodes) == 1:
        node = shown(nodes.pop(), SHORT)
    return {
        "ranks": rank_runs(ranks),
        "label": spans(ranks, limit=2),
        "count": len(ranks),
        "node": node,
        "role": role,
        "cells": look,
    }


def _rest(sets: list[list[int]]) -> dict[str, Any]:
    ranks = [rank for alike in sets for rank in alike]
    return {
        "ranks": rank_runs(ranks),
        "label": f"{plural(len(ranks), 'more rank')}, with {plural(len(sets), 'other pattern')}",
        "count": len(ranks),
        "node": "",
        "role": ".",
        "cells": "",
    }


def _looks(cells: Cells) -> list[str]:
    if not cells.shape[1]:
        return [""] * len(cells)
    distinct, index = np.unique(cells, axis=0, return_inverse=True)
    texts = [text_of(row) for row in distinct]
    return [texts[i] for i in index.reshape(-1).tolist()]
