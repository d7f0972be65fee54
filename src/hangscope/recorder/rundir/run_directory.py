"""The run's directory, as the agents of one or many nodes share it: who is there, who saw a stall, who diagnoses.

Only plain files are used, created with O_EXCL or renamed into place, because the directory is often on NFS or Lustre.
Times are compared as the file system stamps them, never by the nodes' own clocks.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hangscope.errors import SettingsError
from hangscope.incident.layout import GPUS_ASKED_FILE, NODE_FILE, as_bytes, as_json, safe_name
from hangscope.recorder.rundir import peer_files as peer_files
from hangscope.recorder.rundir.job_identity import JobIdentity
from hangscope.safeio.held import held, status_of
from hangscope.safeio.safe_files import (
    Patience,
    Refused,
    folder_below,
    make_folder,
    make_private,
    refuse_others,
    write_below,
)
from hangscope.safeio.walk import entries

RUN = "run.json"
STALL = "stall.json"
STATUS = "status.json"
AGENT = "agent.json"
MOST_NODES = 20_000
MOST_BESIDE = 256
"""Folders that are looked at to find a few neighbours: one machine may have an agent a rank."""
MOST_ROWS = 1_000_000
"""Ranks and groups of all nodes together: a hundred thousand ranks with ten groups each."""
FRESH_S = 20.0
"""An agent whose status file is older than this, against our own, no longer counts on."""

SILENT_S = 8.0
"""One that has not ended and is so far behind is silent. A status is written every two seconds, on large nodes every
few."""

PATIENCE_S = 4.0
"""How long the shared file system has for one look at all neighbours. Where it hangs, we go on alone."""
_patience = Patience(PATIENCE_S)


@dataclass(frozen=True, slots=True)
class RunFolders:
    """The run's directory, which all nodes may share, and in it the folder of this node's agent."""

    root: Path
    own: Path

    def write(self, name: str, value: Any) -> None:
        """A JSON file in the node's own folder, without following a link that somebody put there."""
        inside = self.own.relative_to(self.root).as_posix()
        write_below(self.root, f"{inside}/{name}", as_bytes(as_json(value)), wary=True)


def claim(
    directory: Path,
    identity: JobIdentity,
    *,
    kept: ExitStack | None = None,
    private: bool = False,
    own: bool = False,
    session: str = "",
) -> tuple[Path, JobIdentity]:
    """The directory of this run, and its identity, which an unnamed job takes from the node that came first.

    A directory that holds an earlier run is left alone: `run-2` in it is used then, or the next that is free, so that
    whoever mounts or collects the directory has all. With `own`, one of somebody else's is left alone too, and
    `<directory>.2` beside it used; with `private` it is made for this user alone. It stays open in `kept`, and so does
    the one above it: whatever becomes of their names, they stay the same. One of another `session` is another run's,
    also of the same job.
    """
    stack = kept if kept is not None else ExitStack()
    made_above = sum(not place.exists() for place in directory.parents)
    _make(directory.parent, wanted=directory)
    stack.enter_context(held(directory.parent, to_read=False, only=directory.name))
    inside = False
    for number in range(1, 1000):
        root = directory if number == 1 else _next_place(directory, number, inside=inside)
        made = made_above + (not root.exists())
        try:
            _make_own(root, private=private, own=own)
        except Refused as refused:
            if refused.late:
                raise
            continue
        inside = inside or number == 1
        stack.enter_context(held(root, to_read=False))
        joined = _joined(root, identity, made, session)
        if joined is not None:
            return root, joined
    raise SettingsError(f"{directory}: no free name for this run", hint="give another directory with --dir")


def _joined(root: Path, identity: JobIdentity, made: int, session: str) -> JobIdentity | None:
    """The identity that a run has in a directory that is new, or whose run it is; None where it is another one's."""
    value = {"schema": "hangscope.run/1", "job": identity.job, "attempt": identity.attempt, "made": made}
    if session:
        value["session"] = session
    if _create(root / RUN, value):
        return identity
    other = peer_files.run_file(root, RUN) or peer_files.RunFile("", "")
    same = (other.job, other.attempt) == (identity.job, identity.attempt)
    if (same or identity.made) and other.session == session and _running(root):
        return replace(identity, job=other.job or identity.job, attempt=other.attempt or "0")
    return None


def _next_place(directory: Path, number: int, *, inside: bool) -> Path:
    """Where another run goes: into the directory, or beside one that is somebody else's."""
    return directory / f"run-{number}" if inside else directory.with_name(f"{directory.name}.{number}")


