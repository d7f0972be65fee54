"""One run of the job with a fault: which steps it ran, what every rank did in the last of them, and when.

Only the steps around the fault are simulated one operation at a time. The healthy past is as regular as training is:
its steps repeat those of a short rehearsal that runs in front of the simulated ones.
"""

from __future__ import annotations

import random

from hangscope.simulate.events.event_engine import NEVER, EventEngine, Interference, Timeline
from hangscope.simulate.faults.fault_plan import FaultPlan
from hangscope.simulate.program.healthy_job import HealthyJob
from hangscope.simulate.program.step_operations import CHECKPOINT, TRAIN, Op

Steps = list[tuple[Op, ...]]

REHEARSAL = (TRAIN, TRAIN, TRAIN, CHECKPOINT, TRAIN)
"""The second and third are the models of the past's steps, the fourth of those with a checkpoint."""
MODEL_STEPS = {TRAIN: (1, 2), CHECKPOINT: (3,)}


class JobRun:
    """The job with one fault: the simulated steps and what came of them."""

    def __init__(self, job: HealthyJob, plan: FaultPlan, *, steps_after: int) -> None:
        self.job = job
        self.plan = plan
        last = job.steps + steps_after
        kinds = [job.kind_of_step(number) for number in range(max(1, job.steps - 1), last + 1)]
        self.lead = min(1, job.steps - 1)
        """Healthy steps that are simulated in front of the fault's step."""
        if plan.step_kind:
            kinds[self.lead] = plan.step_kind
        self.past = job.steps - 1 - self.lead
        """Steps before the simulated ones."""
        self.fault_step = len(REHEARSAL) + self.lead
        self.step_kinds = [*REHEARSAL, *kinds]
        self.programs: list[Steps] = []
        for rank in range(job.spec.ranks):
            steps = [job.program(job.stages[rank], kind) for kind in self.step_kinds]
            if rank in plan.programs:
                steps[self.fault_step] = plan.programs[rank]
                more = [job.kind_of_step(last + 1 + number) for number in range(plan.steps_more)]
                steps += [job.program(job.stages[rank], kind) for kind in more]
                del steps[len(self.step_kinds) + plan.steps_more :]
            self.programs.append(steps)
        self.flat = [[op for ops in steps for op in ops] for steps in self.programs]
        self.offsets = [self._offsets(steps) for steps in self.programs]
        self.engine = self._run()
        self.timelines: list[Timeline] = self.engine.timelines

    @staticmethod
    def _offsets(steps: Steps) -> list[int]:
        offsets = []
        total = 0
        for ops in steps:
            offsets.append(total)
            total += len(ops)
        return [*offsets, total]

    def number(self, rank: int, number: int) -> int:
        """Position in the rank's whole program of an operation of the fault's step."""
        return self.offsets[rank][self.fault_step] + number

    def _interference(self) -> Interference:
        plan = self.plan
        wrong = Interference(
            cpu_stops={rank: self.number(rank, number) for rank, number in plan.cpu_stops.items()},
            inside_batch=plan.inside_batch,
            gpu_stops={rank: self.number(rank, number) for rank, number in plan.gpu_stops.items()},
            late_cpu_ns=plan.late_cpu_ns,
            late_gpu_ns=plan.late_gpu_ns,
        )
        if plan.members_disagree:
            place = self.number(plan.rank, plan.number)
            index = self.job.groups.of[plan.rank][self._role_at_fault()]
            wrong.matching_until[index] = self.collectives_before(plan.rank, place, index)
        if plan.link is not None:
            sender, receiver = plan.link
            place = self.number(sender, plan.number)
            wrong.lost_link = (sender, receiver, place)
            for index in self.job.groups.of[sender]:
                if index >= 0 and receiver in self.job.groups.all[index].members:
                    wrong.matching_until[index] = self.collectives_before(sender, place, index)
        return wrong

    def _role_at_fault(self) -> int:
        """The group of the operation where a program was changed, as the unchanged program has it."""
        plan = self.plan
        kind = self.step_kinds[self.fault_step]
        return self.job.program(self.job.stages[plan.rank], kind)[plan.number].role

    def collectives_before(self, rank: int, place: int, index: int) -> int:
        """How many collectives of one group a rank runs in the simulated steps before a place in its program."""
        of = self.job.groups.of[rank]
        return sum(1 for op in self.flat[rank][:place] if of[op.role] == index and not op.p2p)

    def _run(self) -> EventEngine:
        job = self.job
        spec = job.spec
        jitter = random.Random(f"jitter {spec.seed}")
        gaps = []
        for ops in self.flat:
            draw = jitter.random
            gaps.append([int(op.gap_us * 1000 * spec.step_gap * (1.0 + 0.06 * draw())) for op in ops])
        engine = EventEngine(
            job.groups,
            self.flat,
            [frozenset(offsets[:-1]) for offsets in self.offsets],
            gaps,
            ahead=1 if spec.backend == "gloo" else spec.ahead,
            interference=self._interference(),
            begin_ns=job.begin_ns,
        )
        engine.run()
        return engine

    # ---- what came of it ---------------------------------------------------------------------------------------------

    def stuck(self, rank: int) -> list[int]:
        """Operations of a rank that started and never finished."""
        return [number for number, end in enumerate(self.timelines[rank].finished) if end == NEVER]

    def pending(self, rank: int) -> bool:
        """Whether anything that the rank launched is not done."""
        line = self.timelines[rank]
        return line.launched > len(line.finished) or NEVER in line.finished

    @property
    def hangs(self) -> bool:
        return any(self.pending(rank) for rank in range(self.job.spec.ranks))

    def step_begins(self, position: int) -> int:
        """When the first rank launched the first operation of a simulated step."""
        return min(
            line.created[offsets[position]]
            for line, offsets in zip(self.timelines, self.offsets, strict=True)
            if line.launched > offsets[position]
        )
