"""How late each rank came to the collectives, and what that cost the others.

Two clocks are never compared directly. Where the recorder timed operations, the time a rank spent inside says how long
it waited: the rank that spent the least came last. Otherwise the nodes' clocks are aligned through the completion of
collectives, which ends on all members at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.align import Alignment, Lane
from hangscope.diagnosis.standing import is_symmetric
from hangscope.diagnosis.verdict import Lateness
from hangscope.model import UNKNOWN, Kind, State

Floats = npt.NDArray[np.float64]

_SWEEP_MS = 100.0
"""How often PyTorch's watchdog looks (torch 2.2-2.15)."""
_LOOK_BACK = 256
"""How many calls back a wait is looked for that made a rank late."""


@dataclass(frozen=True, slots=True)
class Tardiness:
    """The result over the recorded window."""

    ranks: tuple[Lateness, ...]
    """Slowest first; only ranks that kept others waiting."""
    window_ms: float
    operations: int
    total_cost_ms: float
    skew_ms: float | None
    everywhere: frozenset[int]
    """Ranks that come late to all of their groups. One that is on time in some group waits for what is late there."""
    waited_ms: dict[int, float]
    """Per rank how long it waited in collectives itself."""
    timed: bool
    """Whether the recorder timed the operations; otherwise aligned clocks were compared, which is less sure."""


def tardiness(alignment: Alignment) -> Tardiness:
    """For every rank: how often it came last by itself, by how much, and which share of the window that cost."""
    job = alignment.job
    ops = job.ops
    offsets, skew = _clock_offsets(alignment)
    waited = np.full(len(ops), np.nan)
    late: list[tuple[int, int, float]] = []  # row of the last rank, its rank, what it cost the others
    operations = 0
    symmetric = _symmetric_names(alignment)
    for lane in alignment.lanes.values():
        for every, every_wait in _waits(alignment, lane, offsets):
            waited[every.reshape(-1)] = every_wait.reshape(-1)
            # A broadcast's root leaves early and its last receiver late by nature: that is passed on, not judged.
            judged = np.isin(ops.column("name")[every[:, 0]], symmetric)
            rows, wait = every[judged], every_wait[judged]
            operations += len(rows)
            last = np.argmin(wait, axis=1)
            index = np.arange(len(rows))
            others = np.sort(wait, axis=1)[:, 1:]
            cost = np.median(others, axis=1) - wait[index, last]
            last_rows = rows[index, last]
            late += zip(last_rows.tolist(), ops.column("rank")[last_rows].tolist(), cost.tolist(), strict=True)
    _add_peer_waits(alignment, waited)
    own = [
        (row, rank, cost) for row, rank, cost in late if cost > 0 and not _passed_on(alignment, row, rank, cost, waited)
    ]
    window_ms = _window_ms(alignment)
    costs: dict[int, list[float]] = {}
    by_group: dict[int, dict[int, float]] = {}
    for row, rank, cost in own:
        costs.setdefault(rank, []).append(cost)
        group = int(ops.column("group")[row])
        by_group.setdefault(rank, {})[group] = by_group.setdefault(rank, {}).get(group, 0.0) + cost
    # A rank that waits as much as it makes others wait only passes on what reached it many calls ago.
    collective = np.where(alignment.point_to_point, 0.0, np.nan_to_num(waited, posinf=0.0))
    costs = {
        rank: values for rank, values in costs.items() if float(collective[ops.span(rank)].sum()) <= sum(values) / 2
    }
    total = sum(sum(values) for values in costs.values())
    judged_rows = np.isfinite(waited) & ~alignment.point_to_point
    joined = {rank: int(np.sum(judged_rows[ops.span(rank)])) for rank in costs}
    ranks = [
        Lateness(
            rank=rank,
            late_ms_median=float(np.median(values)),
            share_of_step=sum(values) / window_ms if window_ms > 0 else 0.0,
            times_last=len(values),
            operations=joined[rank],
        )
        for rank, values in costs.items()
    ]
    ranks.sort(key=lambda item: (-item.share_of_step, item.rank))
    timed = bool(np.any(np.isfinite(ops.columns["duration_ms"].astype(np.float64))))
    everywhere = frozenset(rank for rank in costs if _late_everywhere(alignment, rank, by_group[rank], judged_rows))
    own_waits = {rank: float(collective[ops.span(rank)].sum()) for rank in job.ranks}
    return Tardiness(tuple(ranks), window_ms, operations, total, skew, everywhere, own_waits, timed)


