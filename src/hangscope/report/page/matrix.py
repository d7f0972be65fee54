"""The matrix: where every rank stands around the frontier of its groups.

Groups that no rank shares (the tensor groups of a mesh) stand in one block of columns. A column is a position: the same
operation on every member. Rows that look alike are one row with a count, so that what differs stands out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Group, Job, Kind, State
from hangscope.report.page.agreement import differs
from hangscope.report.page.moments import Moments
from hangscope.report.page.texts import SHORT, runs, shown
from hangscope.report.spans import Ints, paired
from hangscope.report.strip import Letters
from hangscope.words import plural, spans

Cells = npt.NDArray[np.uint8]

NONE, DONE, STARTED, SCHEDULED, ABSENT, UNKNOWN = range(6)
DIFFERS = 8
"""Added to a cell whose rank made another call than most of its group at that position."""
LETTERS = " CSs-?"
"""How cells are written in the page's data; a call that differs has its letter in the second half: ``DTt``."""
_DIFFERENT = {DONE: "D", STARTED: "T", SCHEDULED: "t"}
_STATES = {"not launched": ABSENT, "scheduled": SCHEDULED, "started": STARTED, "completed": DONE, "unknown": UNKNOWN}

_FEW = 64
"""Up to so many ranks have a row each."""
_ROWS = 120
_BLOCKS = 5
_BEFORE, _AFTER = 4, 2
_TOGETHER = 6
"""Groups of one block whose frontiers are closer than this share sequence numbers as columns."""


@dataclass(slots=True)
class Block:
    """Groups without common members, side by side."""

    groups: list[Group]
    group_of: Ints
    """Per rank (by its place among the job's ranks) the group it belongs to, or -1."""
    waiting: int = 0


def matrix(diagnosis: Diagnosis, job: Job, moments: Moments, letters: Letters) -> dict[str, Any]:
    """Blocks of columns and rows of cells, as the script draws them."""
    ranks = np.array(job.ranks, dtype=np.int64)
    collective = _collectives(job)
    blocks = _blocks(job, ranks, collective, moments.group)
    columns: list[dict[str, Any]] = []
    cells: list[Cells] = []
    for block in blocks[:_BLOCKS]:
        head, part = _block(diagnosis, job, ranks, block, collective, moments)
        if head["columns"]:
            columns.append(head)
            cells.append(part)
    peers = _peers(diagnosis, job, ranks)
    if peers is not None:
        columns.append(peers[0])
        cells.append(peers[1])
    whole = np.hstack(cells) if cells else np.zeros((len(ranks), 0), dtype=np.uint8)
    return {
        "blocks": columns,
        "rows": _rows(job, ranks, whole, letters),
        "ranks": len(ranks),
        "more": plural(len(blocks) - _BLOCKS, "more set") + " of groups" if len(blocks) > _BLOCKS else "",
    }


def _collectives(job: Job) -> Ints:
    """Rows that stand for a position: collectives with a number, and a batch by its closing entry."""
    ops = job.ops
    kind, seq, batch = ops.column("kind"), ops.column("seq"), ops.column("batch").astype(np.int64)
    peer = (kind == Kind.SEND) | (kind == Kind.RECV)
    key = ops.column("rank").astype(np.int64) * (int(batch.max(initial=0)) + 2) + batch
    with_peers = (batch >= 0) & np.isin(key, np.unique(key[peer & (batch >= 0)]))
    coalesced = np.isin(ops.column("name"), [i for i, name in enumerate(ops.tables.names) if name == "coalesced"])
    return np.flatnonzero(~peer & ~with_peers & ~((kind == Kind.BATCH) & coalesced) & (seq >= 0))


# ---- which groups ----------------------------------------------------------------------------------------------------


