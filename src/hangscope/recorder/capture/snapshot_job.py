"""A capture now, of a job that runs: by its agents where they live, else by ourselves on this node."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hangscope.errors import NotFoundError
from hangscope.incident import manifest
from hangscope.incident.layout import MANIFEST, safe_name
from hangscope.incident.node_dir import NodeDir
from hangscope.processes import linux_process, process_roles, target_rights
from hangscope.processes.target_rights import Rights
from hangscope.recorder.capture import snapshot_gpus
from hangscope.recorder.capture.capture_node import NodeCapture
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.capture.snapshot_target import (
    claim_directory,
    environment_of,
    is_folder,
    is_of_its_writer,
    may_follow,
    refuse_unreadable,
)
from hangscope.recorder.live import find_ranks, outside_look
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.node_ranks import BOX_S
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.two_samples import TwoSamples
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.rundir import peer_files, run_directory
from hangscope.recorder.rundir.job_identity import JobIdentity, identify
from hangscope.recorder.rundir.peer_files import NodeStatus
from hangscope.recorder.setup.blackbox_library import FOLDER
from hangscope.safeio.walk import entries

AGENTS_S = 45.0
TURN_S = 0.5
BETWEEN_SAMPLES_S = 1.0
"""From one sample of a capture to the next: the ranks have been looked at twice before."""
_NOBODY = "ranks are recognised by RANK in their environment, or by torch.distributed once they have joined"


def is_live(root: Path) -> bool:
    """Whether this is the directory of a run whose agents are there."""
    return any(not state.ended and _fresh(folder) for folder, state in run_directory.statuses(root))


def of_run(root: Path, say: Callable[[str], None], theirs: Rights | None = None, *, gpus: bool = False) -> Path:
    """Capture the run whose directory is `root`. Returns the incident.

    Its agents do it, on all nodes at once. Where they are gone (killed, say) this node's ranks are asked directly. What
    is written into another user's directory is written with that user's rights, `theirs`. `gpus`: at last the GPUs of
    this node are asked what they run.
    """
    states = _statuses(root)
    theirs = theirs or target_rights.of_user(os.stat(root).st_uid)
    incident = _next_incident(root)
    alive = [folder for folder, state in states if not state.ended and _fresh(folder)]
    if alive:
        if _taken_by_agents(incident, alive, theirs):
            if not any(peer_files.has_ranks(incident, f"nodes/{folder.name}/node.json") for folder in alive):
                raise NotFoundError(f"{root}: its agents see no ranks", hint=_NOBODY)
            if gpus:
                snapshot_gpus.of_run(root, incident, say, foreign=theirs.foreign)
            return incident
        say("the agents did not answer in time; capturing what this node shows")
    for folder, state in states:
        ranks = _ranks_of(folder, state)
        if ranks:
            ask = _AskGpus(state.command_pid, say) if gpus else None
            return _capture_of(state, folder.name, ranks, incident, theirs, ask)
    raise NotFoundError(
        f"{root}: no rank of this run responds on this node", hint="run it where the ranks run, or give a rank's pid"
    )


def _ranks_of(folder: Path, state: NodeStatus) -> list[WatchedRank]:
    """The ranks of a node of a run whose agent is gone, where that node is this one."""
    here = state.sockets and Path(state.sockets).is_dir() and is_of_its_writer(folder, state.command_pid)
    return _ranks(Path(state.sockets), state.command_pid) if here else []


@dataclass(frozen=True, slots=True)
class _AskGpus:
    """That the GPUs are to be asked at last; `launcher` is held meanwhile."""

    launcher: int | None
    say: Callable[[str], None]


def _capture_of(
    state: NodeStatus,
    folder: str,
    ranks: list[WatchedRank],
    incident: Path,
    theirs: Rights,
    ask: _AskGpus | None = None,
) -> Path:
    """Capture the ranks of a node whose agent does not do it. What is another user's goes to a directory of our own."""
    with contextlib.ExitStack() as kept:
        return _captured_in(kept, state, folder, ranks, incident, theirs, ask)


def _captured_in(
    kept: contextlib.ExitStack,
    state: NodeStatus,
    folder: str,
    ranks: list[WatchedRank],
    incident: Path,
    theirs: Rights,
    ask: _AskGpus | None,
) -> Path:
    if theirs.foreign:
        incident, _ = claim_directory(None, JobIdentity(state.job, state.attempt, state.node), theirs, kept)
    node = NodeFacts(state.node, state.job, state.attempt, started_at(state.command_pid), command=state.command_pid)
    return _capture(incident, folder, node, ranks, ask=ask)


