"""The nodes and groups that the page can be filtered by, with their ranks."""

from __future__ import annotations

from typing import Any

from hangscope.model import Job
from hangscope.report.page.page_text import SHORT, rank_runs, shown
from hangscope.report.page.timeline import group_labels

_GROUPS = 400


def places(job: Job, hung: int | None) -> dict[str, Any]:
    """[name, ranks] of every node and of the groups, the one of the hung operation first."""
    homes: dict[str, list[int]] = {}
    for rank in job.ranks:
        if node := job.nodes.get(rank):
            homes.setdefault(shown(node, SHORT), []).append(rank)
    labels = group_labels(job)
    order = sorted((g for g in job.groups if g.members), key=lambda g: (g.index != hung, g.index))
    members: dict[str, set[int]] = {}
    for group in order[:_GROUPS]:
        members.setdefault(labels[group.index], set()).update(group.members or ())
    return {
        "nodes": [[name, rank_runs(ranks)] for name, ranks in homes.items()],
        "groups": [[name, rank_runs(ranks)] for name, ranks in members.items()],
        "more_groups": max(len(order) - _GROUPS, 0),
    }
