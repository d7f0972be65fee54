"""Everything that the causes look at, computed once and then left alone, and the small questions that several ask."""

from collections import Counter
from collections.abc import Callable, Collection, Container
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from hangscope.diagnosis.accusation import Doubt
from hangscope.diagnosis.align.agreement import is_symmetric, members_not_recorded
from hangscope.diagnosis.align.alignment import align
from hangscope.diagnosis.align.divergence import Divergence, Shape, divergences
from hangscope.diagnosis.align.lasting_shifts import LastingDifferences
from hangscope.diagnosis.evidence.answer import Answer, Says, no, not_known, yes
from hangscope.diagnosis.evidence.groups_apart import Apart, groups_apart
from hangscope.diagnosis.evidence.learnt_sites import CallSites
from hangscope.diagnosis.evidence.liveness import Is, Liveness
from hangscope.diagnosis.evidence.running_kernels import RunningKernels
from hangscope.diagnosis.evidence.storage import Storage
from hangscope.diagnosis.evidence.training_thread import Stacks, in_backward, in_collective
from hangscope.diagnosis.evidence.unrecorded_calls import UnrecordedCall, not_in_any_group, unrecorded_call
from hangscope.diagnosis.evidence.vet_dumps import VettedDumps
from hangscope.diagnosis.hardware.port_paths import Ports
from hangscope.diagnosis.labels import Names
from hangscope.diagnosis.slowness.stragglers import Stragglers, stragglers
from hangscope.diagnosis.verdict import OperationInFlight
from hangscope.diagnosis.waits.ages import hang_of
from hangscope.diagnosis.waits.call_order import Outlier, outliers
from hangscope.diagnosis.waits.launch_counts import BehindInLaunches, behind_in_launches
from hangscope.diagnosis.waits.program_waits import ProgramWaits
from hangscope.diagnosis.waits.progress import Progress
from hangscope.diagnosis.waits.proxy_findings import BoxWait
from hangscope.diagnosis.waits.proxy_waits import NotKnown, Root, StuckGpu, StuckLink, root, waiting_ranks
from hangscope.diagnosis.waits.rank_progress import Place
from hangscope.diagnosis.waits.wait_graph import IN_FLIGHT_S, Wait, Waits
from hangscope.model import Frame, Ints, Job, Kind, Operation, Source, State, WatchdogReport

_MOST_ORDERED = 64
"""Operations that wait for one rank and are compared with each other, those that were launched first."""

T = TypeVar("T")


