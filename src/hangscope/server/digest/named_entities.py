"""What a verdict names, as the server knows it: the machines, the fingerprint, and whether anything is wrong at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hangscope.diagnosis.verdict import Diagnosis, SeenIn
from hangscope.model import Job
from hangscope.server.digest.culprit_code import culprit_frame, module_name
from hangscope.server.digest.fingerprint import Fingerprint, fingerprint
from hangscope.server.intake import plain_values as plain
from hangscope.server.intake.entities import GPU, LINK, NIC, NODE, RANK, Entity, gpu_name


def fingerprint_of(verdict: Diagnosis, job: Job) -> Fingerprint:
    frame = culprit_frame(verdict, job)
    return fingerprint(
        str(verdict.kind),
        verdict.operation.name if verdict.operation else "",
        verdict.operation.group if verdict.operation else "",
        frame.name if frame else "",
        module_name(frame.filename) if frame else "",
        raised=has_raised(verdict),
    )


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
