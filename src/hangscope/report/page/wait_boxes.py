"""The waits, as boxes and arrows: ranks that wait for the same in the same operation are one box.

The culprit is the first box and every arrow leads towards it. Where it waits itself for other programs, these stand
before it, each a box of its own. A layout repeats itself over its groups: boxes of one kind of operation at one
distance are drawn as one, with how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.p2p_matching import other_side
from hangscope.diagnosis.verdict import CauseKind, Diagnosis, Link
from hangscope.model import Kind, Operation, State
from hangscope.report.page.page_text import SHORT, rank_runs, shown
from hangscope.report.page.timeline import group_labels
from hangscope.report.verdict_text import kind_text
from hangscope.sources.process_waits.chains import ENDS, Step
from hangscope.text import plural, spans

_BOXES = 6
"""In one column; more become one box."""
_WIDE = 168
_HIGH = 62
_GAP_X = 46
_GAP_Y = 14
_TOP = 8


_GAP_LINK = 44
_PROGRAMS = 12


@dataclass(slots=True)
class Box:
    """Ranks drawn together. `sets` counts the sets of ranks that it stands for."""

    ranks: set[int]
    level: int
    role: str
    says: str
    group: str = ""
    operation: str = ""
    waits_for: set[int] = field(default_factory=set)
    sets: int = 1
    x: int = 0
    y: int = 0
    program: str = ""
    """Of a process that is no rank: what it is called."""
    names: str = ""
    """More of it, for the tip."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a rank at fault waits for itself."""

    waits_for: set[int]
    group: str
    operation: str


def waits(diagnosis: Diagnosis, alignment: Alignment) -> dict[str, Any] | None:
    """Boxes and arrows with their places; None where nobody waits."""
    if not diagnosis.victims and diagnosis.link is None and not diagnosis.program_waits:
        return None
    roots = {culprit.rank for culprit in diagnosis.culprits}
    circle = _own_waits(diagnosis, alignment)
    boxes = _roots(diagnosis, circle) + _victims(diagnosis, roots)
    programs, ways = _programs(diagnosis, boxes)
    boxes = programs + boxes
    columns: dict[int, list[Box]] = {}
    for box in boxes:
        columns.setdefault(box.level, []).append(box)
    for number, level in enumerate(sorted(columns)):
        if level > 0:
            columns[level] = _folded(columns[level])
        for place, box in enumerate(columns[level]):
            box.x = number * (_WIDE + _GAP_X) + 2
            # Between the two ends of a link there is room for what goes wrong there.
            gap = _GAP_LINK if diagnosis.link is not None and number == 0 else _GAP_Y
            box.y = _TOP + place * (_HIGH + gap)
    drawn = [box for level in sorted(columns) for box in columns[level]]
    return {
        "boxes": [_box(box) for box in drawn],
        "arrows": [*_arrows(drawn, diagnosis, circle), *(_way(way) for way in ways)],
        "width": max((box.x for box in drawn), default=0) + _WIDE + 6,
        "height": max((box.y for box in drawn), default=0) + _HIGH + _TOP,
    }


def _roots(diagnosis: Diagnosis, circle: Mapping[int, Wait]) -> list[Box]:
    if diagnosis.link is not None:
        return _ends(diagnosis.link, diagnosis)
    homes: dict[str, set[int]] = {}
    for culprit in diagnosis.culprits:
        homes.setdefault(culprit.node or "", set()).add(culprit.rank)
    if len(homes) > _BOXES:
        homes = {plural(len(homes), "node"): {culprit.rank for culprit in diagnosis.culprits}}
    boxes = []
    for node, ranks in homes.items():
        own = {(wait.operation, wait.group) for wait in (circle[r] for r in ranks if r in circle)}
        operation, group = own.pop() if len(own) == 1 else ("", "")
        says = kind_text(diagnosis.kind)
        boxes.append(Box(ranks, 0, "culprit", says, group or node, operation))
    return boxes


@dataclass(frozen=True, slots=True)
class _Way:
    """One process waits for another."""

    source: Box
    target: Box
    says: str


def _programs(diagnosis: Diagnosis, boxes: list[Box]) -> tuple[list[Box], list[_Way]]:
    """The programs on the way from those at fault, each a box one further to the left, and who waits for which."""
    by_rank = {rank: box for box in boxes if box.level == 0 for rank in box.ranks}
    found: dict[tuple[str, int], Box] = {}
    ways: dict[tuple[int, int], _Way] = {}
    for rank, chain in sorted(diagnosis.program_waits.items()):
        before = by_rank.get(rank)
        for number, step in enumerate(chain.steps[1:], 1):
            process = step.process
            if before is None or process is None or len(found) >= _PROGRAMS:
                break
            held = by_rank.get(process.rank) if process.rank is not None else None
            box = held or found.get((step.node, process.pid))
            if box is None:
                last = step is chain.last and chain.end not in ("cycle", "outside", "dead")
                says = ENDS[chain.end] if last else f"pid {process.pid}"
                name = _short_name(process.command or process.name)
                box = Box(set(), -number, "culprit" if last else "waiting", says, step.node, program=name)
                box.names = f"pid {process.pid} ({process.command or process.name})"
                found[step.node, process.pid] = box
            ways.setdefault((id(before), id(box)), _Way(before, box, _in_call(chain.steps[number - 1])))
            before = box
        if chain.end == "cycle" and before is not None and rank in by_rank:
            first = by_rank[rank]
            ways.setdefault((id(before), id(first)), _Way(before, first, _in_call(chain.last)))
    return list(found.values()), [way for way in ways.values() if way.source is not way.target]


