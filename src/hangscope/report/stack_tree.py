"""The stacks of all ranks merged into one tree, outermost call first: who goes the same way shares a branch.

What is alike is folded, so that a thousand ranks are a few branches; and everything is bounded, because a stack may be
endless and a process may have any number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hangscope.diagnosis.evidence.training_thread import Stacks, inside_child
from hangscope.model import Frame, Job, ThreadStack
from hangscope.report.safe_text import whole

SCHEMA = "hangscope.stacks/1"
MOST_FRAMES = 200
"""Of one stack: the outermost half and the innermost half of it."""
MOST_STACKS = 10_000
MOST_LEVELS = 40
"""Branches below branches. What parts further in is one branch of its first stack."""
FEW = 2
"""A branch is an odd one where the usual one has at least so many times its stacks."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One thread's stack, outermost frame first, and each frame as a number: the same for frames that are the same."""

    rank: int
    frames: tuple[Frame, ...]
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Frames that all of these share, and the ways on from the last of them; none where the stacks end there."""

    frames: tuple[Frame, ...]
    ranks: tuple[int, ...]
    stacks: int
    odd: bool
    """Whether few come this way, beside those that take the usual one."""
    ways: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherStack:
    """Where a process of the engine is that is no rank: its main thread, outermost frame first."""

    pid: int
    label: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class StackTree:
    branches: tuple[Branch, ...]
    ranks: tuple[int, ...]
    without: tuple[int, ...]
    """Ranks of which no stack is known."""
    all_threads: bool = False
    left_out: int = 0
    """Stacks beyond the limit."""
    roles: Mapping[int, str] = field(default_factory=dict)
    """Rank → what its engine calls it."""
    others: tuple[OtherStack, ...] = ()


def stack_tree(job: Job, *, all_threads: bool = False) -> StackTree:
    """Of each rank the training thread in its newest sample; with `all_threads` all of them, and those of the processes
    that it started."""
    found = list(_all_threads(job)) if all_threads else list(_training_threads(job))
    numbers: dict[tuple[str, str, int], int] = {}
    kept = [_taken(rank, frames, numbers) for rank, frames in found[:MOST_STACKS]]
    ranks = tuple(sorted({stack.rank for stack in kept}))
    return StackTree(
        branches=_ways(kept, 0, 1),
        ranks=ranks,
        without=tuple(sorted(set(job.ranks) - set(ranks))),
        all_threads=all_threads,
        left_out=len(found) - len(kept),
        roles={rank: process.role.label for rank, process in job.processes.items() if process.role is not None},
        others=tuple(_others(job)),
    )


def _others(job: Job) -> Iterator[OtherStack]:
    """The processes of the engine that are no ranks, with the newest stack of each."""
    newest: dict[int, ThreadStack] = {}
    for stack in job.facts.stacks:
        if stack.rank is None and stack.pid is not None and stack.main:
            before = newest.get(stack.pid)
            newest[stack.pid] = stack if before is None or stack.sample >= before.sample else before
    for other in job.facts.others:
        found = newest.get(other.pid)
        yield OtherStack(other.pid, other.role.label, _bounded(found.frames) if found is not None else ())


def _taken(rank: int, frames: Sequence[Frame], numbers: dict[tuple[str, str, int], int]) -> Taken:
    bounded = _bounded(frames)
    return Taken(rank, bounded, tuple(numbers.setdefault(_key(frame), len(numbers)) for frame in bounded))


def _training_threads(job: Job) -> Iterator[tuple[int, tuple[Frame, ...]]]:
    for rank, stack in Stacks(job).of_all(job.ranks).items():
        if stack.frames:
            yield rank, stack.frames


def _all_threads(job: Job) -> Iterator[tuple[int, tuple[Frame, ...]]]:
    by_pid = {process.pid: rank for rank, process in job.processes.items() if process.pid is not None}
    by_process: dict[tuple[int, int | None], list[ThreadStack]] = {}
    for stack in job.facts.stacks:
        rank = stack.rank if stack.rank is not None or stack.pid is None else by_pid.get(stack.pid)
        if rank is not None and stack.frames:
            # The rank's own process goes without its pid, which not every source of stacks says.
            by_process.setdefault((rank, stack.pid if stack.child else None), []).append(stack)
    for (rank, _), stacks in sorted(by_process.items(), key=lambda each: each[0][0]):
        newest = max(stack.sample for stack in stacks)
        for stack in stacks:
            frames = inside_child(stack) if stack.child else stack.frames
            if stack.sample == newest and frames:
                yield rank, frames


def _bounded(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Outermost first; of an endless stack both ends."""
    left = len(frames) - MOST_FRAMES
    if left <= 0:
        return tuple(reversed(frames))
    half = MOST_FRAMES // 2
    middle = Frame(f"… {left} more frames …", "", 0)
    return (*reversed(frames[-half:]), middle, *reversed(frames[:half]))


