"""Nodes that the next start of a job should avoid: those that the evidence itself shows to be broken.

A rank that hangs in its own code hangs on any node, and so does one whose GPU kernel is wrong. So a node is named only
where the verdict is about its ranks, and the scheduler, the other nodes or the driver says that the machine failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hangscope.diagnosis.hardware.xids import EFFECTS
from hangscope.diagnosis.verdict import CauseKind, Diagnosis
from hangscope.model import FailureKind, Job, Trait

OF_THE_PROGRAM = frozenset({13, 31, 94})
"""Xids that a program's own kernel causes on a healthy GPU."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
"""It becomes part of a command line: whatever is in a log, no blank and no comma is."""
_KINDS = (CauseKind.DEAD, CauseKind.GPU, CauseKind.FROZEN)


@dataclass(frozen=True, slots=True)
class BrokenNode:
    node: str
    why: str


def broken_nodes(job: Job, verdict: Diagnosis) -> list[BrokenNode]:
    """Each node to avoid, with the reason; none where the verdict is about something else than a node, or unsure. The
    scheduler's word for a node that failed is enough, also where nothing says which ranks ran there."""
    if verdict.kind not in _KINDS:
        return []
    machines = job.facts.machines
    accused = {machines.get(culprit.node, culprit.node) for culprit in verdict.culprits if culprit.node}
    ranks = {culprit.rank for culprit in verdict.culprits}
    found: dict[str, BrokenNode] = {}
    for sign in _signs(job):
        node = machines.get(sign.node, sign.node)  # a scheduler leaves out machines, and knows nothing of a pod
        about_it = node in accused or not verdict.culprits or (sign.rank is not None and sign.rank in ranks)
        if about_it and _is_believed(sign, verdict, machines) and _NAME.fullmatch(node):
            found.setdefault(node, BrokenNode(node, sign.why))
    return [found[node] for node in sorted(found)]


def _is_believed(sign: _Sign, verdict: Diagnosis, machines: Mapping[str, str]) -> bool:
    """A pod that is silent was deleted or evicted, as a rule: its machine is well."""
    if sign.kind == FailureKind.NODE_SILENT and sign.node in machines:
        return False
    return verdict.is_likely or sign.kind == FailureKind.NODE_FAILED


@dataclass(frozen=True, slots=True)
class _Sign:
    node: str
    kind: str
    why: str
    rank: int | None = None
    """The rank that ran there, where the sign says so."""


def _signs(job: Job) -> Iterator[_Sign]:
    for failure in job.facts.failures:
        if failure.node is None or failure.effect:
            continue
        if failure.kind.is_of(Trait.BROKEN_NODE) or (failure.kind == FailureKind.XID and _is_hardware(failure.code)):
            rank = failure.rank if failure.kind == FailureKind.NODE_SILENT else None
            yield _Sign(failure.node, failure.kind, failure.text, rank)
    for message in job.facts.kernel:
        if message.kind == "xid" and message.node is not None and _is_hardware(message.code):
            yield _Sign(message.node, FailureKind.XID, f"Xid {message.code}")


def _is_hardware(code: int | None) -> bool:
    return code is not None and code not in EFFECTS and code not in OF_THE_PROGRAM