def _short_name(command: str) -> str:
    """A Python program by its script alone; any other as it calls itself."""
    words = command.split()
    script = len(words) == 2 and words[0].startswith("python")
    return words[1].rpartition("/")[2] if script else command


def _in_call(step: Step) -> str:
    if step.wait is None or step.target is None:
        return "waits"
    return f"{step.wait.call}, {step.target.kind} {step.target.what}"


def _way(way: _Way) -> dict[str, Any]:
    if way.target.level < way.source.level:
        return _across(way.source, way.target, f"waits in {way.says}")
    return _back(way.source, way.target, f"waits in {way.says}")


def _ends(link: Link, diagnosis: Diagnosis) -> list[Box]:
    """Both ends of a link, and whoever else is at fault."""
    boxes = []
    for end, says in ((link.sender, "sends"), (link.receiver, "receives")):
        over = f"{says} over {end.nic}" if end.nic else says
        boxes.append(Box({end.rank}, 0, "link", over, end.node or ""))
    others = {c.rank for c in diagnosis.culprits} - {link.sender.rank, link.receiver.rank}
    if others:
        boxes.append(Box(others, 0, "culprit", diagnosis.kind))
    return boxes


def _victims(diagnosis: Diagnosis, roots: set[int]) -> list[Box]:
    boxes: dict[tuple[int, str, str, frozenset[int]], Box] = {}
    last: dict[tuple[int, str, str, frozenset[int]], frozenset[int]] = {}
    everyone = roots | {victim.rank for victim in diagnosis.victims}
    known: dict[int, tuple[frozenset[int], frozenset[int]]] = {}  # thousands that wait in one operation share one list
    for victim in diagnosis.victims:
        if victim.rank in roots:
            continue  # it is a box already
        if id(victim.waits_for) not in known:
            named = frozenset(everyone.intersection(victim.waits_for))
            known[id(victim.waits_for)] = frozenset(named & roots), named
        at_root, targets = known[id(victim.waits_for)]
        direct = bool(at_root) or not roots
        level = 1 if direct else max(len(victim.chain) - 1, 2)
        # A group's members wait for each other's absent ones: where that is a set of victims, it is drawn once.
        key = (level, victim.group or "", victim.operation or "", at_root)
        box = boxes.setdefault(key, Box(set(), level, "waiting", "", victim.group or "", victim.operation or ""))
        box.ranks.add(victim.rank)
        if targets is not last.get(key):
            box.waits_for |= targets
            last[key] = targets
    for box in boxes.values():
        box.says = plural(len(box.ranks), "rank")
    return list(boxes.values())


def _folded(boxes: list[Box]) -> list[Box]:
    if len(boxes) <= _BOXES:
        return boxes
    alike: dict[str, list[Box]] = {}
    for box in boxes:
        alike.setdefault(box.operation.split(" ")[0], []).append(box)
    folded = [_merged(same) for same in alike.values()]
    if len(folded) > _BOXES:
        folded = [*folded[: _BOXES - 1], _merged(folded[_BOXES - 1 :])]
    return folded


def _merged(boxes: list[Box]) -> Box:
    if len(boxes) == 1:
        return boxes[0]
    ranks = set().union(*(box.ranks for box in boxes))
    groups = {box.group.split(" (")[0] for box in boxes}
    names = {box.operation.split(" ")[0] for box in boxes}
    return Box(
        ranks,
        boxes[0].level,
        "waiting",
        f"{plural(len(ranks), 'rank')} in {plural(sum(box.sets for box in boxes), 'set')}",
        groups.pop() if len(groups) == 1 else plural(len(groups), "kind") + " of groups",
        names.pop() if len(names) == 1 else "several operations",
        set().union(*(box.waits_for for box in boxes)),
        sum(box.sets for box in boxes),
    )


def _title(ranks: set[int]) -> str:
    """Which ranks, where that fits into a box; else how many: the tip names them."""
    said = spans(ranks)
    if len(ranks) == 1:
        return f"rank {said}"
    return f"ranks {said}" if len(said) <= 12 else f"{len(ranks):,} ranks"


def _box(box: Box) -> dict[str, Any]:
    return {
        "x": box.x,
        "y": box.y,
        "wide": _WIDE,
        "high": _HIGH,
        "role": box.role,
        "title": shown(box.program, 21) if box.program else _title(box.ranks),
        "says": shown(f"in {box.operation}" if box.operation else box.says, 22),
        "under": shown(f"{box.group} · {plural(box.sets, 'set')}" if box.sets > 1 else box.group, 23),
        "ranks": rank_runs(box.ranks),
        "all": shown(box.names or spans(box.ranks, limit=12)),
    }


