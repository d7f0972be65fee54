"""What an operator could do about a suspect, as commands and files to look at: nothing of it is done by itself."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence

from hangscope.server.history.suspicion import JobRecord, Suspect

_NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
REASON = "hangscope:"
"""Slurm's tools tell whose drain it is by how its reason begins."""


def node_of(suspect: Suspect, past: Sequence[JobRecord]) -> str | None:
    """The node to take out for a suspect: itself, or the one that verdicts name together with the GPU or the port."""
    if suspect.kind == "node":
        return suspect.name
    if suspect.kind not in ("gpu", "nic"):
        return None
    with_it = [job for job in past if (suspect.kind, suspect.name) in job.accused]
    nodes = Counter(name for job in with_it for kind, name in job.accused if kind == "node")
    return nodes.most_common(1)[0][0] if nodes else None


def hints(suspect: Suspect, node: str | None) -> list[str]:
    """Commands for Slurm and Kubernetes. A name that no node can have is not made into a command."""
    if node is None or _NODE_NAME.fullmatch(node) is None:
        return []
    reason = f"{REASON} {suspect.kind} named in {suspect.named} of {suspect.jobs} jobs"
    word = shlex.quote(node)
    return [
        f"scontrol update nodename={word} state=drain reason={shlex.quote(reason)}",
        f"sbatch --exclude={word} …",
        f"kubectl cordon {word}",
        f"kubectl annotate node {word} {shlex.quote('hangscope.dev/suspect=' + reason)}",
    ]
