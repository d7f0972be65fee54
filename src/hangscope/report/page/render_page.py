"""Puts the page together: text by the template, which escapes it; numbers as data that only the script reads.

The page's policy allows the two blocks that stand in it, by their checksum, and nothing else: no request leaves it, and
a script that evidence smuggled in would not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from hangscope.__about__ import __version__
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.errors import LeftOut, contained
from hangscope.model import Job
from hangscope.report.op_times import OpTimes, op_times
from hangscope.report.page.lateness import lateness
from hangscope.report.page.matrix import matrix
from hangscope.report.page.matrix_cells import legend
from hangscope.report.page.moments import moments
from hangscope.report.page.page_head import answer
from hangscope.report.page.page_text import SHORT, rank_runs, shown
from hangscope.report.page.stack_diff import stacks
from hangscope.report.page.timeline import group_labels, timeline
from hangscope.report.page.wait_boxes import waits
from hangscope.report.rank_strip import assign
from hangscope.report.stack_lines import Look, stack_lines
from hangscope.report.stack_tree import stack_tree
from hangscope.report.terminal import render_text
from hangscope.report.verdict_text import brief, iso

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


SCRIPTS = ("page.js", "matrix.js", "timeline.js")


def render_page(diagnosis: Diagnosis, job: Job, times: OpTimes | None = None) -> str:
    """The whole page as HTML. What is drawn is the job as the engine judged it, which `times` holds. A part that cannot
    be drawn is left out and named; where that is the page's frame, the page has the text of the report."""
    try:
        return _render(diagnosis, job, times)
    except Exception as error:
        return _text_page(diagnosis, contained(error))


def _text_page(diagnosis: Diagnosis, why: str) -> str:
    """The report as text, with the page's policy: nothing is loaded, and nothing runs."""
    said = escape(f"This page could not be drawn ({why}). The report as text:\n\n{render_text(diagnosis)}")
    policy = "default-src 'none'"
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}"><title>hangscope</title>'
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body><pre>{said}</pre></body></html>\n'


def _render(diagnosis: Diagnosis, job: Job, times: OpTimes | None) -> str:
    left_out = LeftOut()
    d = brief(diagnosis)
    times = op_times(job) if times is None else times
    job = times.job
    when = moments(d, times)
    letters = assign(d)
    drawn = matrix(d, times, when, letters)
    line = timeline(d, times, when, letters)
    style = _file("page.css")
    script = "\n".join(_file(name) for name in SCRIPTS)
    page: str = _template().render(
        version=__version__,
        style=style,
        script=script,
        style_sum=_checksum(style),
        script_sum=_checksum(script),
        answer=answer(d, job),
        zero=iso(when.zero_ns),
        deviation=when.deviation_text,
        roles=[(letter, shown(says)) for letter, says in letters.meaning.items()],
        legend=legend([row["cells"] for row in drawn["rows"]]),
        matrix=drawn,
        timeline={name: line[name] for name in ("said", "clocks", "zero_text")},
        has_times=bool(times.known.any()),
        waits=left_out.one("the graph of waits", lambda: waits(d, times.alignment)),
        stacks=left_out.one("the stacks of two ranks", lambda: stacks(d, times.alignment, when)),
        tree=left_out.one("all stacks", lambda: all_stacks(d, job)),
        lateness=left_out.one("who is late", lambda: lateness(d, times)),
        left_out=left_out.reasons,
        data=_data(
            {
                "matrix": drawn,
                "timeline": line,
                "places": places(job, when.group),
                "roles": {letter: shown(says) for letter, says in letters.meaning.items()},
            }
        ),
    )
    return page


@cache
def _template() -> Any:
    """Compiled once: a server draws thousands of pages, and compiling takes longer than drawing a small one."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_file("page.html"))


@cache
def _file(name: str) -> str:
    return resources.files("hangscope.report.page").joinpath(name).read_text(encoding="utf-8")


def _checksum(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _data(value: dict[str, Any]) -> str:
    """JSON that cannot end the block it stands in, whatever names the evidence holds."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
