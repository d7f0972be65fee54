"""A capture now, of a job that runs: by its agents where they live, else by ourselves on this node."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hangscope.errors import NotFoundError
from hangscope.incident import manifest
from hangscope.incident.layout import safe_name
from hangscope.recorder.capture.capture_node import NodeCapture
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.live import find_ranks
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.two_samples import TwoSamples
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.process import linux_process, target_rights
from hangscope.recorder.process.target_rights import Rights
from hangscope.recorder.rundir import peer_files, run_directory
from hangscope.recorder.rundir.job_identity import JobIdentity, identify
from hangscope.recorder.rundir.node_dir import NodeDir
from hangscope.safeio.safe_files import Patience, Refused

AGENTS_S = 45.0
LOOK_S = 5.0
_NOBODY = "ranks are told by RANK in their environment, or by torch.distributed once they have joined"


def of_run(root: Path, say: Callable[[str], None], theirs: Rights | None = None) -> Path:
    """Capture the run whose directory is `root`. Returns the incident.

    Its agents do it, on all nodes at once. Where they are gone (killed, say) this node's ranks are asked directly. What
    is written into another user's directory is written with that user's rights, `theirs`.
    """
    with contextlib.suppress(OSError):
        os.scandir(root / "nodes").close()  # here whoever asked can wait for it; below silence would be nobody's status
    theirs = theirs or target_rights.of_user(os.stat(root).st_uid if root.is_dir() else 0)
    states = run_directory.statuses(root)
    if not states:
        raise NotFoundError(
            f"{root}: no run of hangscope", hint="give the directory that `hangscope run` uses, or a pid"
        )
    alive = [folder for folder, state in states if not state.ended and _fresh(folder)]
    number = 1
    while run_directory.marked(run_directory.incident(root, "snapshot", number)) is not None:
        number += 1
    incident = run_directory.incident(root, "snapshot", number)
    if alive:
        words = {"node": "snapshot", "reason": "snapshot", "detail": "asked for"}
        theirs.act(str(incident), lambda: run_directory.mark(incident, **words))
        if _await(incident, alive):
            if not any(peer_files.has_ranks(incident, f"nodes/{folder.name}/node.json") for folder in alive):
                raise NotFoundError(f"{root}: its agents see no rank", hint=_NOBODY)
            return incident
        say("the agents did not answer in time; capturing what this node shows")
    for folder, state in states:
        if state.sockets and Path(state.sockets).is_dir() and _of_one_user(folder, state.command_pid):
            node = NodeFacts(state.node, state.job, state.attempt, _started(state.command_pid))
            ranks = _ranks(Path(state.sockets), state.command_pid)
            if ranks and theirs.strange:
                incident = _private(None, JobIdentity(state.job, state.attempt, state.node), theirs)[0]
            if ranks:
                return _capture(incident, folder.name, node, ranks)
    raise NotFoundError(
        f"{root}: no rank of this run answers on this node", hint="run it where the ranks run, or give a rank's pid"
    )


def of_process(pid: int, directory: Path | None, say: Callable[[str], None]) -> Path:
    """Capture the job that `pid` belongs to: its launcher or one of its ranks."""
    if linux_process.stat(pid) is None:
        raise NotFoundError(f"{pid}: no such process on this node")
    environ, theirs = _environment(pid), target_rights.of(pid)
    run = environ.get("HANGSCOPE_DIR")
    if run and directory is None and theirs.inside is not None:
        say(f"process {pid} lives in a container: its own run's directory is not used")
    elif run and directory is None and _is_folder(Path(run), say):
        if _may_follow(Path(run), pid):
            return of_run(Path(run), say, theirs)
        say(f"{run} belongs to another user than process {pid}: it is not used")
    identity = identify(environ)
    sockets = Path(environ.get("HANGSCOPE_SOCKETS", "/nonexistent"))
    if theirs.inside is not None or not _is_folder(sockets, say) or not _may_follow(sockets, pid):
        sockets = Path("/nonexistent")
    ranks = _ranks(sockets, pid)
    if not ranks:
        raise NotFoundError(
            f"{pid}: no rank of a distributed job is this process or runs below it",
            hint="give the pid of a rank or of its launcher; ranks are told by RANK in their environment",
        )
    strange = next((rank.rights for rank in ranks if rank.rights.strange), theirs)
    root, identity = _private(directory, identity, strange)
    node = NodeFacts(identity.node, identity.job, identity.attempt, _started(pid))
    return _capture(root, safe_name(identity.node), node, ranks)


def _is_folder(place: Path, say: Callable[[str], None]) -> bool:
    """Whether a directory that an environment names is there. A file system that hangs is nobody's reason to wait."""
    try:
        return Patience(LOOK_S).ask(str(place), place.is_dir)
    except Refused:
        say(f"{place}: its file system does not answer; it is not used")
        return False


