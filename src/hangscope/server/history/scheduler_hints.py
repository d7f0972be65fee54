"""What an operator could do about a suspect, as commands and files to look at: nothing of it is done by itself."""

from __future__ import annotations

import json
import re
import shlex

from hangscope.server.history.suspicion import Suspect

_NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
REASON = "hangscope:"
"""Slurm's tools tell whose drain it is by how its reason begins."""


def node_of(suspect: Suspect) -> str | None:
    """The node to take out for a suspect, where it is one or belongs to one by its name."""
    if suspect.kind == "node":
        return suspect.name
    return suspect.name.rpartition("/")[0] or None if suspect.kind in ("nic", "gpu") else None


def hints(suspect: Suspect) -> list[str]:
    """Commands for Slurm and Kubernetes. A name that no node can have is not made into a command."""
    node = node_of(suspect)
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


def node_condition(suspect: Suspect) -> str:
    """A NodeCondition for Kubernetes as JSON, for `kubectl patch node NODE --subresource=status --patch-file FILE`."""
    said = f"{suspect.kind} {suspect.name} named in {suspect.named} of {suspect.jobs} jobs"
    condition = {"type": "HangscopeSuspect", "status": "True", "reason": "NamedByVerdicts", "message": said}
    return json.dumps({"status": {"conditions": [condition]}}, indent=1)