def _late_everywhere(alignment: Alignment, rank: int, costs: dict[int, float], judged: npt.NDArray[np.bool_]) -> bool:
    ops = alignment.job.ops
    span = ops.span(rank)
    groups, counts = np.unique(ops.column("group")[span][judged[span]], return_counts=True)
    often = [g for g, count in zip(groups.tolist(), counts.tolist(), strict=True) if count >= 4]
    most = max(costs.values())
    return all(costs.get(g, 0.0) >= most / 10 for g in often)


def _add_peer_waits(alignment: Alignment, waited: Floats) -> None:
    """A receive waits for its sender: as long as it took or, where it was not timed, as long as it may have been."""
    ops = alignment.job.ops
    rows = np.flatnonzero(alignment.point_to_point)
    duration = ops.columns["duration_ms"][rows].astype(np.float64)
    timed = np.isfinite(duration)
    # Inside a batch only its closing entry is timed.
    inner = (ops.column("batch")[rows] != UNKNOWN) & (ops.column("kind")[rows] != Kind.BATCH)
    waited[rows] = np.where(timed, duration, np.where(inner & timed.any(), np.nan, np.inf))


def _symmetric_names(alignment: Alignment) -> list[int]:
    return [i for i, name in enumerate(alignment.job.ops.tables.names) if is_symmetric(name)]


def _passed_on(alignment: Alignment, row: int, rank: int, cost: float, waited: Floats) -> bool:
    """Whether the rank came late because it had itself been kept waiting since its last call in the same group."""
    ops = alignment.job.ops
    ranks, groups = ops.column("rank"), ops.column("group")
    low = max(row - _LOOK_BACK, 0)
    before = np.flatnonzero((ranks[low:row] != rank) | (groups[low:row] == groups[row]))
    # The wait in that last call itself counts: who waited in it left it no earlier than the others.
    start = low + int(before[-1]) if len(before) else low
    mine = waited[start:row][ranks[start:row] == rank]
    return bool(np.any(mine[~np.isnan(mine)] >= cost / 2))


def _complete_rows(alignment: Alignment, lane: Lane) -> npt.NDArray[np.int64] | None:
    """Rows of the operations that every member has finished, one line an operation, one column a member."""
    ops = alignment.job.ops
    # Members without a dump cannot be judged; the others still can be.
    members = sum(1 for rank in lane.group.members or () if rank in alignment.job.dumps)
    if members < 2:
        return None
    sizes = np.diff(lane.starts)
    full = np.flatnonzero(sizes == members)
    if not len(full):
        return None
    rows = lane.rows[lane.starts[:-1][full][:, None] + np.arange(members)[None, :]]
    good = np.all(ops.column("state")[rows] == State.COMPLETED, axis=1)
    return rows[good] if good.any() else None