class Case:
    """One job under diagnosis."""

    def __init__(self, vetted: VettedDumps) -> None:
        self.vetted = vetted
        self.job: Job = vetted.job
        self.alignment = align(self.job, vetted.index)
        self.divergences: list[Divergence] = divergences(self.alignment)
        differing = {(rank, d.group) for d in self.divergences for rank in d.odd}
        self.progress = Progress(self.alignment, vetted.disputed, differing)
        self.groups = self.progress.groups
        self.names = Names(self.alignment, self.groups)
        self.waits = Waits(self.progress)
        self.liveness = Liveness(self.job)
        self.hang = hang_of(self.alignment, self.waits, self.liveness.lost)
        self.stacks = Stacks(self.job)
        self.storage = Storage(self.job, self.stacks)
        self.sites = CallSites(self.job)
        self._answers: dict[Callable[[Case], Any], Any] = {}

    def once(self, question: Callable[["Case"], T]) -> T:
        """The answer to a question that several causes ask, found out once."""
        if question not in self._answers:
            self._answers[question] = question(self)
        answer: T = self._answers[question]
        return answer

    @cached_property
    def hung(self) -> bool:
        """Whether something hangs or a rank brought the job down, so that its cause is looked for; else it may run."""
        seen_in_boxes = not isinstance(self.transfers, NotKnown) or self.behind_in_launches is not None
        seen_on_gpus = self.job.reason == "stall" and any(map(self.kernels.in_nccl, self.kernels.of))
        return self.hang.says is Says.YES or seen_in_boxes or seen_on_gpus or self.ended

    @cached_property
    def stragglers(self) -> Stragglers:
        """Who came late to the collectives: a walk over everything recorded, so done once and only where asked for."""
        return stragglers(self.alignment)

    @cached_property
    def lasting(self) -> LastingDifferences:
        """What lastingly differs between members of a group. A dump that may be of another time is not compared."""
        return LastingDifferences(self.alignment, self.vetted.disputed | self.vetted.copied)

    @cached_property
    def cycle(self) -> list[int]:
        """The largest set of ranks that wait for each other with no way out."""
        return max(self.waits.cycles(), key=len, default=[])

    @cached_property
    def groups_apart(self) -> list[Apart]:
        """Groups that ranks did not make alike."""
        return groups_apart(self.job, self.vetted.disputed | self.vetted.copied)

    @cached_property
    def outliers(self) -> dict[int, Outlier]:
        """The ranks of the cycle that called something else than is usual there; none where a rank of it is inside of
        what no recorder has: what that one calls next is not known."""
        waits = [wait for rank in self.cycle for wait in self.waits.of[rank]]
        if any(unit.arguments is not None for wait in waits for unit in wait.inside):
            return {}
        return outliers(self.progress, self.cycle, len(self.cycle))

    @cached_property
    def transfers(self) -> Root:
        """What NCCL's transfers wait for in the end, where black boxes show that they have waited for some time."""
        boxes = self.job.facts.blackboxes
        found = root(boxes) if boxes else NotKnown("no black box")
        at_ns = max((b.read_ns or b.alive_ns or b.last_event_ns or 0 for b in boxes), default=0)
        young = isinstance(found, StuckLink | StuckGpu) and at_ns - found.since_ns < IN_FLIGHT_S * 1e9
        return NotKnown("in flight for a moment") if young else found

    @cached_property
    def behind_in_launches(self) -> BehindInLaunches | None:
        """Who has launched less than the other members of an NCCL communicator, by the black boxes."""
        return behind_in_launches(self.job.facts.blackboxes)

    @cached_property
    def box_waits(self) -> dict[int, BoxWait]:
        """By rank, the ranks that it waits for in NCCL and in what, by the black boxes."""
        behind = self.behind_in_launches
        waits = waiting_ranks(self.job.facts.blackboxes)
        if behind is not None and isinstance(self.transfers, NotKnown):
            waits |= {rank: BoxWait(behind.ranks, behind.operation) for rank in behind.waiting if rank not in waits}
        return waits

    @cached_property
    def unrecorded_calls(self) -> dict[int, UnrecordedCall]:
        """By rank, the communication past the recorder, or the wait for its GPU, that its stack shows it in."""
        stacks = self.stacks.of_all(self.job.ranks)
        return {rank: call for rank, stack in stacks.items() if (call := unrecorded_call(stack)) is not None}

    @cached_property
    def communicates_unrecorded(self) -> bool:
        """Whether anything shows that this job also communicates past the recorder."""
        seen = any(not call.waits_for_gpu for call in self.unrecorded_calls.values())
        return seen or not_in_any_group(self.job.facts.blackboxes, self.job.groups)

    @cached_property
    def kernels(self) -> RunningKernels:
        """What the ranks' GPUs ran, where they were asked."""
        return RunningKernels(self.job)

    @cached_property
    def programs(self) -> ProgramWaits:
        """Which programs that are no ranks the ranks wait for, by the kernel's books."""
        return ProgramWaits(self.job)

    @cached_property
    def ports(self) -> Ports:
        """The network ports that NCCL's connections run over, and what moved on them."""
        return Ports(self.job)

    @cached_property
    def dumped(self) -> frozenset[int]:
        """The ranks with a dump. The last answer of a poll has counters, and no operations to compare."""
        dumps = self.job.dumps.items()
        return frozenset(rank for rank, mine in dumps if any(dump.role == "dump" for dump in mine))

    @cached_property
    def ended(self) -> bool:
        """Whether a rank ended in a way that brings a job down, even where nobody was caught waiting for it."""
        lives = (self.liveness.of(rank) for rank in self.job.ranks)
        return any(life.state is Is.ENDED and life.seen and not life.clean for life in lives)

    @cached_property
    def doubts_of_running(self) -> frozenset[Doubt]:
        """What keeps one from being sure that nothing hangs."""
        doubts = {
            Doubt.IN_FLIGHT: bool(self.waits.all),
            Doubt.RAISED_READS_DONE: any(d.backend == "gloo" for dumps in self.job.dumps.values() for d in dumps),
            Doubt.RANKS_NOT_SEEN: not all(mine.own_record for mine in self.progress.of.values()),
        }
        return frozenset(doubt for doubt, holds in doubts.items() if holds)

    def all_joined(self, wait: Wait) -> Answer:
        """Has every member joined the operation?"""
        if wait.blockers:
            return no()
        group = self.groups[wait.group]
        if wait.point_to_point:
            return yes() if wait.counterparts else not_known("its peer is not recorded")
        every = all(r in self.job.dumps for r in self.job.ranks)
        if members_not_recorded(group):
            whole = every and len(wait.inside) == len(self.job.ranks)
            return yes() if whole else not_known("the evidence does not list the group's members")
        incomplete = group.open or not every
        if group.members is None or (group.members_seen and incomplete):
            return not_known("only some logs mention it, and the group's members are not recorded")
        return yes()

    # ---- evidence ----------------------------------------------------------------------------------------------------

    def source(self, rank: int, operation: Operation | None = None) -> tuple[Source, ...]:
        """The dump of a rank, and the entry in it."""
        place = "" if operation is None else f"record {operation.record_id}"
        return tuple(Source(dump.file, place) for dump in self.job.dumps.get(rank, ())[:1])

    def cuda_error(self, rank: int) -> WatchdogReport | None:
        """The CUDA error that a rank's watchdog died of."""
        return self._cuda_errors.get(rank)

    @cached_property
    def _cuda_errors(self) -> dict[int, WatchdogReport]:
        return {r.rank: r for r in reversed(self.job.facts.watchdog) if r.kind == "cuda_error"}

    def last_operation(self, rank: int) -> Operation | None:
        part = self.job.ops.span(rank)
        return self.job.ops[part.stop - 1] if part.stop > part.start else None

    def frames_of(self, call: Operation) -> tuple[Frame, ...]:
        """From where a call was made: as recorded, else by the stack of a rank that is still inside it."""
        if call.frames:
            return call.frames
        last = self.last_operation(call.rank)
        stack = self.stacks.main(call.rank)
        inside = call.state is not State.COMPLETED and last is not None and last.row == call.row
        # DDP calls from autograd's threads, below Python: the line is that of the backward, where it waits in one.
        calls_from = stack is not None and (in_collective(stack) or in_backward(stack))
        return stack.frames if inside and stack is not None and calls_from else ()

    # ---- order -------------------------------------------------------------------------------------------------------

    def first_missed(self, rank: int, waits: list[Wait]) -> Wait:
        """Of the operations that wait for a rank, the one it should have launched first.

        Its own habit says which: what it used to do after its last call. Otherwise the order in which another rank ran
        the same two; otherwise the one that a peer launched first.
        """
        waits = sorted(waits, key=self._by_launch)[:_MOST_ORDERED]
        # Who waits in one and is missing in the other comes to that one later, and so would this rank.
        waits = [w for w in waits if not any(o is not w and _are_in(o.waiters, w.blockers) for o in waits)] or waits
        usual = self._usual_next_group(rank)
        fitting = [w for w in waits if w.group == usual] or waits
        first = fitting[0]
        for other in fitting[1:8]:
            if self._runs_before(other, first):
                first = other
        return first

    def _by_launch(self, wait: Wait) -> tuple[int, int, int]:
        return self.waits.launched_at_ns(wait) or 1 << 62, -len(wait.inside), wait.seq or 0

    def _usual_next_group(self, rank: int) -> int | None:
        """The group that a rank used to turn to after the call that it made last; None where its past does not say."""
        part = self.job.ops.span(rank)
        calls = self.alignment.call[part]
        groups = self.job.ops.column("group")[part]
        before = np.flatnonzero((calls[:-1] == calls[-1:]) & (groups[:-1] == groups[-1:]))
        followers = Counter(groups[before + 1].tolist())
        return int(followers.most_common(1)[0][0]) if followers else None

    def _runs_before(self, a: Wait, b: Wait) -> bool:
        """Whether a rank that ran both calls (on its own groups of the same description) ran `a` first."""
        if a.point_to_point or b.point_to_point or max(a.group, b.group) >= len(self.job.groups):
            return False
        if self.job.groups[a.group].desc == self.job.groups[b.group].desc:
            return False
        first = self._rows_of_like_calls(a)
        second = self._rows_of_like_calls(b)
        rank_of = self.job.ops.column("rank")
        common = np.intersect1d(rank_of[first], rank_of[second])[:1]
        return any(first[rank_of[first] == rank][0] < second[rank_of[second] == rank][0] for rank in common)

    def _rows_of_like_calls(self, wait: Wait) -> Ints:
        """The calls with the same number, of all groups with the same description."""
        desc = self.job.groups[wait.group].desc
        alike = [group.index for group in self.job.groups if group.desc == desc]
        return self.vetted.index.rows_at(alike, wait.seq or -1)

    # ---- the operation that a verdict speaks of ----------------------------------------------------------------------

    def operation_of(self, wait: Wait) -> OperationInFlight:
        """The state of every member at one operation."""
        group = self.groups[wait.group]
        states = self._states(wait)
        rows = [u.row for u in wait.inside if u.row is not None]
        sample = self.job.ops[self._representative(rows)] if rows else None
        name = wait.name
        seq = wait.seq
        if wait.point_to_point and sample is not None:
            # A batch goes by its closing entry's name; both count on the point-to-point scale.
            name = sample.name if sample.kind is Kind.BATCH else sample.title
            seq = sample.p2p_seq
        members = tuple(states) if wait.point_to_point or group.members is None else group.members
        frames = self.frames_of(sample) if sample else self._frames_in_call(wait)
        label = self.names.group(wait.group)
        return OperationInFlight(label, members, seq, name, *size_and_types(sample), states, frames)

    def _states(self, wait: Wait) -> dict[int, str]:
        by_rank = {u.rank: u for u in wait.inside}
        seen = {*by_rank, *wait.blockers, *wait.finished}
        members = self.groups[wait.group].members or tuple(sorted(seen))
        if wait.point_to_point:
            members = tuple(sorted({*seen, *(c.peer for _, c in wait.counterparts)}))
        at_ns = self.waits.launched_at_ns(wait)
        states: dict[int, str] = {}
        for rank in members:
            if rank in by_rank:
                state = by_rank[rank].state
                states[rank] = "scheduled" if state is State.UNKNOWN else state.name.lower()
            elif rank in wait.finished:
                states[rank] = "completed"
            elif wait.point_to_point:
                place = next((c.place.value for _, c in wait.counterparts if c.peer == rank), "unknown")
                states[rank] = {"inside": "started", "queued": "scheduled"}.get(place, place)
            elif wait.seq is not None:
                value = self.progress.place(rank, wait.group, wait.seq, at_ns).value
                states[rank] = {"queued": "scheduled", "inside": "scheduled"}.get(value, value)
        if Place.NOT_LAUNCHED.value in states.values() and is_symmetric(wait.name):
            # Gloo counts what raised as completed: nobody leaves it before all have come
            states = {rank: "unknown" if state == "completed" else state for rank, state in states.items()}
        return states

    def _frames_in_call(self, wait: Wait) -> tuple[Frame, ...]:
        """Where a rank makes a call that was never recorded, by its watchdog's report or its stack."""
        report = next((u.report for u in wait.inside if u.report), None)
        if report is not None:
            return report.frames
        stacks = [stack for unit in wait.inside if (stack := self.stacks.main(unit.rank)) is not None]
        return stacks[0].frames if stacks and not any(unit.rows for unit in wait.inside) else ()

    def _representative(self, rows: list[int]) -> int:
        """A row of the call that most ranks made."""
        calls: list[int] = self.alignment.call[rows].tolist()
        return rows[calls.index(Counter(calls).most_common(1)[0][0])]

    def operation_at(self, d: Divergence) -> OperationInFlight:
        """The position of a disagreement, over all members."""
        call = self.job.ops[d.calls[0] if d.shape is Shape.SKIPPED and d.calls else d.reference_row]
        return self.recorded_operation(d.group, d.seq, call)

    def recorded_operation(self, number: int, seq: int, call: Operation) -> OperationInFlight:
        """One position of a group over all members, as `call` has it."""
        group = self.groups[number]
        lane = self.alignment.lanes[number]
        ops = self.job.ops
        index = lane.index_of(seq)
        rows = lane.rows_at(index).tolist() if index is not None else []
        states = {int(ops.column("rank")[r]): State(int(ops.column("state")[r])).name.lower() for r in rows}
        for rank in set(group.members or ()) - set(states):
            known = self.progress.of.get(rank)
            states[rank] = "not launched" if known and known.own_record else "unknown"
        members = group.members or tuple(sorted(states))
        label = self.names.group(number)
        in_order = dict(sorted(states.items()))
        return OperationInFlight(label, members, seq, call.name, *size_and_types(call), in_order, self.frames_of(call))


def size_and_types(call: Operation | None) -> tuple[int | None, tuple[str, ...]]:
    """The bytes and the dtypes of a call."""
    return (call.size_bytes, call.input_dtypes or call.output_dtypes) if call else (None, ())


def _are_in(ranks: Collection[int], known: Container[int]) -> bool:
    return all(rank in known for rank in ranks)
