"""What a task of Ray's starts on each node: reads one request from its input, answers one line of JSON.

It runs as a process of its own out of a folder that the task unpacked, with the standard library alone: the cluster's
Python need not have hangscope. `scan` says which processes are there; `capture` saves them below a folder.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hangscope.incident import manifest
from hangscope.incident.layout import safe_name
from hangscope.incident.node_dir import NodeDir
from hangscope.processes import linux_process, process_facts
from hangscope.processes.process_activity import ActivitySample
from hangscope.processes.target_rights import Rights
from hangscope.recorder.capture.capture_node import NodeCapture
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.capture.snapshot_job import started_at, watched
from hangscope.recorder.live.find_ranks import MOST, RankProcess
from hangscope.safeio.safe_files import read_file
from hangscope.safeio.walk import entries
from hangscope.sources.ray import ray_processes, ray_stacks
from hangscope.sources.ray.ray_processes import RayProcess
from hangscope.sources.ray.schema import NODE_SCHEMA
from hangscope.text import is_own_code

FILE = "ray/processes.json"
BETWEEN_S = 2.0
AT_ONCE = 4
SAMPLES_S = 20.0
_TAIL = 1 << 20
_MOST_LOG_BYTES = 48 << 20
_WORKER_LOG = re.compile(
    r"(?:worker-[0-9a-f]+-(?P<job>[0-9a-f]+)-|python-core-(?:worker|driver)-[0-9a-f]+_)(?P<pid>\d+)\.\w+"
)
_HEAD_LOGS = ("gcs_server.out", "gcs_server.err", "monitor.log", "monitor.err")


def main() -> int:
    asked = json.loads(sys.stdin.read())
    answer = scan(asked) if asked["act"] == "scan" else capture(asked)
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def scan(asked: dict[str, Any]) -> dict[str, Any]:
    """Which workers and drivers run here."""
    found = _processes(asked)
    return {"host": os.uname().nodename, "processes": [process.row() for process in found]}


def _processes(asked: dict[str, Any]) -> list[RayProcess]:
    without = {*asked["without"], os.getpid(), os.getppid()}
    return ray_processes.find(asked["raylet"], asked["drivers"], without)


def capture(asked: dict[str, Any]) -> dict[str, Any]:
    """Save this node's part below the folder: processes with their stacks, ranks as every snapshot does, logs."""
    root = Path(asked["folder"])
    node_dir = NodeDir(root, root / "nodes" / safe_name(asked["node"]))
    processes = _processes(asked)
    ranks = _ranks(processes, asked)
    samples = threading.Thread(target=_save_processes, args=(node_dir, asked, processes), daemon=True)
    samples.start()
    _save_logs(node_dir, asked, processes)
    looked_at = watched(Path("/nonexistent"), ranks) if ranks else []
    programs = tuple(process.pid for process in processes)
    facts = NodeFacts(asked["node"], asked["job"], "0", started_at(asked["raylet"]), programs=programs)
    facts.look_up()
    taken = NodeCapture(node_dir, facts, tuple(looked_at), "snapshot", "asked for", threading.Event())
    taken.take()
    samples.join(SAMPLES_S)
    if samples.is_alive():
        node_dir.gap("stacks of Ray's workers", f"not all were there within {SAMPLES_S:g} s")
    taken.complete()
    return {"node": asked["node"], "ranks": len(ranks), "processes": len(processes)}


def _ranks(processes: list[RayProcess], asked: dict[str, Any]) -> list[RankProcess]:
    """The ranks among them, as whoever saw all nodes says; else by their own environments, where no two are one."""
    given = asked["ranks"]
    if given is not None:
        return [_rank(each.pid, given[str(each.pid)]) for each in processes if str(each.pid) in given]
    found = [_rank(each.pid, numbers) for each in processes if (numbers := _numbers(each, asked)) is not None]
    return found if len({each.rank for each in found}) == len(found) else []


def _numbers(process: RayProcess, asked: dict[str, Any]) -> dict[str, int | None] | None:
    environ = process.environ
    names = ("rank", "world_size", "local_rank", "local_world_size")
    numbers = {name: linux_process.whole_number(environ.get(name.upper(), ""), MOST) for name in names}
    ours = environ.get("RAY_JOB_ID", "") in (*asked["jobs"], "")
    return numbers if ours and numbers["rank"] is not None and numbers["world_size"] is not None else None


def _rank(pid: int, given: dict[str, Any]) -> RankProcess:
    return RankProcess(
        pid=pid,
        rank=given["rank"],
        local_rank=given["local_rank"],
        world_size=given["world_size"],
        local_world_size=given["local_world_size"],
    )


# ---- the processes ---------------------------------------------------------------------------------------------------