# ---- merging ---------------------------------------------------------------------------------------------------------


def _key(frame: Frame) -> tuple[str, str, int]:
    """What makes two frames the same: py-spy and faulthandler spell a function's and a file's name differently."""
    file = frame.filename.replace("\\", "/").rpartition("/")[2]
    return file, frame.name.rpartition(".")[2], frame.line


def _ways(stacks: Sequence[Taken], depth: int, level: int) -> tuple[Branch, ...]:
    """The branches into which stacks part at a depth, the one that most take first."""
    parts: dict[int | None, list[Taken]] = {}
    for stack in stacks:
        key = stack.keys[depth] if depth < len(stack.keys) else None
        parts.setdefault(key, []).append(stack)
    ordered = sorted(parts.values(), key=lambda part: (-len(part), part[0].rank))
    usual = len(ordered[0]) if ordered else 0
    return tuple(_branch(part, depth, level, odd=len(part) * FEW <= usual) for part in ordered)


def _branch(stacks: Sequence[Taken], depth: int, level: int, *, odd: bool) -> Branch:
    end = _shared_until(stacks, depth)
    first = stacks[0].frames
    ends_here = all(len(stack.frames) == end for stack in stacks)
    if level >= MOST_LEVELS and not ends_here:
        end = len(first)
        ends_here = True
    ways = () if ends_here else _ways(stacks, end, level + 1)
    ranks = tuple(sorted({stack.rank for stack in stacks}))
    return Branch(first[depth:end], ranks, len(stacks), odd, ways)


def _shared_until(stacks: Sequence[Taken], depth: int) -> int:
    """Up to which depth all of these are the same: what the first and the last in order share, all share."""
    low = min(stack.keys for stack in stacks)
    high = max(stack.keys for stack in stacks)
    at = depth
    while at < min(len(low), len(high)) and low[at] == high[at]:
        at += 1
    return at


# ---- for programs ----------------------------------------------------------------------------------------------------


def to_values(tree: StackTree) -> dict[str, Any]:
    """As plain JSON values; docs/stacks.md has the fields."""
    return {
        "schema": SCHEMA,
        "threads": "all" if tree.all_threads else "training",
        "ranks": list(tree.ranks),
        "ranks_without_stack": list(tree.without),
        "stacks_left_out": tree.left_out,
        "tree": _branch_values(tree.branches),
        "roles": {str(rank): whole(label) for rank, label in sorted(tree.roles.items())},
        "others": [
            {"pid": other.pid, "role": whole(other.label), "frames": _frame_values(other.frames)}
            for other in tree.others
        ],
    }


def _frame_values(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    return [{"name": whole(f.name), "filename": whole(f.filename), "line": f.line} for f in frames]


def _branch_values(branches: Iterable[Branch]) -> list[dict[str, Any]]:
    return [
        {
            "frames": _frame_values(branch.frames),
            "ranks": list(branch.ranks),
            "stacks": branch.stacks,
            "odd": branch.odd,
            "branches": _branch_values(branch.ways),
        }
        for branch in branches
    ]