def _arrows(boxes: list[Box], diagnosis: Diagnosis, circle: Mapping[int, Wait]) -> list[dict[str, Any]]:
    arrows = []
    if diagnosis.link is not None and len(boxes) > 1:
        first = boxes[0]
        second = boxes[1]
        arrows.append(_down(first, second, "no data arrives", "broken"))
    owner: Mapping[int, Box] = {rank: box for box in reversed(boxes) for rank in box.ranks}
    for box in boxes:
        targets = list({id(owner[r]): owner[r] for r in sorted(box.waits_for) if r in owner}.values())
        targets = [target for target in targets if target is not box and target.level < box.level][:_BOXES]
        for target in targets:
            arrows.append(_across(box, target, f"{box.operation} of {box.group}"))
    return arrows + _closing(boxes, circle)


def _closing(boxes: list[Box], circle: Mapping[int, Wait]) -> list[dict[str, Any]]:
    """The arrows that close a cycle: what those at fault wait for themselves."""
    owner = {rank: box for box in reversed(boxes) for rank in box.ranks}
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for rank, wait in circle.items():
        source = owner.get(rank)
        for target in [owner[r] for r in wait.waits_for if r in owner]:
            if source is not None and target is not source and (id(source), id(target)) not in found:
                found[id(source), id(target)] = _back(source, target, f"{wait.operation} of {wait.group}")
    return list(found.values())


def _own_waits(diagnosis: Diagnosis, alignment: Alignment) -> dict[int, Wait]:
    """In a deadlock those at fault wait too: for the members that have not come to what they are in."""
    found: dict[int, Wait] = {}
    if diagnosis.kind != CauseKind.DEADLOCK:
        return found
    ops = alignment.job.ops
    labels = group_labels(alignment.job)
    for culprit in diagnosis.culprits[:_BOXES]:
        mine = ops.rows(rank=culprit.rank)
        state = ops.column("state")[mine]
        mine = mine[(state == State.STARTED) | (state == State.SCHEDULED)]
        if len(mine):
            call = ops[int(mine[0])]
            awaited = _not_come(alignment, call)
            if awaited:
                found[culprit.rank] = Wait(awaited, labels[call.group.index], call.title)
    return found


def _not_come(alignment: Alignment, call: Operation) -> set[int]:
    """Who has not joined a call: its peer, or the members that recorded nothing at its position."""
    if alignment.point_to_point[call.row]:
        peer = call.destination if call.kind is Kind.SEND else call.source
        there = peer is None or other_side(alignment, call.row, call.rank, peer).row is not None
        return set() if peer is None or there else {peer}
    come = alignment.index.rows_at([call.group.index], call.seq)
    return set(call.group.members or ()) - set(alignment.job.ops.column("rank")[come].tolist())


def _across(source: Box, target: Box, title: str) -> dict[str, Any]:
    x1 = source.x
    y1 = source.y + _HIGH // 2
    x2 = target.x + _WIDE + 9
    y2 = target.y + _HIGH // 2
    bend = (x1 - x2) // 2
    return {
        "path": f"M{x1} {y1} C{x1 - bend} {y1} {x2 + bend} {y2} {x2} {y2}",
        "head": f"M{x2 + 8} {y2 - 5} L{x2 - 6} {y2} L{x2 + 8} {y2 + 5} Z",
        "x": 0,
        "y": 0,
        "says": "",
        "role": "waiting",
        "title": shown(title),
    }


def _back(source: Box, target: Box, title: str) -> dict[str, Any]:
    """What the culprit itself waits for, in a deadlock: an arrow the other way, below the first one."""
    x1 = source.x + _WIDE
    y1 = source.y + _HIGH - 8
    x2 = target.x - 9
    y2 = target.y + _HIGH - 8
    if target.level == source.level:
        return _down(source, target, title, "waiting")
    bend = max((x2 - x1) // 2, 20)
    return {
        "path": f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}",
        "head": f"M{x2 - 8} {y2 - 5} L{x2 + 6} {y2} L{x2 - 8} {y2 + 5} Z",
        "x": 0,
        "y": 0,
        "says": "",
        "role": "culprit",
        "title": shown(title),
    }


def _down(source: Box, target: Box, says: str, role: str) -> dict[str, Any]:
    x = source.x + 26
    down = target.y > source.y
    y1, y2 = (source.y + _HIGH, target.y - 7) if down else (source.y, target.y + _HIGH + 7)
    tip = -7 if down else 7
    return {
        "path": f"M{x} {y1} L{x} {y2}",
        "head": f"M{x - 5} {y2 + tip + 4 if down else y2 + tip - 4} L{x + 5} {y2 + tip + 4 if down else y2 + tip - 4} "
        f"L{x} {y2 + 6 if down else y2 - 6} Z",
        "x": x + 60,
        "y": (y1 + y2) // 2 + 4,
        "says": shown(says, SHORT // 2),
        "role": role,
        "title": shown(says),
    }
