"""Everything that the rules look at, computed once, and the small questions that several of them ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hangscope.diagnosis.align import Alignment, align
from hangscope.diagnosis.custom import Departure, departures
from hangscope.diagnosis.divergence import Divergence, divergences
from hangscope.diagnosis.fate import Fates
from hangscope.diagnosis.lateness import Tardiness, tardiness
from hangscope.diagnosis.p2p import transfers
from hangscope.diagnosis.standing import Place, Standings, Unit, is_symmetric
from hangscope.diagnosis.verdict import Finding, Link, OperationInFlight
from hangscope.diagnosis.waits import Wait, Waits
from hangscope.diagnosis.words import ranks_text
from hangscope.model import UNKNOWN, Frame, Group, Job, KernelMessage, Kind, Operation, Source, State, ThreadStack
from hangscope.words import is_own_code

IN_FLIGHT_S = 2.0
"""An operation younger than this when the evidence was taken is in flight, not stuck."""
QUIET_S = 1.0
"""Where half of the ranks that wait launched something this shortly before their dumps, the job runs."""
LONG_S = 60.0
"""So long an operation may be unfinished while ranks still launch new ones: steps of large jobs take that long."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """Whether the job hangs (or was brought down), and what says so."""

    hangs: bool
    why: str
    timeless: bool = False
    """Operations are unfinished, and nothing says for how long: it may have been a moment."""


@dataclass(slots=True)
class Draft:
    """What a rule concluded. `conclude` turns it into a Diagnosis."""

    kind: str
    headline: str
    summary: str
    confidence: str
    rule: str
    hang: bool = True
    culprits: dict[int, str] = field(default_factory=dict)
    wait: Wait | None = None
    operation: OperationInFlight | None = None
    link: Link | None = None
    why: list[Finding] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)
    victims_of: set[int] | None = None
    """Whose victims to list; the culprits where None."""


class Case:
    """One job under diagnosis."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.alignment: Alignment = align(job)
        self.standings = Standings(self.alignment)
        self.waits = Waits(self.standings)
        self.fates = Fates(job)
        self.divergences: list[Divergence] = divergences(self.alignment)
        self.groups: list[Group] = self.standings.groups
        self._files = {rank: dumps[0].file for rank, dumps in job.dumps.items() if dumps}

    @cached_property
    def tardiness(self) -> Tardiness:
        """Who came late to the collectives: a walk over everything recorded, so done once and only where asked for."""
        return tardiness(self.alignment)

    @cached_property
    def knot(self) -> list[int]:
        """The largest set of ranks that wait for each other with no way out."""
        return max(self.waits.knots(), key=len, default=[])

    @cached_property
    def departures(self) -> dict[int, Departure]:
        """The ranks of the knot that called something else than is called there."""
        return departures(self.standings, self.knot, len(self.knot))

    # ---- words -------------------------------------------------------------------------------------------------------

    def group_label(self, index: int) -> str:
        """A group as people know it, with its members where several groups share the description."""
        group = self.groups[index]
        label = group.label
        if sum(g.label == label for g in self.groups) > 1 and group.name:
            return f"{label} ({group.name})"
        return label

    def who(self, rank: int) -> str:
        node = self.job.nodes.get(rank)
        return f"rank {rank} on {node}" if node else f"rank {rank}"

    def whom(self, ranks: Collection[int]) -> str:
        """Ranks as a sentence begins with them; one alone with its node."""
        return self.who(next(iter(ranks))) if len(ranks) == 1 else ranks_text(ranks)

    def title(self, wait: Wait) -> str:
        """The operation as people say it: ``all_reduce #16``, ``recv 0<-3``."""
        if wait.point_to_point:
            return self.unit_title(wait.inside[0])
        return f"{wait.name} #{wait.seq}" if wait.seq is not None else wait.name

    def own_title(self, wait: Wait, rank: int) -> str:
        """The operation from a rank's own side: of a send that waits for it, its receive, and the reverse."""
        row = self._open_call(wait, rank)
        if row is None:
            return self.title(wait)
        operation = self.job.ops[row]
        if operation.kind is Kind.SEND:
            return f"recv {rank}<-{operation.rank}"
        return f"send {rank}->{operation.rank}"

    def missing_title(self, wait: Wait, rank: int) -> str:
        """What a rank should have launched for others to go on: ``all_reduce #16``, ``the next recv 3<-1``."""
        title = self.own_title(wait, rank)
        row = self._open_call(wait, rank)
        if row is None:
            return title
        before = transfers(self.alignment, rank, row)
        return f"the next {title}" if len(before) else title

    def _open_call(self, wait: Wait, rank: int) -> int | None:
        """Of a point-to-point wait, the call that waits for a rank."""
        mine = [(row, other.place) for row, other in wait.counterparts if other.peer == rank]
        return min(mine, key=lambda item: item[1] is Place.COMPLETED)[0] if mine else None

    def unit_title(self, unit: Unit) -> str:
        if unit.point_to_point and unit.rows:
            inner = [self.job.ops[row] for row in unit.rows]
            named = [op.title for op in inner if op.source is not None or op.destination is not None]
            if named:
                return named[0] if len(named) == 1 else _batch_title(named)
        return f"{unit.name} #{unit.seq}" if unit.seq is not None else unit.name

    def call_title(self, operation: Operation) -> str:
        """One recorded call as people say it; the closing entry of a batch by what is in the batch."""
        if operation.kind is not Kind.BATCH or operation.batch is None:
            return operation.title
        ops, part = self.job.ops, self.job.ops.span(operation.rank)
        inside = np.flatnonzero(ops.column("batch")[part] == operation.batch) + int(part.start)
        titles = [ops[row].title for row in inside.tolist() if ops[row].kind in (Kind.SEND, Kind.RECV)]
        return _batch_title(titles) if titles else operation.title

    def source(self, rank: int, operation: Operation | None = None) -> tuple[Source, ...]:
        """The dump of a rank, and the entry in it."""
        file = self._files.get(rank)
        if file is None:
            return ()
        place = "" if operation is None else f"record {operation.record_id}"
        return (Source(file, place),)

    def is_symmetric(self, wait: Wait) -> bool:
        """Whether nobody can finish the operation before everybody has joined it."""
        return is_symmetric(wait.name)

    # ---- stacks ------------------------------------------------------------------------------------------------------

    def user_frame(self, frames: tuple[Frame, ...]) -> Frame | None:
        """The innermost frame of the user's own code; None where PyTorch made the call by itself."""
        return next(iter(self.own_frames(frames)), None)

    def at(self, frames: tuple[Frame, ...]) -> str:
        """`` at train.py:88``, for the end of a phrase; empty where no frame is the user's."""
        frame = self.user_frame(frames)
        return f" at {frame.filename}:{frame.line}" if frame else ""

    def own_frames(self, frames: tuple[Frame, ...]) -> list[Frame]:
        return [f for f in frames if is_own_code(f.filename)]

    def user_frames(self, frames: tuple[Frame, ...], limit: int = 3) -> tuple[str, ...]:
        """The user's frames as lines to show, or the innermost ones where there is none."""
        own = self.own_frames(frames)
        return tuple(f"{f.filename}:{f.line}  {f.name}" for f in (own or list(frames))[:limit])

    def main_stack(self, rank: int) -> ThreadStack | None:
        """The newest sample of the thread that decides what the rank does next: its main thread, mostly.

        While that is in autograd's backward, hooks and custom backwards run on autograd's own thread.
        """
        process = self.job.processes.get(rank)
        mine = self._stacks.get((rank, None), [])
        if process is not None and process.pid is not None:
            mine = [*mine, *self._stacks.get((None, process.pid), [])]
        main = max([s for s in mine if s.main] or mine, key=lambda s: s.sample, default=None)
        if main is None or not self._in_backward(main):
            return main
        beside = [s for s in mine if s.sample == main.sample and not s.main and s.source.file == main.source.file]
        return next((s for s in beside if self._runs_hook(s)), main)

    def _in_backward(self, stack: ThreadStack) -> bool:
        """Whether a thread waits in autograd, which is below its innermost frame of the user's code."""
        for frame in stack.frames:
            if frame.name == "_engine_run_backward":
                return True
            if is_own_code(frame.filename):
                return False
        return False

    def _runs_hook(self, stack: ThreadStack) -> bool:
        """Whether a thread is autograd's and runs the user's code. Threads that Python made start in threading.py."""
        started = stack.frames[-1] if stack.frames else None
        python_made = started is None or started.filename.replace("\\", "/").rsplit("/", 1)[-1] == "threading.py"
        return not python_made and bool(self.own_frames(stack.frames))

    @cached_property
    def _stacks(self) -> dict[tuple[int | None, int | None], list[ThreadStack]]:
        """By rank or, where that is not known, by pid."""
        found: dict[tuple[int | None, int | None], list[ThreadStack]] = {}
        for stack in self.job.facts.stacks:
            found.setdefault((stack.rank, None if stack.rank is not None else stack.pid), []).append(stack)
        return found

    def gpu_messages(self, rank: int) -> list[KernelMessage]:
        """Xid messages about this rank's GPU or process. 43 and 45 are what a killed process leaves: effects."""
        process, node = self.job.processes.get(rank), self.job.nodes.get(rank)
        if process is None:
            return []
        return [
            message
            for message in self.job.facts.kernel
            if message.kind == "xid" and message.code not in (43, 45)
            if message.node is None or node is None or message.node == node
            if (process.pid is not None and message.pid == process.pid)
            or (process.gpu is not None and message.pci is not None and message.pci in process.gpu)
        ]

    def last_operation(self, rank: int) -> Operation | None:
        part = self.job.ops.span(rank)
        return self.job.ops[part.stop - 1] if part.stop > part.start else None

    def usual_next_group(self, rank: int) -> int | None:
        """The group that a rank used to turn to after the call that it made last; None where its past does not say."""
        part = self.job.ops.span(rank)
        if part.stop - part.start < 2:
            return None
        calls, groups = self.alignment.call[part], self.job.ops.column("group")[part]
        before = np.flatnonzero((calls[:-1] == calls[-1]) & (groups[:-1] == groups[-1]))
        followers = Counter(groups[before + 1].tolist())
        return int(followers.most_common(1)[0][0]) if followers else None

    def runs_before(self, a: Wait, b: Wait) -> bool:
        """Whether a rank that ran both calls (on its own groups of the same description) ran `a` first."""
        ops = self.job.ops
        labels = np.array([g.desc for g in self.job.groups] or [""])
        if a.point_to_point or b.point_to_point or max(a.group, b.group) >= len(self.job.groups):
            return False
        first, second = (
            np.flatnonzero((labels[ops.column("group")] == labels[w.group]) & (ops.column("seq") == (w.seq or -1)))
            for w in (a, b)
        )
        rank_of = ops.column("rank")
        common = np.intersect1d(rank_of[first], rank_of[second])
        if labels[a.group] == labels[b.group] or not len(common):
            return False
        rank = common[0]
        return bool(first[rank_of[first] == rank][0] < second[rank_of[second] == rank][0])

    # ---- time --------------------------------------------------------------------------------------------------------

    def age_s(self, wait: Wait) -> float | None:
        """How long the operation had been waiting when the evidence was taken; None where nothing says so."""
        ages = [age for unit in wait.inside if (age := self._unit_age_s(unit)) is not None]
        return max(ages) if ages else None

    def _unit_age_s(self, unit: Unit) -> float | None:
        reported = [
            r.elapsed_ms / 1e3
            for r in self.job.facts.watchdog
            if r.rank == unit.rank and r.seq == unit.seq and r.elapsed_ms is not None and not unit.point_to_point
        ]
        if unit.row is None:
            return max(reported) if reported else None
        ops = self.job.ops
        created = int(ops.column("created_ns")[unit.row])
        if created < 0:
            return max(reported) if reported else None
        dumped = self._dumped_ns(unit.rank)
        if dumped is not None:
            reported.append((dumped - created) / 1e9)
        return max(reported) if reported else None

    def _dumped_ns(self, rank: int) -> int | None:
        """When a rank's dump was taken, on its own clock; None where it does not say.

        The recorder stamps what it had not yet noticed at the time of the dump (torch 2.3-2.15): the newest stamp of an
        entry that is not retired is when the dump was taken. Calls inside a batch are never retired, but stamped early.
        """
        ops = self.job.ops
        part = ops.span(rank)
        single = (ops.column("batch")[part] == UNKNOWN) & ~self.alignment.point_to_point[part]
        stamped = (ops.column("state")[part] == State.STARTED) | single
        fresh = (ops.column("retired")[part] == 0) & stamped
        stamps = np.maximum(ops.column("started_ns")[part], ops.column("completed_ns")[part])[fresh]
        newest = int(stamps.max(initial=-1))
        return newest if newest > 0 else None

    def _quiet_s(self) -> float | None:
        """How long before its dump a rank that waits last launched something, each on its own clock (the median).

        A rank that waits in nothing may have been dumped at its end, long before the others.
        """
        ops = self.job.ops
        quiet: list[float] = []
        for rank in (rank for rank, waits in self.waits.of.items() if waits):
            dumped, created = self._dumped_ns(rank), ops.column("created_ns")[ops.span(rank)]
            if dumped is not None and int(created.max(initial=-1)) > 0:
                quiet.append((dumped - int(created.max())) / 1e9)
        return float(np.median(quiet)) if quiet else None

    @cached_property
    def stuck(self) -> Stuck:
        facts = self.job.facts
        timeouts = [r for r in facts.watchdog if r.kind in ("timeout", "async_error")]
        if timeouts:
            return Stuck(True, f"PyTorch's watchdog reported it on {len({r.rank for r in timeouts})} rank(s)")
        signals = [r for r in facts.watchdog if r.signalled_by is not None]
        if signals:
            return Stuck(True, f"rank {signals[0].signalled_by} signalled a timeout to the others")
        ends = [p.exit_status for p in self.job.processes.values()]
        if len(ends) == len(self.job.ranks) and all(status == 0 for status in ends):
            return Stuck(False, "every process exited with status 0")
        if self.job.reason in ("stall", "rank-exit", "watchdog", "dump-file") and self.waits.all:
            return Stuck(True, f"the evidence was captured because of a {self.job.reason}")
        ages = [age for wait in self.waits.all if (age := self.age_s(wait)) is not None]
        if ages and max(ages) >= IN_FLIGHT_S:
            quiet = self._quiet_s()
            if max(ages) >= LONG_S or quiet is None or quiet >= QUIET_S:
                return Stuck(True, f"an operation had been unfinished for {max(ages):.1f} s")
            text = f"the oldest unfinished operation was {max(ages):.1f} s old, and half of the ranks that wait"
            return Stuck(False, f"{text} launched another {quiet:.2f} s or less before their dumps")
        without = sorted({r for w in self.waits.all for r in w.blockers} - set(self.job.dumps))
        if ages and without and self.job.reason != "snapshot":
            # A rank that died takes the others down within moments, so that their dumps are young.
            why = f"operations are unfinished, and rank {without[0]}, which they wait for, left no dump"
            return Stuck(True, why, timeless=True)
        # In a hang every operation that waits is old: one whose dumps have no stamp is as young as the rest.
        if ages:
            return Stuck(False, f"the oldest unfinished operation was {max(ages):.2f} s old")
        why = "operations are unfinished, and nothing says how long they have been"
        return Stuck(bool(self.waits.all), why, timeless=True)

    # ---- the operation at the root -----------------------------------------------------------------------------------

    def operation_of(self, wait: Wait) -> OperationInFlight:
        """The state of every member at one operation."""
        group = self.groups[wait.group]
        by_rank = {u.rank: u for u in wait.inside}
        states: dict[int, str] = {}
        members = group.members or tuple(sorted({*by_rank, *wait.blockers, *wait.finished}))
        if wait.point_to_point:
            members = tuple(sorted({*by_rank, *wait.blockers, *wait.finished, *(c.peer for _, c in wait.counterparts)}))
        for rank in members:
            if rank in by_rank:
                state = by_rank[rank].state
                states[rank] = "scheduled" if state is State.UNKNOWN else state.name.lower()
            elif rank in wait.finished:
                states[rank] = "completed"
            elif wait.point_to_point:
                place = [c.place.value for _, c in wait.counterparts if c.peer == rank]
                states[rank] = (
                    {"inside": "started", "queued": "scheduled"}.get(place[0], place[0]) if place else "unknown"
                )
            elif wait.seq is not None:
                place_value = self.standings.place(rank, wait.group, wait.seq, self.waits.launched_at_ns(wait)).value
                states[rank] = {"queued": "scheduled", "inside": "scheduled"}.get(place_value, place_value)
        rows = [u.row for u in wait.inside if u.row is not None]
        sample = self.job.ops[self._representative(rows)] if rows else None
        name, seq = wait.name, wait.seq
        if wait.point_to_point and sample is not None:
            # A batch goes by its closing entry's name; both count on the point-to-point scale.
            name, seq = sample.name if sample.kind is Kind.BATCH else sample.title, sample.p2p_seq
        report = next((u.report for u in wait.inside if u.report), None)
        return OperationInFlight(
            group=self.group_label(wait.group),
            members=members,
            seq=seq,
            name=name,
            bytes=sample.size_bytes if sample else None,
            dtypes=sample.input_dtypes or sample.output_dtypes if sample else (),
            state_by_rank=states,
            frames=sample.frames if sample else (report.frames if report else self._frames_in_call(wait)),
        )

    def _frames_in_call(self, wait: Wait) -> tuple[Frame, ...]:
        """Where a rank makes a call that was never recorded, by its stack."""
        stacks = [stack for unit in wait.inside if (stack := self.main_stack(unit.rank)) is not None]
        return stacks[0].frames if stacks and not any(unit.rows for unit in wait.inside) else ()

    def _representative(self, rows: list[int]) -> int:
        """A row of the call that most ranks made."""
        votes = Counter(int(self.alignment.call[row]) for row in rows)
        best = votes.most_common(1)[0][0]
        return next(row for row in rows if int(self.alignment.call[row]) == best)


def _batch_title(titles: list[str]) -> str:
    return f"batch of {', '.join(titles[:4])}{'…' if len(titles) > 4 else ''}"