def _waits(alignment: Alignment, lane: Lane, offsets: Floats | None) -> list[tuple[npt.NDArray[np.int64], Floats]]:
    """(rows, how long each member waited in ms) for the operations that can be judged."""
    rows = _complete_rows(alignment, lane)
    if rows is None:
        return []
    ops = alignment.job.ops
    duration = ops.columns["duration_ms"][rows].astype(np.float64)
    timed = np.all(np.isfinite(duration), axis=1)
    parts: list[tuple[npt.NDArray[np.int64], Floats]] = []
    if timed.any():
        part = duration[timed]
        parts.append((rows[timed], part - part.min(axis=1, keepdims=True)))
    elif (
        offsets is not None
        and not alignment.point_to_point[np.isin(ops.column("rank"), ops.column("rank")[rows[0]])].any()
    ):
        # A pipeline's stages come at different times by nature; without timing nothing says whom they waited for.
        created = ops.column("created_ns")[rows]
        known = np.all(created >= 0, axis=1)
        if known.any():
            adjusted = created[known] / 1e6 - offsets[ops.column("rank")[rows[known]]]
            # Clocks are aligned through what the watchdogs noticed, and those sweep every 100 ms; and the CPU runs
            # ahead of the GPU by more or less. Only a larger lateness that is there at most calls means anything.
            usual = np.median(adjusted - np.median(adjusted, axis=1, keepdims=True), axis=0, keepdims=True)
            usual = usual - _node_share(alignment, rows[0], usual)
            adjusted = np.where(np.abs(usual) < _SWEEP_MS, 0.0, usual) + np.zeros_like(adjusted)
            parts.append((rows[known], adjusted.max(axis=1, keepdims=True) - adjusted))
    return parts


def _node_share(alignment: Alignment, rows: npt.NDArray[np.int64], usual: Floats) -> Floats:
    """Per member what all members on its node have in common: that is their clock, and not the rank."""
    ranks = alignment.job.ops.column("rank")[rows].tolist()
    nodes = [alignment.job.nodes.get(rank, f"rank {rank}") for rank in ranks]
    least: dict[str, float] = {}
    for node, value in zip(nodes, usual.reshape(-1).tolist(), strict=True):
        least[node] = value if node not in least else min(least[node], value, key=abs)
    return np.asarray([[least[node] for node in nodes]])


def _clock_offsets(alignment: Alignment) -> tuple[Floats | None, float | None]:
    """Per rank the offset of its node's clock in ms, and the spread of all offsets."""
    job, ops = alignment.job, alignment.job.ops
    if not job.ranks:
        return None, None
    size = max(job.ranks) + 1
    gathered: dict[int, list[float]] = {}
    for lane in alignment.lanes.values():
        rows = _complete_rows(alignment, lane)
        if rows is None:
            continue
        rows = rows[np.isin(ops.column("name")[rows[:, 0]], _symmetric_names(alignment))]
        if not len(rows):
            continue
        completed = ops.column("completed_ns")[rows[-200:]]
        # Only what the watchdog swept has a completion time of its own; the rest carries the time of the dump.
        good = np.all((completed > 0) & (ops.column("retired")[rows[-200:]] == 1), axis=1)
        if not good.any():
            continue
        spread = completed[good] / 1e6
        spread = spread - np.median(spread, axis=1, keepdims=True)
        ranks = ops.column("rank")[rows[0]]
        for column, rank in enumerate(ranks.tolist()):
            gathered.setdefault(rank, []).extend(spread[:, column].tolist())
    if not gathered:
        return None, None
    by_node: dict[object, list[float]] = {}
    for rank, values in gathered.items():
        by_node.setdefault(job.nodes.get(rank, rank), []).extend(values)
    node_offset = {node: float(np.median(values)) for node, values in by_node.items()}
    offsets = np.zeros(size)
    for rank in job.ranks:
        offsets[rank] = node_offset.get(job.nodes.get(rank, rank), 0.0)
    values = list(node_offset.values())
    return offsets, (max(values) - min(values)) if len(values) > 1 else 0.0


def _window_ms(alignment: Alignment) -> float:
    """The recorded time of the rank with the longest recording."""
    ops = alignment.job.ops
    created, ranks = ops.column("created_ns"), ops.column("rank")
    known = created >= 0
    if not known.any():
        return 0.0
    longest = 0.0
    for rank in np.unique(ranks[known]).tolist():
        mine = created[ops.span(rank)]
        mine = mine[mine >= 0]
        longest = max(longest, float(mine.max() - mine.min()) / 1e6)
    return longest