def _blocks(job: Job, ranks: Ints, collective: Ints, hung: int | None) -> list[Block]:
    """Blocks in the order of interest: the one of the hung operation, then those with most that has not ended."""
    used = np.unique(job.ops.column("group")[collective])
    unfinished = job.ops.column("state")[collective] < State.COMPLETED
    waiting = np.bincount(job.ops.column("group")[collective][unfinished], minlength=len(job.groups))
    blocks: dict[str, list[Block]] = {}
    wanted = sorted({*used.tolist(), *([] if hung is None else [hung])})
    present: dict[int, Ints] = {}
    for index in wanted:
        group = job.groups[index]
        members = group.members
        if members is None:
            rows = collective[job.ops.column("group")[collective] == index]
            members = tuple(np.unique(job.ops.column("rank")[rows]).tolist())
        places = np.searchsorted(ranks, np.array(members, dtype=np.int64))
        places = places[places < len(ranks)]
        present[index] = places
        label = group.label if group.desc and group.desc != "undefined" else f"groups of {len(members)}"
        for block in blocks.setdefault(label, []):
            if not (block.group_of[places] >= 0).any():
                break
        else:
            block = Block([], np.full(len(ranks), -1, dtype=np.int64))
            blocks[label].append(block)
        block.groups.append(group)
        block.group_of[places] = index
        block.waiting += int(waiting[index])
    found = [block for alike in blocks.values() for block in alike]
    return sorted(found, key=lambda block: (all(g.index != hung for g in block.groups), -block.waiting))