def _make_own(root: Path, *, private: bool, own: bool) -> None:
    """Make one directory. Raises Refused where it is somebody else's and may not be."""
    if private:
        make_private(root)
        return
    _make(root)
    if own:
        refuse_others(root)


def _make(root: Path, wanted: Path | None = None) -> None:
    try:
        make_folder(root)
    except OSError as error:
        raise SettingsError(
            f"{wanted or root}: {error.strerror or error}", hint="give a directory that can be written with --dir"
        ) from None


def _running(root: Path) -> bool:
    """Whether nodes of this run are at work: one has not said that it ended, or the first has only just begun."""
    states = [state for _, state in statuses(root)]
    if not states:
        changed = _modified(root / RUN)
        return changed is not None and time.time() - changed < 120
    return any(not state.ended for state in states)


def claim_node(root: Path, node: str) -> Path:
    """This agent's folder below nodes/. Two agents on one host (one `run` per rank) get two folders.

    A folder of that name that is a link, or somebody else's, is passed over: what we write must stay here.
    """
    problem = ""
    for number in range(1, 10_000):
        name = safe_name(node) if number == 1 else f"{safe_name(node)}-{number}"
        try:
            with folder_below(root, ["nodes", name], make=True, own=True, wary=True):
                pass
        except Refused as refused:
            problem = f"{refused.filename}: {refused.strerror}"
            if number > 100:
                break
            continue
        except OSError as error:
            raise SettingsError(
                f"{root}: {error.strerror or error}", hint="give a directory that can be written with --dir"
            ) from None
        folder = root / "nodes" / name
        if _create(folder / AGENT, {"node": node, "pid": os.getpid(), "address": _own_address()}):
            return folder
    raise SettingsError(f"{root}: no folder for {node} ({problem or 'too many agents'})", hint="give another --dir")


def _own_address() -> str:
    """From where this machine would reach a distant one; empty where it has no way there. Nothing is sent."""
    for family, distant in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((distant, 9))
            return str(probe.getsockname()[0])
    return ""


def address_of(folders: RunFolders, node: str) -> str:
    """Where a node is reached, by its own agent's word; empty where it gave none. Pods' names seldom resolve."""
    name = f"nodes/{safe_name(node)}/{AGENT}"
    owner = _owner(folders.own)
    try:
        return _patience.ask(f"the address of {node}", lambda: peer_files.agent_address(folders.root, name, owner))
    except OSError:
        return ""


def statuses(root: Path, own: Path | None = None) -> list[tuple[Path, peer_files.NodeStatus]]:
    """Every node's status that can be read, with its folder; none where the file system does not answer in time.

    With `own`, an agent's own folder, only those that its user wrote, as this file system names users: the nodes of a
    job run as one. The agent's own comes first.
    """
    owner, first = (None, "") if own is None else (_owner(own), own.name)

    until = time.monotonic() + PATIENCE_S - 0.5

    def look() -> list[tuple[Path, peer_files.NodeStatus]]:
        try:
            names = entries(root / "nodes", MOST_NODES)
        except OSError:
            return []
        found: list[tuple[Path, peer_files.NodeStatus]] = []
        weighs = 0
        for name in [*(name for name in names if name == first), *(name for name in names if name != first)]:
            if time.monotonic() > until or weighs > MOST_ROWS:
                break  # who fills the directory with nonsense costs others their part, and us neither time nor memory
            state = peer_files.status(root, f"nodes/{name}/{STATUS}", owner)
            if state is not None:
                found.append((root / "nodes" / name, state))
                weighs += sum(1 + len(row.groups) for row in state.live) + len(state.captures)
        return sorted(found, key=lambda each: each[0].name)

    try:
        return _patience.ask(f"statuses in {root}", look)
    except OSError:
        return []


def nodes_after(folders: RunFolders, count: int) -> list[str]:
    """The machines whose agents' folders come next after our own, of our own user's: at most `count`."""
    owner = _owner(folders.own)
    ours = peer_files.agent_node(folders.root, f"nodes/{folders.own.name}/{AGENT}", owner)

    def look() -> list[str]:
        names = entries(folders.root / "nodes", MOST_NODES)
        place = names.index(folders.own.name) + 1 if folders.own.name in names else 0
        found: list[str] = []
        for name in (names[place:] + names[:place])[:MOST_BESIDE]:
            node = peer_files.agent_node(folders.root, f"nodes/{name}/{AGENT}", owner)
            if node and node != ours and node not in found:
                found.append(node)
            if len(found) == count:
                break
        return found

    try:
        return _patience.ask(f"neighbours in {folders.root}", look)
    except OSError:
        return []


