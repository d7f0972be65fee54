"""One process a rank, out of everything that rosters, agents, launchers, logs and RAS say about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from hangscope.model import Gap, Process
from hangscope.model.statements import Trust, by_trust
from hangscope.model.values import short_name
from hangscope.reader.join.who_is_who import Identity

_MERGED = tuple(f.name for f in fields(Process) if f.name not in {"rank", "source", "node"})
_COMPARED = ("pid", "local_rank", "exit_status", "gpu")

Trusted = tuple[int, Process]
"""How much a source is trusted, the best being the lowest, and what it says."""


def merge_processes(who: Identity) -> tuple[dict[int, Process], list[Process], list[Gap]]:
    """(one process a rank, every single statement, the contradictions)."""
    statements = _by_rank(who)
    gaps: list[Gap] = []
    merged: dict[int, Process] = {}
    for rank, of_rank in statements.items():
        best = _stopped_by_launcher(_merged(rank, of_rank, gaps), of_rank)
        merged[rank] = replace(best, node=who.nodes.get(rank))
    for rank, node in who.nodes.items():
        if rank not in merged:
            merged[rank] = Process(rank=rank, node=node)
    return merged, [process for of_rank in statements.values() for _, process in of_rank], gaps


def _by_rank(who: Identity) -> dict[int, list[Trusted]]:
    """Each rank's statements, the most trusted first, with nodes as they are shown."""
    statements: dict[int, list[Trusted]] = {}
    for said in sorted(who.statements, key=by_trust):
        if said.rank is None:
            continue
        node = said.process.node
        if node is not None:
            node = who.hosts.get(short_name(node), node)
        statements.setdefault(said.rank, []).append((said.trust, replace(said.process, node=node)))
    return dict(sorted(statements.items()))


def _merged(rank: int, of_rank: Sequence[Trusted], gaps: list[Gap]) -> Process:
    """What the best source leaves open is filled from the others."""
    best = of_rank[0][1]
    for trust, other in of_rank[1:]:
        for name in _MERGED:
            mine = getattr(best, name)
            theirs = getattr(other, name)
            if mine is None and theirs is not None and not _moot(best, name):
                best = replace(best, **{name: theirs})
            elif name in _COMPARED and None not in (mine, theirs) and mine != theirs and trust < Trust.NETWORK:
                what = f"{name.replace('_', ' ')} of rank {rank}"
                why = f"{best.source} says {mine}, {other.source} says {theirs}; the first is used"
                gaps.append(Gap(what, why, rank=rank, source=other.source))
    return best


def _stopped_by_launcher(best: Process, of_rank: Sequence[Trusted]) -> Process:
    """Where it lived until its launcher stopped it, by SIGTERM or in the end by SIGKILL, that says nothing about it."""
    stopped = [process for trust, process in of_rank if trust == Trust.LAUNCHER and process.alive_at_end]
    if any(process.pid in (None, best.pid) for process in stopped):  # another pid is another attempt's
        return replace(best, alive_at_end=True, exit_status=None, ended_at_s=None)
    return best


def _moot(best: Process, name: str) -> bool:
    """A weaker source must not say how a process ended that a better one saw alive at the end."""
    return name == "exit_status" and best.alive_at_end is True and best.source is not None