def _frontiers(job: Job, block: Block, rows: Ints) -> dict[int, int]:
    """For each group the first position that a member has not finished, though another has launched it."""
    ops = job.ops
    group, seq, state = ops.column("group")[rows].astype(np.int64), ops.column("seq")[rows], ops.column("state")[rows]
    found: dict[int, int] = {}
    pair = paired(group, ops.column("rank")[rows].astype(np.int64))
    if not len(rows):
        return found
    # Per rank and group: the first unfinished, else the one after its last.
    first = np.full(int(pair.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, pair, np.where(state < State.COMPLETED, seq, np.iinfo(np.int64).max))
    last = np.full(int(pair.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(last, pair, seq + 1)
    first = np.minimum(first, last)
    owner = np.zeros(int(pair.max()) + 1, dtype=np.int64)
    owner[pair] = group
    for index in {g.index for g in block.groups}:
        mine = first[owner == index]
        if len(mine):
            found[index] = int(mine.min())
    return found


# ---- one block -------------------------------------------------------------------------------------------------------


def _block(
    diagnosis: Diagnosis, job: Job, ranks: Ints, block: Block, collective: Ints, moments: Moments
) -> tuple[dict[str, Any], Cells]:
    ops = job.ops
    index = np.array([group.index for group in block.groups])
    rows = collective[np.isin(ops.column("group")[collective], index)]
    frontiers = _frontiers(job, block, rows)
    operation = diagnosis.operation
    at_hung = moments.group if operation is not None and moments.group in index else None
    if at_hung is not None and operation is not None and operation.seq is not None:
        frontiers[at_hung] = operation.seq
    if not frontiers:
        return {"columns": []}, np.zeros((len(ranks), 0), dtype=np.uint8)
    main = frontiers[at_hung] if at_hung is not None and at_hung in frontiers else min(frontiers.values())
    together = max(frontiers.values()) - min(frontiers.values()) < _TOGETHER
    zero = np.full(len(job.groups), main, dtype=np.int64)  # per group, the position in the frontier's column
    if not together:
        for number, value in frontiers.items():
            zero[number] = value
    else:
        main = min(main, *frontiers.values()) if at_hung is None else main
        zero[:] = main

    seq, group = ops.column("seq")[rows], ops.column("group")[rows].astype(np.int64)
    relative = seq - zero[group]
    low = max(-_BEFORE, min(int(relative.min(initial=0)), 0))
    launched = int(relative.max(initial=-_BEFORE))
    high = min(_AFTER, max(launched, 0) if at_hung is not None else launched)
    window = (relative >= low) & (relative <= high)
    cells = _cells(diagnosis, job, ranks, block, rows, relative, window, low, high, zero)
    if at_hung is not None and operation is not None and low <= 0 <= high:
        for rank, state in operation.state_by_rank.items():
            place = int(np.searchsorted(ranks, rank))
            if place < len(ranks) and int(ranks[place]) == rank and state in _STATES:
                kept = cells[place, -low] & DIFFERS
                cells[place, -low] = _STATES[state] | (kept if _STATES[state] in _DIFFERENT else 0)
    heads = []
    for column in range(low, high + 1):
        here = rows[window][relative[window] == column]
        name = _usual(job, here)
        heads.append(
            {
                "at": f"#{main + column}" if together else ("0" if column == 0 else f"{column:+d}"),
                "name": shown(name, SHORT),
                "frontier": column == 0 and (diagnosis.hang or at_hung is not None),
            }
        )
    count = len(block.groups)
    label = shown(block.groups[0].label, SHORT)
    return (
        {
            "label": label if count == 1 else f"{label} ({count} groups)",
            "hung": at_hung is not None,
            "columns": heads,
            "note": "" if together else "columns count from each group's own frontier",
        },
        cells,
    )


def _usual(job: Job, rows: Ints) -> str:
    if not len(rows):
        return ""
    return job.ops.tables.name(int(np.bincount(job.ops.column("name")[rows]).argmax()))


def _cells(
    diagnosis: Diagnosis,
    job: Job,
    ranks: Ints,
    block: Block,
    rows: Ints,
    relative: Ints,
    window: npt.NDArray[np.bool_],
    low: int,
    high: int,
    zero: Ints,
) -> Cells:
    ops = job.ops
    place = np.searchsorted(ranks, ops.column("rank")[rows])
    cells = _without_record(job, ranks, block, rows, relative, place, low, high)
    seen = rows[window]
    state = np.array([UNKNOWN, SCHEDULED, STARTED, DONE], dtype=np.uint8)[np.clip(ops.column("state")[seen], 0, 3)]
    others = differs(job, seen, stacks=diagnosis.kind == "mismatch")
    cells[place[window], relative[window] - low] = state | np.where(others & (state != UNKNOWN), DIFFERS, 0)
    return cells


def _without_record(
    job: Job, ranks: Ints, block: Block, rows: Ints, relative: Ints, place: Ints, low: int, high: int
) -> Cells:
    """What is said of members that have no record of a position: not launched, or not known; nothing of others."""
    far = np.iinfo(np.int64).max
    first, last = np.full(len(ranks), far), np.full(len(ranks), -far)
    np.minimum.at(first, place, relative)
    np.maximum.at(last, place, relative)
    member = block.group_of >= 0
    sound = np.array([_sound(job, int(rank)) for rank in ranks], dtype=bool)
    wrapped = np.array([job.wrapped(int(rank)) for rank in ranks], dtype=bool)
    # How far anybody of the rank's own group has come: nobody is absent from what nobody launched.
    reached = np.full(len(job.groups) + 1, -far)
    np.maximum.at(reached, job.ops.column("group")[rows].astype(np.int64), relative)
    reached_by_group = reached[block.group_of]
    columns = np.arange(low, high + 1)[None, :]
    nothing = last == -far
    beyond = np.where(nothing[:, None], ~wrapped[:, None], columns > last[:, None])
    cells = np.where(sound[:, None] & beyond, ABSENT, UNKNOWN)
    cells = np.where(columns > reached_by_group[:, None], NONE, cells)
    return np.where(member[:, None], cells, NONE).astype(np.uint8)


def _sound(job: Job, rank: int) -> bool:
    """Whether the end of a rank's recording can be trusted: what is not in it was not launched."""
    dumps = job.dumps.get(rank, ())
    return any(dump.complete and dump.records > 0 and dump.role == "dump" for dump in dumps)


# ---- point-to-point --------------------------------------------------------------------------------------------------


def _peers(diagnosis: Diagnosis, job: Job, ranks: Ints) -> tuple[dict[str, Any], Cells] | None:
    """The last sends and receives of every rank, and what it is in the middle of."""
    ops = job.ops
    kind = ops.column("kind")
    rows = np.flatnonzero((kind == Kind.SEND) | (kind == Kind.RECV))
    if not len(rows):
        return None
    place = np.searchsorted(ranks, ops.column("rank")[rows])
    state = ops.column("state")[rows]
    cells = np.zeros((len(ranks), _BEFORE + 1), dtype=np.uint8)
    done = state == State.COMPLETED
    ended, at = rows[done], place[done]
    # Rows are in recorded order within a rank: the number from the end says the column.
    count = np.bincount(at, minlength=len(ranks))
    starts = np.cumsum(count) - count
    back = count[at] - (np.arange(len(ended)) - starts[at])
    recent = back <= _BEFORE
    cells[at[recent], _BEFORE - back[recent]] = DONE
    for value, code in ((State.SCHEDULED, SCHEDULED), (State.STARTED, STARTED)):
        cells[place[state == value], _BEFORE] = code
    user = np.zeros(len(ranks), dtype=bool)
    user[place] = True
    accused = {culprit.rank for culprit in diagnosis.culprits}
    if diagnosis.operation is not None:
        accused |= {r for r, s in diagnosis.operation.state_by_rank.items() if s == "not launched"}
        accused &= set(diagnosis.operation.state_by_rank) or accused
    for rank in accused:
        spot = int(np.searchsorted(ranks, rank))
        pair = diagnosis.operation is not None and ("->" in diagnosis.operation.name or "<-" in diagnosis.operation.name)
        if pair and spot < len(ranks) and int(ranks[spot]) == rank and cells[spot, _BEFORE] == NONE:
            cells[spot, _BEFORE] = ABSENT if _sound(job, rank) else UNKNOWN
    heads: list[dict[str, Any]] = [
        {"at": f"-{_BEFORE - i}", "name": "an earlier send or recv", "frontier": False} for i in range(_BEFORE)
    ]
    heads.append({"at": "now", "name": "the send or recv in flight", "frontier": diagnosis.hang})
    hung = diagnosis.operation is not None and ("->" in diagnosis.operation.name or "<-" in diagnosis.operation.name)
    return {"label": "send and recv", "hung": hung, "columns": heads, "note": ""}, cells


# ---- rows ------------------------------------------------------------------------------------------------------------


def text_of(cells: Cells) -> str:
    return "".join(_DIFFERENT[int(c) & 7] if c & DIFFERS else LETTERS[c] for c in cells.tolist())


def _rows(job: Job, ranks: Ints, cells: Cells, letters: Letters) -> list[dict[str, Any]]:
    """One row a rank where there are few; otherwise ranks that look alike together. Those at fault come first."""
    role = [letters.by_rank.get(int(rank), "?") for rank in ranks]
    looks = [text_of(row) for row in cells] if len(ranks) <= _FEW else _looks(cells)
    homes = [job.nodes.get(int(rank), "") for rank in ranks]
    keys: dict[tuple[object, ...], list[int]] = {}
    for place, rank in enumerate(ranks.tolist()):
        alone = len(ranks) <= _FEW or role[place] in "X><"
        keys.setdefault((rank,) if alone else (role[place], looks[place]), []).append(place)
    sets = sorted(keys.values(), key=lambda places: (role[places[0]] not in "X><", len(ranks) > _FEW and role[places[0]] == ".", places[0]))
    rows = []
    for places in sets[:_ROWS]:
        nodes = list(dict.fromkeys(homes[place] for place in places if homes[place]))
        mine = [int(ranks[place]) for place in places]
        rows.append(
            {
                "ranks": runs(mine),
                "label": spans(mine, limit=3),
                "count": len(places),
                "node": shown(nodes[0], SHORT) if len(nodes) == 1 else (plural(len(nodes), "node") if nodes else ""),
                "role": role[places[0]],
                "cells": looks[places[0]],
            }
        )
    rest = sets[_ROWS:]
    if rest:
        left = [int(ranks[place]) for places in rest for place in places]
        rows.append(
            {
                "ranks": runs(left),
                "label": f"{plural(len(left), 'more rank')}, of {plural(len(rest), 'other look')}",
                "count": len(left),
                "node": "",
                "role": ".",
                "cells": "",
            }
        )
    return rows


def _looks(cells: Cells) -> list[str]:
    if not cells.shape[1]:
        return [""] * len(cells)
    distinct, index = np.unique(cells, axis=0, return_inverse=True)
    texts = [text_of(row) for row in distinct]
    return [texts[i] for i in index.reshape(-1).tolist()]


def legend(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """The letters that occur in the cells, with what they say."""
    used = set("".join(row["cells"] for row in rows))
    says = {
        "C": "completed",
        "S": "started, not ended",
        "s": "scheduled, not started",
        "-": "not launched",
        "?": "not known",
    }
    found = [(letter, text) for letter, text in says.items() if letter in used or (letter == "C" and "D" in used)]
    if used & set("DTt"):
        found.append(("D", "another call than most of its group"))
    return found
