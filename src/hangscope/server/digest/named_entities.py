"""What a verdict names, as the server knows it: the machines, the fingerprint, and whether anything is wrong at all."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from typing import Any

from hangscope.diagnosis.verdict import Culprit, Diagnosis, LogFact, SeenIn
from hangscope.failure_kinds import FailureKind
from hangscope.model import Job
from hangscope.server.digest.culprit_code import culprit_frame, module_name
from hangscope.server.digest.fingerprint import Fingerprint, fingerprint
from hangscope.server.intake import plain_values as plain
from hangscope.server.intake.entities import GPU, LINK, NIC, NODE, RANK, Entity, gpu_name


def fingerprint_of(verdict: Diagnosis, job: Job) -> Fingerprint:
    frame = culprit_frame(verdict, job)
    raised = has_raised(verdict)
    return fingerprint(
        str(verdict.kind),
        verdict.operation.name if verdict.operation else "",
        verdict.operation.group if verdict.operation else "",
        frame.name if frame else "",
        module_name(frame.filename) if frame else "",
        raised=raised,
        cause=_raised_type(verdict, job) if raised else _cause(verdict, job),
        places=_places(verdict),
    )


_MOST_PLACES = 4
"""What is named in more places than that is not where it happened."""
_STATES = {"T": "stopped", "t": "traced", "D": "uninterruptible"}


def _places(verdict: Diagnosis) -> list[str]:
    """Where it happened, as an operator goes there: both ends of a link, in whichever direction; else nodes, with
    their GPU where that is known."""
    if verdict.link is not None:
        ends = [end.node for end in (verdict.link.sender, verdict.link.receiver)]
        return [plain.clean(end, 80) for end in ends if end]
    of_gpu = str(verdict.kind) == "gpu"
    found = {
        plain.clean(f"{each.node} {_slot(each)}" if of_gpu else each.node, 120)
        for each in verdict.culprits
        if each.node
    }
    found |= {plain.clean(each.node, 120) for each in verdict.unranked if each.node}
    return sorted(found) if len(found) <= _MOST_PLACES else []


def _slot(culprit: Culprit) -> str:
    """Which GPU of its node, as far as anything says so."""
    if culprit.gpu:
        return culprit.gpu
    return "" if culprit.local_rank is None else f"local rank {culprit.local_rank}"


def _raised_type(verdict: Diagnosis, job: Job) -> str:
    ranks = {culprit.rank for culprit in verdict.culprits}
    types = [error.type for error in job.facts.errors if error.rank in ranks and not error.consequence]
    return plain.clean(types[0].rpartition(".")[2], 80) if types else str(FailureKind.EXCEPTION)


def _cause(verdict: Diagnosis, job: Job) -> str:
    """What is known of why, beside the kind: an Xid, a signal, a state, which resource was used up."""
    kind = str(verdict.kind)
    if kind in ("gpu", "resources"):
        return next((said for fact in verdict.facts if (said := _of_fact(fact, kind))), "")
    ranks = {culprit.rank for culprit in verdict.culprits}
    processes = [process for process in job.facts.processes if process.rank in ranks]
    if kind == "dead":
        return next((_ended(each.exit_status) for each in processes if each.exit_status is not None), "")
    if kind == "frozen":
        return next((_STATES[each.state] for each in processes if each.state in _STATES), "")
    return ""


def _of_fact(fact: LogFact, kind: str) -> str:
    found = next((each for each in FailureKind if each.value == fact.kind), None)
    if found is None:
        return ""
    if kind == "gpu":
        return f"Xid {fact.code}" if found is FailureKind.XID and fact.code is not None else ""
    return found.value.replace("_", " ") if str(found.accuses) == kind else ""


def _ended(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def has_raised(verdict: Diagnosis) -> bool:
    """Whether what is accused is the program's own exception."""
    return any(c.where is not None and c.where.seen_in == SeenIn.TRACEBACK for c in verdict.culprits)


def accused(verdict: Diagnosis, nodes: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[Entity, str]]:
    """Nodes, GPUs, ranks and links that the verdict names, each with its role in it."""
    for culprit in verdict.culprits:
        yield Entity(RANK, str(culprit.rank)), "culprit"
        if culprit.node:
            node = plain.clean(culprit.node, 200)
            yield Entity(NODE, node), "culprit"
            if culprit.gpu:
                yield Entity(GPU, _gpu(node, culprit.gpu, nodes)), "culprit"
    for unranked in verdict.unranked:
        if unranked.node:
            yield Entity(NODE, plain.clean(unranked.node, 200)), "culprit"
    link = verdict.link
    if link is None:
        return
    ends = [plain.clean(end.node or "", 200) for end in (link.sender, link.receiver)]
    if all(ends):
        yield Entity(LINK, f"{ends[0]} -> {ends[1]}"), "link"
    for end, node in zip((link.sender, link.receiver), ends, strict=True):
        if node:
            yield Entity(NODE, node), "link"
            if end.nic:
                yield Entity(NIC, f"{node}/{plain.clean(end.nic, 100)}"), "link"


def _gpu(node: str, slot: str, nodes: Mapping[str, Mapping[str, Any]]) -> str:
    for gpu in plain.items(nodes.get(node, {}), "gpus", 64):
        if isinstance(gpu, dict) and gpu.get("pci") == slot:
            return gpu_name(node, gpu)
    return f"{node}/{plain.clean(slot, 40)}"
