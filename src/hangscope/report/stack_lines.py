"""The tree of all stacks as lines of text, for a terminal and for the page: a flame graph without its picture."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from hangscope.model import Frame
from hangscope.report.stack_tree import Branch, StackTree
from hangscope.report.text_layout import Line, Piece, cells, shorten
from hangscope.text import is_own_code, plural, rank_list

MOST_LINES = 400
MOST_WAYS = 12
"""Branches at one place; of more, the rest is counted."""
_RANGES = 8
_OTHERS = 8
_OTHER_FRAMES = 4
_FOLDED = 3
"""So many library frames in a row, and more, become one line where the user's own code goes on below them."""
_INSTALLED = re.compile(r"^.*/(?:site-packages|dist-packages|lib(?:64)?/python3[.\d]*t?)/")


@dataclass(frozen=True, slots=True)
class Look:
    """How the tree is shown."""

    width: int = 100
    every_frame: bool = False
    culprits: Collection[int] = frozenset()
    most: int = MOST_LINES


def stack_lines(tree: StackTree, look: Look) -> list[Line]:
    """The whole tree, at most so many lines of it."""
    lines: list[Line] = [(Piece(_about(tree), "faint"),), ()]
    for number, branch in enumerate(_sorted(tree.branches, look)[:MOST_WAYS]):
        if number:
            lines.append(())
        lines += _drawn(branch, "", tree, look)
    lines += _folded(_sorted(tree.branches, look)[MOST_WAYS:], "")
    lines += _other_lines(tree, look)
    if tree.without:
        lines += [(), (Piece(f"no stack of {rank_list(tree.without, _RANGES)}", "faint"),)]
    if tree.left_out:
        lines.append((Piece(f"{tree.left_out:,} more stacks are left out", "faint"),))
    if len(lines) > look.most:
        more = len(lines) - look.most
        lines = [*lines[: look.most], (Piece(f"… {more:,} more lines (--json has all of it)", "faint"),)]
    return lines


def _other_lines(tree: StackTree, look: Look) -> Iterator[Line]:
    """The engine's processes that are no ranks, each with its innermost frames."""
    for other in tree.others[:_OTHERS]:
        yield ()
        yield (Piece(f"{other.label} (pid {other.pid}), no rank", "label"),)
        for frame in other.frames[-_OTHER_FRAMES:]:
            role = "" if is_own_code(frame.filename) else "faint"
            yield (Piece(shorten(_frame(frame), max(20, look.width)), role),)
        if not other.frames:
            yield (Piece("no stack of it", "faint"),)


def _about(tree: StackTree) -> str:
    what = "all threads" if tree.all_threads else "the training thread"
    return f"{plural(len(tree.ranks), 'rank')}, {what} of each, outermost call first"


def _sorted(branches: Sequence[Branch], look: Look) -> list[Branch]:
    """The one that most take comes first, then what is to be seen even where there are many: culprits."""
    accused = set(look.culprits)
    return sorted(branches, key=lambda branch: (branch is not branches[0], accused.isdisjoint(branch.ranks)))


def _drawn(branch: Branch, lead: str, tree: StackTree, look: Look, *, first: str | None = None) -> Iterator[Line]:
    """One branch: who takes it, its frames, and the branches below. `first` leads its first line."""
    yield (Piece(lead if first is None else first, "faint"), *_who(branch, tree, look))
    for text, role in _frame_lines(branch, look):
        yield (Piece(lead, "faint"), Piece(shorten(text, max(20, look.width - cells(lead))), role))
    ways = _sorted(branch.ways, look)
    shown = ways[:MOST_WAYS]
    for number, way in enumerate(shown):
        last = number == len(ways) - 1
        below = lead + ("   " if last else "│  ")
        yield from _drawn(way, below, tree, look, first=lead + ("└─ " if last else "├─ "))
    yield from _folded(ways[MOST_WAYS:], lead)


def _folded(branches: Sequence[Branch], lead: str) -> list[Line]:
    if not branches:
        return []
    ranks = {rank for branch in branches for rank in branch.ranks}
    text = f"└─ {rank_list(ranks, _RANGES)} at {plural(len(branches), 'other place')}"
    return [(Piece(lead + text, "waiting" if any(branch.odd for branch in branches) else "faint"),)]


def _who(branch: Branch, tree: StackTree, look: Look) -> tuple[Piece, ...]:
    text = rank_list(branch.ranks, _RANGES)
    if len(branch.ranks) == 1 and (role := tree.roles.get(branch.ranks[0])):
        text += f" ({role})"
    if tree.all_threads and branch.stacks != len(branch.ranks):
        text += f" ({branch.stacks} threads)"
    elif len(branch.ranks) > 1:
        text += f" ({len(branch.ranks)})"
    if not branch.frames:
        text += ", in that call"
    accused = [rank for rank in branch.ranks if rank in look.culprits]
    if accused and not branch.ways:
        return (Piece(text, "culprit"), Piece("  ◀ culprit", "culprit"))
    if branch.odd:
        threads = " threads" if tree.all_threads else ""
        return (Piece(text, "waiting"), Piece(f"  ◀ few: {branch.stacks} of {_total(tree)}{threads}", "waiting"))
    return (Piece(text, "label"),)


def _total(tree: StackTree) -> int:
    return sum(branch.stacks for branch in tree.branches)


def _frame_lines(branch: Branch, look: Look) -> Iterator[tuple[str, str]]:
    """Its frames with their role. Runs of library frames between lines of the user's own are one line."""
    frames = branch.frames
    innermost = max((at for at, frame in enumerate(frames) if is_own_code(frame.filename)), default=-1)
    for own, run in groupby(range(len(frames)), key=lambda at: is_own_code(frames[at].filename)):
        part = list(run)
        between = part[-1] < innermost or bool(branch.ways)
        if not own and between and len(part) >= _FOLDED and not look.every_frame:
            yield f"… {len(part)} frames of libraries", "faint"
            continue
        for at in part:
            yield _frame(frames[at]), "" if own else "faint"


def _frame(frame: Frame) -> str:
    if not frame.filename:
        return frame.name
    file = _INSTALLED.sub("", frame.filename.replace("\\", "/")[-400:])
    if is_own_code(frame.filename):
        file = file.rpartition("/")[2]
    return f"{file}:{frame.line}  {frame.name}"
