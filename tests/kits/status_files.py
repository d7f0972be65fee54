"""Status files of a job that never ran, as its agents would write them: for `watch` at sizes that no test machine has.

python tests/kits/status_files.py DIR [--nodes 128] [--moving]      write them; --moving keeps them fresh until Ctrl-C
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

PER_NODE = 8


def write(root: Path, *, nodes: int = 128, held: int | None = 77, gone: int | None = None, step: int = 900) -> None:
    """A mesh of tensor parallel groups on each node and data parallel groups over all nodes.

    Rank `held` has not launched its data parallel all_reduce: the others of that group wait for it, and their tensor
    parallel neighbours wait for them. Rank `gone` has been killed.
    """
    root.mkdir(parents=True, exist_ok=True)
    (root / "run.json").write_text(json.dumps({"schema": "hangscope.run/1", "job": "big", "attempt": "0"}))
    for node in range(nodes):
        folder = root / "nodes" / f"gpu-{node:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        ranks = [_rank(node, local, nodes, held, gone, step) for local in range(PER_NODE)]
        value = {
            "schema": "hangscope.status/1",
            "node": f"gpu-{node:03d}",
            "job": "big",
            "attempt": "0",
            "at": time.time(),
            "world_size": nodes * PER_NODE,
            "local_world_size": PER_NODE,
            "threshold_s": 30.0,
            "ended": None,
            "captures": [],
            "live": ranks,
        }
        (folder / "status.json").write_text(json.dumps(value))


def _rank(node: int, local: int, nodes: int, held: int | None, gone: int | None, step: int) -> dict[str, Any]:
    rank = node * PER_NODE + local
    lane = held is not None and local == held % PER_NODE
    behind = rank == held
    waits = None
    if lane and not behind:
        waits = _waits("mesh_dp", f"dp{local}", "all_reduce", step, 45.0)
    elif held is not None and not lane:
        waits = _waits("mesh_tp", f"tp{node}", "all_gather", 8 * step + 1, 44.0)
    groups = [
        _group("mesh_dp", f"dp{local}", nodes, step - behind, step - 1),
        _group("mesh_tp", f"tp{node}", PER_NODE, 8 * step + (0 if lane or held is None else 1), 8 * step),
    ]
    return {
        "rank": rank,
        "pid": 40_000 + rank,
        "code": {"file": "/job/train.py", "line": 8, "function": "save"} if behind else None,
        "local_rank": local,
        "state": "gone" if rank == gone else "S",
        "exit_status": -9 if rank == gone else None,
        "last_poll_at": time.time() - 1,
        "rate": 0.0 if held is not None else 12.0 + local / 10,
        "waiting": waits if rank != gone else None,
        "groups": groups,
    }


def _waits(group: str, name: str, operation: str, seq: int, for_s: float) -> dict[str, Any]:
    return {"group": group, "name": name, "operation": f"{operation} #{seq}", "seq": seq, "for_s": for_s}


def _group(label: str, name: str, size: int, enqueued: int, completed: int) -> dict[str, Any]:
    return {
        "recorder": "nccl",
        "group": label,
        "name": name,
        "size": size,
        "enqueued": enqueued,
        "completed": completed,
        "still_s": 45.0,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--moving", action="store_true")
    given = parser.parse_args()
    moment = 900
    while True:
        write(given.directory, nodes=given.nodes, held=77 if moment % 20 >= 10 else None, step=moment)
        if not given.moving:
            break
        moment += 1
        time.sleep(1)