def _statuses(root: Path) -> list[tuple[Path, NodeStatus]]:
    with contextlib.suppress(OSError):
        os.scandir(root / "nodes").close()  # here whoever asked can wait for it; below silence would be nobody's status
    states = run_directory.statuses(root)
    if not states:
        raise NotFoundError(
            f"{root}: not a directory of `hangscope run`", hint="give the directory that `hangscope run` uses, or a pid"
        )
    return states


def _next_incident(root: Path) -> Path:
    """Where the next snapshot of a run belongs."""
    number = 1
    while run_directory.marked(run_directory.incident(root, "snapshot", number)) is not None:
        number += 1
    return run_directory.incident(root, "snapshot", number)


def _taken_by_agents(incident: Path, alive: list[Path], theirs: Rights) -> bool:
    """Ask the agents that live for a capture; whether they have taken it in time."""
    words = {"node": "snapshot", "reason": "snapshot", "detail": "asked for"}
    theirs.act(str(incident), lambda: run_directory.mark(incident, **words))
    until = time.monotonic() + AGENTS_S
    while time.monotonic() < until:
        done = [peer_files.complete(incident, f"nodes/{folder.name}/node.json") for folder in alive]
        if all(done) and (incident / MANIFEST).exists():
            return True
        time.sleep(0.2)
    return False


def of_process(
    pid: int, directory: Path | None, say: Callable[[str], None], beside: Sequence[int] = (), *, gpus: bool = False
) -> Path:
    """Capture the job that `pid` belongs to: its launcher or one of its ranks. `beside`: other programs that the job
    works with, whose waits are looked at too. `gpus`: at last its GPUs are asked what they run, which ends its CUDA
    contexts."""
    for each in (pid, *beside):
        if linux_process.stat(each) is None:
            raise NotFoundError(f"{each}: no such process on this node")
    environ = environment_of(pid)
    theirs = target_rights.of(pid)
    run = environ.get("HANGSCOPE_DIR")
    if run and directory is None and beside:
        say(f"several programs: taken from here, and not by the agents of {run}")
    elif run and directory is None and theirs.inside is not None:
        say(f"process {pid} lives in a container: its run's directory is not used")
    elif run and directory is None and is_folder(Path(run), say):
        if may_follow(Path(run), pid):
            return of_run(Path(run), say, theirs, gpus=gpus)
        say(f"{run} belongs to another user than process {pid}: it is not used")
    identity = identify(environ)
    outside = theirs.inside is None
    sockets = _own_sockets(environ, pid, say) if outside else Path("/nonexistent")
    boxes = _own_boxes(environ, pid) if outside else None
    ranks = _ranks(sockets, pid, boxes)
    if not ranks:
        refuse_unreadable(pid, f"sudo hangscope snapshot {pid}")
    if not ranks:
        raise NotFoundError(
            f"{pid}: neither this process nor its children are a rank of a distributed job",
            hint="give the pid of a rank, of its launcher or of an engine's server; ranks are recognised by RANK in"
            " their environment, or by the title that vLLM and SGLang give their workers",
        )
    strange = next((rank.rights for rank in ranks if rank.rights.foreign), theirs)
    with contextlib.ExitStack() as kept:
        step = SnapshotStep.of(os.environ)
        root, identity = claim_directory(directory, identity, strange, kept, step.session)
        began = started_at(pid)
        launcher = _launcher_of(pid)
        node = NodeFacts(identity.node, identity.job, identity.attempt, began, command=launcher, programs=tuple(beside))
        ask = _AskGpus(launcher, say) if gpus else None
        return _capture(root, safe_name(identity.node), node, ranks, step, ask)


def _own_sockets(environ: Mapping[str, str], pid: int, say: Callable[[str], None]) -> Path:
    """Where the companions of that job listen, as far as that place may be believed."""
    named = Path(environ.get("HANGSCOPE_SOCKETS", "/nonexistent"))
    return named if is_folder(named, say) and may_follow(named, pid) else Path("/nonexistent")


def _own_boxes(environ: Mapping[str, str], pid: int) -> Path | None:
    """Where a process of that job keeps its black box, as far as that place may be believed."""
    named = environ.get(FOLDER)
    return Path(named) if named and may_follow(Path(named), pid) else None


