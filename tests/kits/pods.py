"""Pods as `kubectl get pods -o json` has them, in the states that a training job meets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kits.small_dumps import entry, group, packed, top

RUNNING = {"running": {"startedAt": "2026-09-21T12:00:00Z"}}
"""Some hours before `small_dumps.T0`."""


def pod(name: str, machine: str = "gpu-a", job: str = "train", **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ml", "labels": {"job-name": job}, **status.pop("metadata", {})}
    asked = {"name": "train", "command": ["hangscope", "run"], "resources": {"limits": {"memory": "64Gi"}}}
    spec = {"nodeName": machine, "containers": [asked]}
    status.setdefault("phase", "Running")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def container(state: dict[str, Any], last: dict[str, Any] | None = None, restarts: int = 0) -> dict[str, Any]:
    """What a status says of its one container."""
    said = {"name": "train", "restartCount": restarts, "state": state, "lastState": last or {}}
    return {"containerStatuses": [said]}


def ended(code: int, reason: str = "Error", at: str = "2026-09-21T13:30:00Z", **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at, **more}}


def event(name: str, reason: str, message: str, **more: Any) -> dict[str, Any]:
    about = {"kind": "Pod", "namespace": "ml", "name": name}
    return {"apiVersion": "v1", "kind": "Event", "involvedObject": about, "reason": reason, "message": message, **more}


def listed(*items: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})


def hung_job(folder: Path, *items: dict[str, Any], ranks: int = 4, gone: int | None = 2) -> Path:
    """A rank a pod, `train-RANK`; all wait in the second all_reduce but rank `gone`, of which nothing is left."""
    for rank in range(ranks):
        if rank != gone:
            waits = {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
            entries = [entry(0, 1), entry(1, 2, **waits)]
            file = folder / f"train-{rank}" / f"nccl_trace_rank_{rank}"
            file.parent.mkdir(parents=True)
            file.write_bytes(packed(top(entries, group("0", "default_pg", *range(ranks)))))
    (folder / "pods.json").write_text(listed(*items))
    return folder
