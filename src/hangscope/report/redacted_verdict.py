"""A verdict and its job with every name and sentence rewritten: what reports for strangers are made of.

A finished report cannot be redacted like a log: a word replaced in a page's script or its numbers would break it, and a
secret that was broken over two lines of a text is not found any more. So what is shown is rewritten first. Which dumps
count is found out before that, while the logs that tell it are still there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from hangscope.diagnosis.evidence.vet_dumps import vet_dumps
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Facts, Frame, Group, Job, Operations, Tables

Clean = Callable[[str], str]

_OWN = frozenset(("kind", "confidence", "outcome", "state_by_rank"))
"""Fields that hold words of hangscope's own."""


def redacted(diagnosis: Diagnosis, job: Job, clean: Clean) -> tuple[Diagnosis, Job]:
    """Both with `clean` applied to every string that a report can show. `clean` is asked once for each."""
    once = cache(clean)
    job = vet_dumps(job).job
    groups = tuple(_rewritten(group, once) for group in job.groups)
    other = replace(
        job,
        ops=_operations(job.ops, groups, once),
        groups=groups,
        nodes={rank: once(node) for rank, node in job.nodes.items()},
        facts=Facts(
            stacks=_rewritten(job.facts.stacks, once),
            errors=_rewritten(job.facts.errors, once),
            transport=_rewritten(job.facts.transport, once),
            communicators=job.facts.communicators,  # of which the names of network cards are shown
        ),
        gaps=(),
        inputs=_rewritten(job.inputs, once),
        job_id=_rewritten(job.job_id, once),
        attempt=_rewritten(job.attempt, once),
    )
    verdict: Diagnosis = _rewritten(diagnosis, once)
    return verdict, other


def _rewritten(value: Any, clean: Clean) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, tuple):
        return tuple(_rewritten(item, clean) for item in value)
    if isinstance(value, Mapping):
        return {_rewritten(key, clean): _rewritten(item, clean) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        named = [field.name for field in fields(value) if field.name not in _OWN]
        return replace(value, **{name: _rewritten(getattr(value, name), clean) for name in named})
    return value


def _operations(ops: Operations, groups: tuple[Group, ...], clean: Clean) -> Operations:
    """The same rows; names and frames that became the same share a number."""
    tables = Tables()
    names = np.array([tables.add_name(clean(name)) for name in ops.tables.names], dtype=np.int64)
    stacks = np.array([tables.add_stack(_frames(stack, clean)) for stack in ops.tables.stacks], dtype=np.int64)
    columns = dict(ops.columns)
    for column, ids in (("name", names), ("thread", names), ("stack", stacks)):
        columns[column] = ids[ops.column(column)] if len(ops) else ops.columns[column]
    shapes = ("in_shapes", "out_shapes")
    dtypes = ("in_dtypes", "out_dtypes")
    for index in range(1, _most(ops, shapes) + 1):  # in their order, so that their numbers stay
        tables.add_shapes(ops.tables.shapes(index))
    for index in range(1, _most(ops, dtypes) + 1):
        tables.add_dtypes(ops.tables.dtypes(index))
    return Operations(columns, tables, groups)


def _most(ops: Operations, columns: tuple[str, ...]) -> int:
    return max(int(ops.column(column).max(initial=0)) for column in columns)


def _frames(stack: tuple[Frame, ...], clean: Clean) -> tuple[Frame, ...]:
    return tuple(Frame(clean(frame.name), clean(frame.filename), frame.line) for frame in stack)
