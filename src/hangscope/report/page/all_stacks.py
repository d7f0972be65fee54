"""All ranks' stacks as one tree, as the terminal shows it."""

from __future__ import annotations

from typing import Any

from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Job
from hangscope.report.stack_lines import Look, stack_lines
from hangscope.report.stack_tree import stack_tree

_WIDTH = 110
_LINES = 240
_OPEN = 40
"""So many lines are shown at once; more are behind a click."""


def all_stacks(diagnosis: Diagnosis, job: Job) -> dict[str, Any] | None:
    """Lines of pieces (text, role); None where fewer than two ranks have a stack."""
    tree = stack_tree(job)
    if len(tree.ranks) < 2:
        return None
    culprits = frozenset(culprit.rank for culprit in diagnosis.culprits)
    about, _, *lines = stack_lines(tree, Look(_WIDTH, culprits=culprits, most=_LINES))
    return {
        "about": "".join(piece.text for piece in about),
        "lines": [[(piece.text, piece.role) for piece in line] for line in lines],
        "open": len(lines) <= _OPEN,
    }