def incident(root: Path, kind: str, number: int) -> Path:
    """Where the n-th hang, snapshot or desync of a run is kept. The first hang is the run's own directory; the
    others are folders in it, so that whoever mounts or collects the directory has all."""
    return root if (kind, number) == ("hang", 1) else root / f"{kind}-{number}"


def mark(incident: Path, *, node: str, reason: str, detail: str) -> bool:
    """Ask every agent to capture into `incident`. False where another agent was first."""
    make_folder(incident)
    return _create(incident / STALL, {"by": node, "at": time.time(), "reason": reason, "detail": detail})


def marked(incident: Path) -> peer_files.CaptureRequest | None:
    try:
        return _patience.ask(f"stall in {incident}", lambda: peer_files.capture_request(incident, STALL))
    except OSError:
        return None


def _create(path: Path, value: dict[str, Any]) -> bool:
    """Write a file that must not exist yet. Its content comes with it: nobody ever sees it empty."""
    return write_below(path.parent, path.name, (json.dumps(value) + "\n").encode(), replace=False, wary=True)


@dataclass(frozen=True, slots=True)
class PeerAgent:
    """One agent of the run, by its status file."""

    folder: Path
    node: str
    ranks: tuple[int, ...]
    expected: int
    """How many ranks run there: those seen, or as many as the launcher announced."""
    world_size: int | None
    nodes: int | None
    meets_at: tuple[tuple[int, str], ...]
    """Each rank in its start, and where it looks for the others."""
    fresh: bool
    ended: bool
    behind_s: float = 0.0
    """How much older its status is than our own."""

    @property
    def silent(self) -> bool:
        """Whether it stopped writing in the middle of the job."""
        return not self.ended and self.behind_s >= SILENT_S


def peers(root: Path, own: Path) -> list[PeerAgent]:
    """All agents of the run, our own among them."""
    return list(_peers(root, own))


def _peers(root: Path, own: Path) -> Iterator[PeerAgent]:
    newest = _modified(own / STATUS) or time.time()
    for folder, state in statuses(root, own):
        ranks = tuple(sorted({row.rank for row in state.live}))
        changed = _modified(folder / STATUS)
        yield PeerAgent(
            folder=folder,
            node=state.node,
            ranks=ranks,
            expected=max(len(ranks), state.local_world_size),
            world_size=state.world_size,
            nodes=state.nodes,
            meets_at=tuple((row.rank, row.meets_at) for row in state.live if row.meets_at),
            fresh=changed is not None and newest - changed < FRESH_S,
            ended=state.ended,
            behind_s=newest - changed if changed is not None else 0.0,
        )


def _owner(folder: Path) -> int | None:
    try:
        return _patience.ask(f"{folder}, whose it is", lambda: status_of(folder / AGENT, follow=False).st_uid)
    except OSError:
        return None


def _modified(path: Path) -> float | None:
    try:
        return _patience.ask(str(path), lambda: status_of(path, follow=False).st_mtime)
    except OSError:
        return None


def captured(incident: Path, peer: PeerAgent) -> bool:
    name = f"nodes/{peer.folder.name}/{NODE_FILE}"
    try:
        return _patience.ask(f"{incident}/{name}", lambda: peer_files.complete(incident, name))
    except OSError:
        return False


def asked_gpus(incident: Path, folder: Path) -> bool:
    """Whether the GPUs of a node were asked what they run, by its agent or by hand: that ends the job."""
    name = f"nodes/{folder.name}/{GPUS_ASKED_FILE}"
    try:
        return _patience.ask(f"{incident}/{name}", lambda: peer_files.gpus_asked(incident, name) is not None)
    except OSError:
        return False


def sees_all(agents: Sequence[PeerAgent]) -> bool:
    """Whether the agents in this directory hold every rank of the job, or are on every node that it has."""
    sizes = [agent.world_size for agent in agents if agent.world_size]
    nodes = [agent.nodes for agent in agents if agent.nodes]
    all_nodes = bool(nodes) and len({agent.node for agent in agents if agent.ranks}) >= max(nodes)
    return not sizes or all_nodes or sum(agent.expected for agent in agents) >= max(sizes)


def leader(agents: Sequence[PeerAgent]) -> Path | None:
    """The folder of the agent that diagnoses: of those that are alive, the one with the lowest rank."""
    alive = [agent for agent in agents if agent.fresh and agent.ranks and not agent.silent]
    return min(alive, key=lambda agent: (agent.ranks[0], agent.folder.name)).folder if alive else None
