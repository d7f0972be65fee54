"""The run's directory, as the agents of one or many nodes share it: who is there, who saw a stall, who diagnoses.

Only plain files are used, created with O_EXCL or renamed into place, because the directory is often on NFS or Lustre.
Times are compared as the file system stamps them, never by the nodes' own clocks.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hangscope.errors import SettingsError
from hangscope.incident.layout import NODE_FILE, safe_name
from hangscope.recorder.identity import Identity

RUN = "run.json"
STALL = "stall.json"
STATUS = "status.json"
AGENT = "agent.json"
FRESH_S = 20.0
"""An agent whose status file is older than this, against our own, no longer counts on."""


def claim(directory: Path, identity: Identity) -> tuple[Path, Identity]:
    """The directory of this run, and its identity, which an unnamed job takes from the node that came first.

    A directory that holds an earlier run is left alone: `<directory>.2` is used then, or the next that is free.
    """
    for number in range(1, 1000):
        root = directory if number == 1 else directory.with_name(f"{directory.name}.{number}")
        _make(root)
        if _create(root / RUN, {"schema": "hangscope.run/1", "job": identity.job, "attempt": identity.attempt}):
            return root, identity
        other = read(root / RUN)
        same = (other.get("job"), other.get("attempt")) == (identity.job, identity.attempt)
        if (same or identity.made) and _running(root):
            return root, replace(
                identity, job=str(other.get("job") or identity.job), attempt=str(other.get("attempt") or "0")
            )
    raise SettingsError(f"{directory}: no free name for this run", hint="give another directory with --dir")


def _make(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"{root}: {error.strerror or error}", hint="give a directory that can be written with --dir"
        ) from None


def _running(root: Path) -> bool:
    """Whether nodes of this run are at work: one has not said that it ended, or the first has only just begun."""
    states = [read(path) for path in root.glob(f"nodes/*/{STATUS}")]
    if not states:
        return time.time() - os.stat(root / RUN).st_mtime < 120
    return any(state.get("ended") is None for state in states)


def claim_node(root: Path, node: str) -> Path:
    """This agent's folder below nodes/. Two agents on one host (one `run` per rank) get two folders."""
    for number in range(1, 10_000):
        name = safe_name(node) if number == 1 else f"{safe_name(node)}-{number}"
        folder = root / "nodes" / name
        _make(folder)
        if _create(folder / AGENT, {"node": node, "pid": os.getpid()}):
            return folder
    raise SettingsError(f"{root}: too many agents on {node}")


def incident(root: Path, kind: str, number: int) -> Path:
    """Where the n-th hang, or the n-th snapshot, of a run is kept. The first hang is the run's own directory."""
    return root if (kind, number) == ("hang", 1) else root.with_name(f"{root.name}.{kind}-{number}")


def mark(incident: Path, *, node: str, reason: str, detail: str) -> bool:
    """Ask every agent to capture into `incident`. False where another agent was first."""
    incident.mkdir(parents=True, exist_ok=True)
    return _create(incident / STALL, {"by": node, "at": time.time(), "reason": reason, "detail": detail})


def marked(incident: Path) -> dict[str, Any] | None:
    return read(incident / STALL) or None


def read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _create(path: Path, value: dict[str, Any]) -> bool:
    """Write a file that must not exist yet. Its content comes with it: nobody ever sees it empty."""
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.part")
    try:
        temporary.write_text(json.dumps(value) + "\n")
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            with os.fdopen(handle, "w") as stream:
                stream.write(json.dumps(value) + "\n")
        return True
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One agent of the run, by its status file."""

    folder: Path
    node: str
    ranks: tuple[int, ...]
    expected: int
    """How many ranks run there: those seen, or as many as the launcher announced."""
    world_size: int | None
    fresh: bool
    ended: bool


def neighbours(root: Path, own: Path) -> list[Neighbour]:
    """All agents of the run, our own among them."""
    return list(_neighbours(root, own))


def _neighbours(root: Path, own: Path) -> Iterator[Neighbour]:
    newest = _modified(own / STATUS) or time.time()
    for path in sorted(root.glob(f"nodes/*/{STATUS}")):
        state = read(path)
        ranks = tuple(sorted(row["rank"] for row in state.get("live") or () if isinstance(row.get("rank"), int)))
        changed = _modified(path)
        yield Neighbour(
            folder=path.parent,
            node=str(state.get("node") or path.parent.name),
            ranks=ranks,
            expected=max(len(ranks), int(state.get("local_world_size") or 0)),
            world_size=state.get("world_size"),
            fresh=changed is not None and newest - changed < FRESH_S,
            ended=state.get("ended") is not None,
        )


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def captured(incident: Path, neighbour: Neighbour) -> bool:
    return bool(read(incident / "nodes" / neighbour.folder.name / NODE_FILE).get("complete"))


def sees_all(agents: list[Neighbour]) -> bool:
    """Whether the agents in this directory hold every rank of the job."""
    sizes = [agent.world_size for agent in agents if agent.world_size]
    return not sizes or sum(agent.expected for agent in agents) >= max(sizes)


def leader(agents: list[Neighbour]) -> Path | None:
    """The folder of the agent that diagnoses: of those that are alive, the one with the lowest rank."""
    alive = [agent for agent in agents if agent.fresh and agent.ranks]
    return min(alive, key=lambda agent: (agent.ranks[0], agent.folder.name)).folder if alive else None
