"""A capture now, of a job that runs: by its agents where they live, else by ourselves on this node."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from hangscope.errors import NotFoundError
from hangscope.incident import manifest
from hangscope.incident.layout import safe_name
from hangscope.recorder import process, shared, workers
from hangscope.recorder.evidence import Capture, Node
from hangscope.recorder.identity import identify
from hangscope.recorder.part import Part
from hangscope.recorder.polling import Polling
from hangscope.recorder.ranks import Rank

AGENTS_S = 45.0


def of_run(root: Path, say: Callable[[str], None]) -> Path:
    """Capture the run whose directory is `root`. Returns the incident.

    Its agents do it, on all nodes at once. Where they are gone (killed, say) this node's ranks are asked directly.
    """
    states = {path: shared.read(path) for path in root.glob(f"nodes/*/{shared.STATUS}")}
    if not states:
        raise NotFoundError(
            f"{root}: no run of hangscope", hint="give the directory that `hangscope run` uses, or a pid"
        )
    alive = [path for path, state in states.items() if state.get("ended") is None and _fresh(path)]
    number = 1
    while shared.marked(shared.incident(root, "snapshot", number)) is not None:
        number += 1
    incident = shared.incident(root, "snapshot", number)
    if alive:
        shared.mark(incident, node="snapshot", reason="snapshot", detail="asked for")
        if _await(incident, alive):
            return incident
        say("the agents did not answer in time; capturing what this node shows")
    for path, state in states.items():
        sockets = state.get("sockets")
        if isinstance(sockets, str) and Path(sockets).is_dir():
            command = state.get("command_pid")
            node = Node(str(state.get("node")), str(state.get("job")), str(state.get("attempt")), _started(command))
            ranks = _ranks(Path(sockets), command if isinstance(command, int) else None)
            if ranks:
                return _capture(incident, path.parent.name, node, ranks)
    raise NotFoundError(
        f"{root}: no rank of this run answers on this node", hint="run it where the ranks run, or give a rank's pid"
    )


def of_process(pid: int, directory: Path | None, say: Callable[[str], None]) -> Path:
    """Capture the job that `pid` belongs to: its launcher or one of its ranks."""
    if process.stat(pid) is None:
        raise NotFoundError(f"{pid}: no such process on this node")
    environ = process.environment(pid)
    if environ.get("HANGSCOPE_DIR") and directory is None and Path(environ["HANGSCOPE_DIR"]).is_dir():
        return of_run(Path(environ["HANGSCOPE_DIR"]), say)
    identity = identify(environ)
    sockets = Path(environ.get("HANGSCOPE_SOCKETS", "/nonexistent"))
    ranks = _ranks(sockets, pid)
    if not ranks:
        raise NotFoundError(
            f"{pid}: no rank of a distributed job is this process or runs below it",
            hint="give the pid of a rank or of its launcher; ranks are told by RANK in their environment",
        )
    incident = directory or Path("hangscope") / f"snapshot-{identity.job}"
    root, identity = shared.claim(incident.absolute(), identity)
    node = Node(identity.node, identity.job, identity.attempt, _started(pid))
    return _capture(root, safe_name(identity.node), node, ranks)


def _ranks(sockets: Path, pid: int | None) -> list[Rank]:
    polling = Polling(sockets)
    if pid is not None:
        for worker in workers.below(_top(pid)):
            assert worker.rank is not None
            polling.ranks[worker.rank] = Rank.of(worker)
    for _ in range(3):  # who is there, which rank a spawned process is, and what groups there are
        polling.turn(None)
    found = list(polling)
    polling.close()
    return found


def _top(pid: int) -> int:
    """The launcher above a rank: the nearest ancestor without RANK in its environment that has other ranks below."""
    told = process.stat(pid)
    if "RANK" not in process.environment(pid) or told is None:
        return pid
    parent = told.parent
    return parent if parent > 1 and len(workers.below(parent)) > 1 else pid


def _started(pid: object) -> float:
    told = process.stat(pid) if isinstance(pid, int) else None
    return time.time() - (process.age_s(told) if told is not None else 0.0)


def _fresh(path: Path) -> bool:
    return time.time() - path.stat().st_mtime < shared.FRESH_S


def _await(incident: Path, alive: list[Path]) -> bool:
    until = time.monotonic() + AGENTS_S
    while time.monotonic() < until:
        nodes = [shared.read(incident / "nodes" / path.parent.name / "node.json") for path in alive]
        if all(node.get("complete") for node in nodes) and (incident / "incident.json").exists():
            return True
        time.sleep(0.2)
    return False


def _capture(incident: Path, folder: str, node: Node, ranks: list[Rank]) -> Path:
    node.look_up()
    part = Part(incident, incident / "nodes" / folder)
    taken = Capture(part, node, tuple(ranks), "snapshot", "asked for", threading.Event())
    taken.take()
    taken.complete()
    sizes = [rank.worker.world_size for rank in ranks if rank.worker.world_size]
    given = manifest.Manifest(
        job=node.job,
        attempt=node.attempt,
        reason="snapshot",
        detail="asked for",
        captured_at=taken.captured_at,
        nodes_expected=(node.name,) if sizes and len(ranks) >= max(sizes) else None,
        world_size=max(sizes, default=None),
    )
    manifest.write(incident, manifest.build(incident, given))
    return incident