def _private(directory: Path | None, identity: JobIdentity, theirs: Rights) -> tuple[Path, JobIdentity]:
    """The incident's directory. Another user's stacks and output are for whoever took them; a directory that was there
    before stays as open as it is, and the incident goes below it."""
    name = f"snapshot-{safe_name(identity.job)}"
    place = (directory or Path("hangscope") / name).absolute()
    if not theirs.strange:
        return run_directory.claim(place, identity)
    if place.is_dir() and stat.S_IMODE(place.stat().st_mode) & 0o077:
        place /= name
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(place, 0o700)
    root, identity = run_directory.claim(place, identity)
    os.chmod(root, 0o700)
    return root, identity


def _environment(pid: int) -> dict[str, str]:
    """A process's own, or where it is `hangscope run` itself, that of the command which it started."""
    environ = linux_process.environment(pid)
    below = [each for each, depth in linux_process.descendants(pid) if depth == 1]
    if "HANGSCOPE_DIR" not in environ and {"hangscope", "run"} <= {
        Path(w).name for w in linux_process.command_line(pid)
    }:
        started = (found for child in below if "HANGSCOPE_DIR" in (found := linux_process.environment(child)))
        return next(started, environ)
    return environ


def _may_follow(place: Path, pid: int) -> bool:
    """Whether a directory that a process's environment names may be used: ours, or that process's own user's.

    Root would otherwise write wherever somebody's environment points.
    """
    try:
        found = os.lstat(place)
    except OSError:
        return False
    # What is ours, and everybody may write into, is nobody's own: /tmp.
    ours = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and (ours or found.st_uid == target_rights.owner_of(pid))


def _of_one_user(folder: Path, pid: int | None) -> bool:
    """Whether a status speaks of a process of the user who wrote it; always, where we are not root."""
    if os.geteuid() != 0:
        return True
    try:
        return pid is not None and os.lstat(folder / run_directory.STATUS).st_uid == target_rights.owner_of(pid)
    except OSError:
        return False


def _ranks(sockets: Path, pid: int | None) -> list[WatchedRank]:
    polling = Polling(sockets)
    if pid is not None:
        for process in find_ranks.below(_top(pid)):
            assert process.rank is not None
            polling.ranks.by_number[process.rank] = WatchedRank.of(process)
    for _ in range(3):  # who is there, which rank a spawned process is, and what groups there are
        polling.turn(None)
    samples = TwoSamples(polling, time.monotonic())
    while len(polling) and not samples.done(time.monotonic()):
        time.sleep(1.0)
        polling.note_ends()
        polling.turn(None)
    found = list(polling)
    polling.close()
    return found


def _top(pid: int) -> int:
    """The launcher above a rank: the nearest ancestor without RANK in its environment that has other ranks below."""
    found = linux_process.stat(pid)
    if "RANK" not in linux_process.environment(pid) or found is None:
        return pid
    parent = found.parent
    return parent if parent > 1 and len(find_ranks.below(parent)) > 1 else pid


def _started(pid: object) -> float:
    found = linux_process.stat(pid) if isinstance(pid, int) else None
    return time.time() - (linux_process.age_s(found) if found is not None else 0.0)


def _fresh(folder: Path) -> bool:
    try:
        return time.time() - os.lstat(folder / run_directory.STATUS).st_mtime < run_directory.FRESH_S
    except OSError:
        return False


def _await(incident: Path, alive: list[Path]) -> bool:
    until = time.monotonic() + AGENTS_S
    while time.monotonic() < until:
        done = [peer_files.complete(incident, f"nodes/{folder.name}/node.json") for folder in alive]
        if all(done) and (incident / "incident.json").exists():
            return True
        time.sleep(0.2)
    return False


def _capture(incident: Path, folder: str, node: NodeFacts, ranks: list[WatchedRank]) -> Path:
    node.look_up()
    node_dir = NodeDir(incident, incident / "nodes" / folder)
    taken = NodeCapture(node_dir, node, tuple(ranks), "snapshot", "asked for", threading.Event())
    taken.take()
    taken.complete()
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
