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

_OWN = frozenset(("kind", "confidence", "outcome", "state_by_rank", "seen_in"))
"""Fields that hold words of hangscope's own."""
_HOSTS = frozenset(("node", "nodes", "host", "peer_node"))
"""Fields that hold names of hosts: such a name may be a word, and is known by its place alone."""


class _Rewriter:
    """Rewrites the strings of values, each once: names of hosts in one way, all else in another."""

    def __init__(self, clean: Clean, clean_host: Clean) -> None:
        self.text = cache(clean)
        self.host = cache(clean_host)

    def value(self, value: Any, clean: Clean | None = None) -> Any:
        """With every string in it rewritten."""
        clean = clean or self.text
        if isinstance(value, str):
            return clean(value)
        if isinstance(value, tuple):
            return tuple(self.value(item, clean) for item in value)
        if isinstance(value, Mapping):
            return {self.value(key, clean): self.value(item, clean) for key, item in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **self._fields(value))
        return value

    def _fields(self, value: Any) -> dict[str, Any]:
        named = [field.name for field in fields(value) if field.name not in _OWN]
        return {name: self.value(getattr(value, name), self.host if name in _HOSTS else self.text) for name in named}


def redacted(diagnosis: Diagnosis, job: Job, clean: Clean, clean_host: Clean | None = None) -> tuple[Diagnosis, Job]:
    """Both with `clean` applied to every string that a report can show, and `clean_host` to the names of hosts. Each is
    asked once for the same string."""
    rewriter = _Rewriter(clean, clean_host or clean)
    once = rewriter.text
    job = vet_dumps(job).job
    groups = tuple(rewriter.value(group) for group in job.groups)
    other = replace(
        job,
        ops=_operations(job.ops, groups, once),
        groups=groups,
        nodes={rank: rewriter.host(node) for rank, node in job.nodes.items()},
        facts=Facts(
            stacks=rewriter.value(job.facts.stacks),
            errors=rewriter.value(job.facts.errors),
            transport=rewriter.value(job.facts.transport),
            communicators=job.facts.communicators,  # of which the names of network cards are shown
        ),
        gaps=(),
        inputs=rewriter.value(job.inputs),
        job_id=rewriter.value(job.job_id),
        attempt=rewriter.value(job.attempt),
    )
    verdict: Diagnosis = rewriter.value(diagnosis)
    return verdict, other


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