def _save_processes(node_dir: NodeDir, asked: dict[str, Any], processes: list[RayProcess]) -> None:
    """Two looks at everybody who is not idle, some seconds apart, and what each used in between."""
    known = frozenset(bytes.fromhex(task) for task in asked["tasks"])
    busy = [process for process in processes if not process.idle]
    rows = {process.pid: {**process.row(), "samples": []} for process in busy}
    before = {process.pid: _used(process) for process in busy}
    _look(rows, known)
    time.sleep(BETWEEN_S)
    for process in busy:
        row = rows[process.pid]
        used = _used(process).since(before[process.pid])
        row["cpu_share"] = round(used.cpu_share, 3)
        row["io_bytes_per_s"] = round(used.bytes_per_s)
        row["works"] = used.works
        row.update(process_facts.describe(process.pid, None))
    _look(rows, known)
    for row in rows.values():
        row["code"] = _code(row)
    written = {"schema": NODE_SCHEMA, "node": asked["node"], "node_id": asked["node_id"], "captured_at": manifest.now()}
    written["idle_workers"] = len(processes) - len(busy)
    node_dir.write_json(FILE, {**written, "processes": list(rows.values())})


def _used(process: RayProcess) -> ActivitySample:
    """What a process has used so far. Below a driver there may be the whole cluster, which `ray.init()` started."""
    if process.kind != "driver":
        return ActivitySample.of(process.pid, time.monotonic())
    stat = linux_process.stat(process.pid)
    return ActivitySample(time.monotonic(), stat.cpu_seconds if stat is not None else 0.0, 0)


def _look(rows: dict[int, dict[str, Any]], known: frozenset[bytes]) -> None:
    """One sample of each, some at a time."""
    left = list(rows)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not left:
                    return
                pid = left.pop(0)
            try:
                rows[pid]["samples"].append(ray_stacks.threads(pid, known))
            except ray_stacks.NoStack as none:
                rows[pid]["no_stack"] = str(none)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(AT_ONCE)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(SAMPLES_S)


def _code(row: dict[str, Any]) -> dict[str, str]:
    """The text of each line of the user's own that its stacks show, from files that are older than the process."""
    found: dict[str, str] = {}
    stat = linux_process.stat(row["pid"])
    if stat is None:
        return found
    began_at = time.time() - linux_process.age_s(stat)
    places = {(f[1], f[2]) for sample in row["samples"] for thread in sample for f in thread["frames"]}
    for file, line in sorted(place for place in places if is_own_code(place[0]) and place[0].endswith(".py"))[:100]:
        try:
            if os.stat(file).st_mtime > began_at:
                continue
            lines = Rights().read(Path(file), 4 << 20).decode("utf-8", "replace").splitlines()
        except OSError:
            continue
        if 0 < line <= len(lines):
            found[f"{file}:{line}"] = lines[line - 1].strip()[:200]
    return found


# ---- the session's logs ----------------------------------------------------------------------------------------------


def _save_logs(node_dir: NodeDir, asked: dict[str, Any], processes: list[RayProcess]) -> None:
    """The ends of the logs of this node's workers, its raylet and, on the head, Ray's own store of the cluster."""
    folder = _log_folder(asked["raylet"])
    if folder is None:
        node_dir.gap("Ray's session logs", "the raylet's command does not say where they are")
        return
    pids = {process.pid for process in processes}
    names = [name for name in _names(folder) if _is_wanted(name, pids, asked)]
    paths = [*(folder / name for name in names), *_raylet_logs(asked["raylet"], folder)]
    paths += [folder / "train" / name for name in _names(folder / "train") if asked["head"]]
    room = _MOST_LOG_BYTES
    for path in dict.fromkeys(paths):
        try:
            data = read_file(path, min(_TAIL, room), follow=False, tail=True)
        except OSError as error:
            node_dir.gap(f"Ray's log {path.name}", error.strerror or str(error))
            continue
        if data:
            node_dir.write(f"ray/logs/{path.name}", data)
            room -= len(data)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entries(folder))
    except OSError:
        return []  # there is one only where Ray Train ran


def _is_wanted(name: str, pids: set[int], asked: dict[str, Any]) -> bool:
    worker = _WORKER_LOG.fullmatch(name)
    if worker is not None and worker["job"] is not None:
        ours = worker["job"] in asked["jobs"]
        return ours and int(worker["pid"]) in {*pids, *asked["ended"]}
    if worker is not None:
        return int(worker["pid"]) in pids
    return bool(asked["head"]) and (name in _HEAD_LOGS or name.startswith("job-driver-"))


def _log_folder(raylet: int) -> Path | None:
    for word in linux_process.command_line(raylet):
        for option in ("--log_dir=", "--log-dir="):
            if word.startswith(option):
                return Path(word.removeprefix(option))
    return None


def _raylet_logs(raylet: int, folder: Path) -> list[Path]:
    """Where the raylet itself writes: several may share one folder."""
    return [path for path in process_facts.redirected_output(raylet) if path.parent == folder]


if __name__ == "__main__":
    sys.exit(main())