def _ranks(sockets: Path, pid: int | None, boxes: Path | None = None) -> list[WatchedRank]:
    if pid is None:
        return watched(sockets, [])
    launcher = _launcher_of(pid)
    processes = outside_look.ranks_below(launcher, pid) or find_ranks.ranks_by_title(launcher)
    if not processes and not sockets.is_dir():
        processes = outside_look.ranks_by_memory(launcher)
    return watched(sockets, processes, boxes, launcher)


def watched(
    sockets: Path, processes: Iterable[RankProcess], boxes: Path | None = None, launcher: int | None = None
) -> list[WatchedRank]:
    """These ranks, and those whose companions listen in `sockets` or whose black boxes are below `boxes`, looked at
    twice."""
    polling = Polling(sockets, boxes=boxes)
    for process in processes:
        assert process.rank is not None
        polling.ranks.by_number[process.rank] = WatchedRank.of(process)
    for _ in range(3):  # who is there, which rank a spawned process is, and what groups there are
        polling.turn(None)
    if boxes is not None and launcher is not None:
        _take_boxes(polling, launcher)
    samples = TwoSamples(polling, time.monotonic())
    while len(polling) and not samples.done(time.monotonic()):
        time.sleep(TURN_S)
        polling.note_ends()
        polling.turn(None)
    found = list(polling)
    polling.close()
    return found


def _take_boxes(polling: Polling, launcher: int) -> None:
    """Processes below the launcher that call NCCL and nothing of torch.distributed: engines, MPI, plain C."""
    below = {launcher, *(pid for pid, _ in linux_process.descendants(launcher))}
    polling.boxes.keep(below)
    polling.ranks.take_boxes(polling.boxes, time.monotonic() + BOX_S)


def _launcher_of(pid: int) -> int:
    """The launcher above a rank: the nearest ancestor without RANK in its environment that has other ranks below; the
    server above a process of an engine."""
    found = linux_process.stat(pid)
    if "RANK" not in linux_process.environment(pid) or found is None:
        return process_roles.top_of_engine(pid)
    parent = found.parent
    return parent if parent > 1 and len(find_ranks.ranks_below(parent, pid)) > 1 else pid


def started_at(pid: object) -> float:
    found = linux_process.stat(pid) if isinstance(pid, int) else None
    return time.time() - (linux_process.age_s(found) if found is not None else 0.0)


def _fresh(folder: Path) -> bool:
    try:
        return time.time() - os.lstat(folder / run_directory.STATUS).st_mtime < run_directory.FRESH_S
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class SnapshotStep:
    """Which snapshot this is: one of its own, or one of several that a step of srun takes on all nodes at once.

    `session` tells it from those before, into whose directory it must not write. The first of several diagnoses.
    """

    session: str
    nodes: int = 1
    leads: bool = True

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SnapshotStep:
        job, step = (environ.get(f"SLURM_{name}_ID", "") for name in ("JOB", "STEP"))
        nodes = linux_process.whole_number(environ.get("SLURM_STEP_NUM_NODES", "")) or 1
        if not job or not step or nodes < 2:
            return cls(f"{time.time_ns()}-{os.getpid()}")
        return cls(f"step {job}.{step}", nodes, environ.get("SLURM_PROCID", "0") == "0")

    def await_others(self, incident: Path) -> None:
        """Until every node of the step has saved its part, or has had its time."""
        until = time.monotonic() + AGENTS_S
        while time.monotonic() < until:
            done = [name for name in entries(incident / "nodes") if _is_complete(incident, name)]
            if len(done) >= self.nodes:
                return
            time.sleep(0.2)


def _is_complete(incident: Path, name: str) -> bool:
    return peer_files.complete(incident, f"nodes/{name}/node.json")


def _capture(
    incident: Path,
    folder: str,
    node: NodeFacts,
    ranks: list[WatchedRank],
    step: SnapshotStep | None = None,
    ask: _AskGpus | None = None,
) -> Path:
    node.look_up()
    node_dir = NodeDir(incident, incident / "nodes" / folder)
    taken = NodeCapture(
        node_dir, node, tuple(ranks), "snapshot", "asked for", threading.Event(), between_s=BETWEEN_SAMPLES_S
    )
    taken.take()
    if ask is not None:
        cores = taken.take_gpu_cores(ask.launcher)
        snapshot_gpus.report(node_dir, cores, ask.say)
    taken.complete()
    if step is not None and not step.leads:
        return incident
    if step is not None and step.nodes > 1:
        step.await_others(incident)
    sizes = [rank.process.world_size for rank in ranks if rank.process.world_size]
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
