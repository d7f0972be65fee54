"""Which ranks of this node are watched, which are not and why: said once after the start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from hangscope.processes import linux_process, process_roles
from hangscope.recorder.live.companion_hook import is_hooked, isolating_flag
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.sources.cannot_read import NO_TORCH

LAST_RANK_S = 20.0
"""Ranks start within seconds of each other; after this long nobody is waited for."""
NOBODY_S = 60.0
_MOST_NAMED = 8


class StartupReport:
    """Says once, after each start of the ranks, who is watched; once more when those that were not have come."""

    def __init__(
        self, environ_rank: bool, *, tasks: int | None = None, first: bool = True, patient: bool = False
    ) -> None:
        """`environ_rank`: the command is one rank itself, whatever the size of the job; so it is where the scheduler
        started as many `tasks` as the job has ranks. Where all is well, only the `first` of them says so. `patient`:
        that no rank has started is no news."""
        self._alone = environ_rank
        self._tasks = tasks
        self._speaks = first
        self._patient = patient
        self._first: float | None = None
        self._begun: float | None = None
        self._said = False
        self._asked = 0
        self._strangers: set[int] = set()

    def restart(self) -> None:
        """The ranks were started anew."""
        self._said = False
        self._first = None

    def strangers(self, strangers: Mapping[int, RankProcess]) -> str | None:
        """Once for each that comes: processes of another program, whose numbers the watched ranks have."""
        new = sorted(strangers.keys() - self._strangers)
        if not new:
            return None
        self._strangers.update(new)
        roles = process_roles.roles_of(new)
        named = ", ".join(
            f"{roles[pid].label} (pid {pid})" if pid in roles else f"pid {pid}" for pid in new[:_MOST_NAMED]
        )
        more = f" and {len(new) - _MOST_NAMED} more" if len(new) > _MOST_NAMED else ""
        return (
            f"not watched: {named}{more}. Their program counts its ranks from 0, as the one that is watched does; start"
            f" each of them under a `hangscope run` of its own. Now: `hangscope snapshot {new[0]}`"
        )

    def line(self, ranks: Sequence[WatchedRank], refused: str, now: float, command: int | None = None) -> str | None:
        """What there is to say now, None while that is not known or was said."""
        if self._begun is None:
            self._begun = now
        asked = [rank for rank in ranks if rank.counted]
        came_late = self._asked < len(asked) == len(ranks)
        if self._said and not came_late:
            return None
        if not ranks:
            if self._patient or now - self._begun < NOBODY_S:
                return None
            self._said = True
            return _nobody(command)
        if self._first is None:
            self._first = now
        expected = self._expected(ranks)
        waited_enough = now - self._first > LAST_RANK_S
        starting = any(_may_load_torch(rank) for rank in ranks)
        if (starting or len(ranks) < (expected or len(ranks) + 1)) and not waited_enough:
            return None
        self._said = True
        self._asked = len(asked)
        if not self._speaks and len(asked) == len(ranks) == expected:
            return None
        return _sentence(ranks, asked, expected, refused)

    def _expected(self, ranks: Iterable[WatchedRank]) -> int | None:
        """How many ranks this node has: as announced, or all of the job where nothing speaks of other nodes."""
        if self._alone:
            return 1
        local = [size for rank in ranks if (size := rank.process.local_world_size) is not None]
        if local:
            return max(local)
        world = max((rank.process.world_size or 0 for rank in ranks), default=0) or None
        return 1 if world is not None and world == self._tasks else world


def _may_load_torch(rank: WatchedRank) -> bool:
    """Whether it may import torch yet: one that calls NCCL has what it needs, with torch or without."""
    return not (rank.counted or rank.process.by_box) and rank.unread is not None and rank.unread[0] == NO_TORCH


def _nobody(command: int | None) -> str:
    nodes = _nodes_announced(command) if command is not None else None
    if nodes is not None:
        return (
            f"no rank has started: torchrun expects {nodes} nodes, and starts none until all of them have"
            " joined its rendezvous. Check that each runs it, with the same --nnodes and master or"
            " --rdzv-endpoint"
        )
    return _no_rank(command)


_STARTERS = {
    "docker": "inside the container",
    "podman": "inside the container",
    "kubectl": "inside the pod",
    "ssh": "on the other machine",
    "pdsh": "on the other machines",
    "srun": "in its tasks (`srun hangscope run -- CMD`)",
}
"""Commands that start what they run somewhere else, and where that is."""


def _no_rank(command: int | None) -> str:
    """That nothing is watched, and the cure where the command shows it."""
    below = [command, *(pid for pid, _ in linux_process.descendants(command))] if command is not None else []
    names = {Path(words[0]).name for pid in below if (words := linux_process.command_line(pid))}
    text = "no rank was found under the command, so nothing is watched"
    starter = next((name for name in _STARTERS if name in names), None)
    if starter is not None:
        return f"{text}. Where {starter} starts the ranks, put `hangscope run` {_STARTERS[starter]}"
    return (
        f"{text}: ranks are recognised by RANK in their environment, by torch.distributed once they have joined, or by"
        " NCCL's calls. What communicates by other means alone (JAX on CPUs, mpi4py) is not watched"
    )


def _nodes_announced(command: int) -> str | None:
    """How many nodes torchrun below the command waits for, where more than one; None where there is no torchrun.

    Its options may be spelt with underscores, and set by PET_NNODES.
    """
    for pid in (command, *(child for child, _ in linux_process.descendants(command))):
        words = [word.replace("_", "-") for word in linux_process.command_line(pid)]
        if any(word == "torch.distributed.run" or word.endswith("/torchrun") for word in words[:4]):
            nodes = linux_process.environment(pid).get("PET_NNODES", "1")
            for word, following in pairwise([*words, ""]):
                if word == "--nnodes":
                    nodes = following
                elif word.startswith("--nnodes="):
                    nodes = word.partition("=")[2]
            return nodes if nodes.rpartition(":")[2] not in ("", "1") else None
    return None


def _sentence(ranks: Sequence[WatchedRank], asked: Sequence[WatchedRank], expected: int | None, refused: str) -> str:
    total = max(expected or 0, len(ranks))
    world = max((rank.process.world_size or 0 for rank in ranks), default=0)
    here = f" here, {world} in the job" if world > total else ""
    by_box = sum(rank.process.by_box for rank in ranks)
    outside = sum(rank.process.socket is None for rank in asked)
    how = "" if not outside else " from outside" if outside == len(asked) else f", {outside} of them from outside"
    how = f",{how}" if here and how == " from outside" else how
    parts = [f"watching {len(asked) + by_box} of {total} ranks{here}{how}"]
    if by_box:
        parts.append(f"{by_box} without torch.distributed, by what NCCL does in their processes")
    parts += _roles(ranks)
    causes = _causes(ranks)
    for (why, cure), some in causes.items():
        named = ", ".join(f"{rank.number} (pid {rank.process.pid})" for rank in some[:_MOST_NAMED])
        more = f" and {len(some) - _MOST_NAMED} more" if len(some) > _MOST_NAMED else ""
        parts.append(f"not rank{'s' if len(some) > 1 else ''} {named}{more}: {why}; {cure}")
    if causes:
        seen = (
            f"the kernel alone, because their stacks cannot be read ({refused})" if refused else "stacks and the kernel"
        )
        parts.append(f"until then they are watched by {seen}")
    if len(ranks) < total:
        parts.append(
            f"{total - len(ranks)} more {'were' if total - len(ranks) > 1 else 'was'} announced: not started yet, not"
            " below the command, or not to be distinguished from other processes"
        )
    return ". ".join(parts)


def _roles(ranks: Sequence[WatchedRank]) -> list[str]:
    """Which processes of an engine they are."""
    roles = [rank.role for rank in ranks if rank.role is not None]
    if not roles:
        return []
    listed = ", ".join(role.label for role in roles[:_MOST_NAMED])
    more = f" and {len(roles) - _MOST_NAMED} more" if len(roles) > _MOST_NAMED else ""
    return [f"{roles[0].engine} calls them {listed}{more}"]


def _causes(ranks: Sequence[WatchedRank]) -> dict[tuple[str, str], list[WatchedRank]]:
    """The ranks that cannot be asked, by why not and the cure. Of one that uses no torch nothing else is expected."""
    causes: dict[tuple[str, str], list[WatchedRank]] = {}
    for rank in ranks:
        if not rank.counted and not rank.process.by_box:
            causes.setdefault(why_not(rank), []).append(rank)
    return causes


def why_not(rank: WatchedRank) -> tuple[str, str]:
    """Why a rank's operations are not counted, and the cure."""
    process = rank.process
    prepared = process.registered or "HANGSCOPE_SOCKETS" in linux_process.environment(process.pid)
    if rank.unread is not None and (not prepared or (process.registered and not process.errors)):
        why, cure = rank.unread
        return why, cure or "`hangscope snapshot` needs the same"
    if process.registered:
        why = "; ".join(process.errors) or "it has no worker server"
        return why, "torch 2.4 or newer has one"
    flag = isolating_flag(linux_process.command_line(process.pid))
    if flag is not None:
        return f"Python was started with {flag} and ignores PYTHONPATH", f"leave {flag} out"
    environ = linux_process.environment(process.pid)
    if "HANGSCOPE_SOCKETS" not in environ:
        return "its environment was reset", "pass HANGSCOPE_SOCKETS, HANGSCOPE_DIR and PYTHONPATH on to it"
    if not is_hooked(environ):
        return "a wrapper sets PYTHONPATH itself", "add to it instead: PYTHONPATH=…:$PYTHONPATH"
    return "it has not imported torch.distributed so far", "nothing to do if it is still starting"
