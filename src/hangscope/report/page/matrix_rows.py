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


def fold(job: Job, ranks: Ints, cells: Cells, letters: Letters) -> list[dict[str, Any]]:
    """One row a rank where there are few; otherwise ranks that look alike together. Those at fault come first."""
    role = [letters.by_rank.get(int(rank), "?") for rank in ranks]
    looks = [text_of(row) for row in cells] if len(ranks) <= _FEW else _looks(cells)
    homes = [job.nodes.get(int(rank), "") for rank in ranks]
    keys: dict[tuple[object, ...], list[int]] = {}
    for place, rank in enumerate(ranks.tolist()):
        alone = len(ranks) <= _FEW or role[place] in "X><-"
        keys.setdefault((rank,) if alone else (role[place], looks[place]), []).append(place)

    def weight(places: list[int]) -> tuple[bool, bool, int]:
        """Those at fault first; in a large job those that nothing is said about last."""
        return role[places[0]] not in "X><-", len(ranks) > _FEW and role[places[0]] == ".", places[0]

    sets = sorted(keys.values(), key=weight)
    rows = []
    for places in sets[:_ROWS]:
        nodes = list(dict.fromkeys(homes[place] for place in places if homes[place]))
        mine = [int(ranks[place]) for place in places]
        rows.append(
            {
                "ranks": rank_runs(mine),
                "label": spans(mine, limit=2),
                "count": len(places),
                "node": shown(nodes[0], SHORT) if len(nodes) == 1 else (plural(len(nodes), "node") if nodes else ""),
                "role": role[places[0]],
                "cells": looks[places[0]],
            }
        )
    rest = sets[_ROWS:]
    if rest:
        left = [int(ranks[place]) for places in rest for place in places]
        rows.append(
            {
                "ranks": rank_runs(left),
                "label": f"{plural(len(left), 'more rank')}, of {plural(len(rest), 'other look')}",
                "count": len(left),
                "node": "",
                "role": ".",
                "cells": "",
            }
        )
    return rows


def _looks(cells: Cells) -> list[str]:
    if not cells.shape[1]:
        return [""] * len(cells)
    distinct, index = np.unique(cells, axis=0, return_inverse=True)
    texts = [text_of(row) for row in distinct]
    return [texts[i] for i in index.reshape(-1).tolist()]
