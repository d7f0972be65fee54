"""Nodes whose agent has gone silent in the middle of the job, and whether that is the machine's doing.

An agent that somebody killed long before the hang is silent as well, and its ranks went on without it. So a node is
listed only where its last counters are about as far as the others' are now, or where it wrote last just before the
trouble was noticed: of a young job nobody knows the pace yet. And an agent that was killed a moment ago, or is stopped,
or whose disk is full, is no lost node: the machine is asked whether it answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hangscope.recorder.rundir import run_directory
from hangscope.recorder.rundir.node_answers import NodeAnswers, Reply
from hangscope.recorder.rundir.peer_files import NodeStatus
from hangscope.recorder.rundir.run_directory import PeerAgent, RunFolders

BETWEEN_S = 6.0
"""So far a job may have gone on between a node's last status and its end."""


def silent_nodes(
    folders: RunFolders, incident: Path, answers: NodeAnswers, trouble_s: float | None = None
) -> Mapping[str, Any]:
    """What there is to say of them for the manifest; empty where every agent writes. Our own status must be fresh.
    `trouble_s`: how long ago the trouble was noticed here."""
    peers = run_directory.peers(folders.root, folders.own)
    silent = {peer.folder: peer for peer in peers if _is_silent(peer, incident)}
    if not silent:
        return {}
    found = run_directory.statuses(folders.root, folders.own)
    others = [status for folder, status in found if folder not in silent]
    gone = {
        folder: status.node
        for folder, status in found
        if folder in silent and (went_as_far(status, others) or _fell_silent_then(silent[folder], trouble_s))
    }
    if not gone:
        return {}
    own = {peer.node for peer in peers if peer.folder == folders.own}
    replies = _replies(set(gone.values()) - own, peers, own, answers)
    rows = [
        {
            "node": node,
            "ranks": list(silent[folder].ranks),
            "silent_s": round(silent[folder].behind_s, 1),
            "machine": replies.get(node, Reply.ANSWERS).value,  # where another agent of it writes
        }
        for folder, node in gone.items()
    ]
    return {"nodes": rows}


def _replies(gone: set[str], peers: Sequence[PeerAgent], own: set[str], answers: NodeAnswers) -> Mapping[str, Reply]:
    """Of each machine no agent of which writes, whether it answers; those that write are asked beside them."""
    writing = {peer.node for peer in peers if peer.behind_s < run_directory.SILENT_S}
    return answers.of_silent(sorted(gone - writing), sorted(writing - own))


def _is_silent(peer: PeerAgent, incident: Path) -> bool:
    return peer.silent and bool(peer.ranks) and not run_directory.captured(incident, peer)


def _fell_silent_then(peer: PeerAgent, trouble_s: float | None) -> bool:
    """Whether it wrote its last status just before: its agent was there until the trouble came."""
    return trouble_s is not None and 0.0 <= peer.behind_s - trouble_s <= BETWEEN_S


def went_as_far(silent: NodeStatus, others: Sequence[NodeStatus]) -> bool:
    """Whether a node's ranks, by their last counters, may have ended where the others are now."""
    now = _newest(others)
    if not now:
        return not others or not _newest([silent])
    rates = [row.rate for row in silent.live if row.rate is not None]
    could = 2 + BETWEEN_S * max(rates, default=0.0)
    last = _newest([silent])
    return any(key in now and now[key] - last[key] <= could for key in last)


def _newest(states: Iterable[NodeStatus]) -> dict[tuple[str, str], int]:
    """The newest operation that any rank has launched, by group."""
    newest: dict[tuple[str, str], int] = {}
    for status in states:
        for row in status.live:
            for group in row.groups:
                key = (group.recorder, group.name)
                newest[key] = max(newest.get(key, 0), group.enqueued)
    return newest
