"""The whole job: which steps it ran, what every rank did in the last of them, and when.

Only the steps around the fault are simulated one operation at a time. The healthy past is as regular as training is:
its steps repeat those of a short rehearsal that runs in front of the simulated ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hangscope.simulate.event_engine import NEVER, Engine, Interference, Timeline
from hangscope.simulate.layouts import Groups
from hangscope.simulate.program import CHECKPOINT, TRAIN, Model, Op, step
from hangscope.simulate.spec import Spec

START_NS = 1_790_000_000_000_000_000
"""Some day in 2026, when every simulated job started, give or take its seed."""

Steps = list[tuple[Op, ...]]


@dataclass(slots=True)
class Plan:
    """One fault at one place. Numbers count within the rank's program of the fault's step."""

    kind: str
    variant: str
    rank: int = -1
    number: int = 0
    hang: bool = True
    culprits: list[int] = field(default_factory=list)
    accept: list[list[int]] = field(default_factory=list)
    accept_kinds: list[str] = field(default_factory=list)
    link: tuple[int, int] | None = None
    step_kind: str = ""
    programs: dict[int, tuple[Op, ...]] = field(default_factory=dict)
    """rank → what it runs instead of its program in the fault's step."""
    cpu_stops: dict[int, int] = field(default_factory=dict)
    inside_batch: frozenset[int] = frozenset()
    gpu_stops: dict[int, int] = field(default_factory=dict)
    late_cpu_ns: dict[int, int] = field(default_factory=dict)
    late_gpu_ns: dict[int, int] = field(default_factory=dict)
    odd: bool = False
    """Members of the group of that operation disagree from there on."""


class Job:
    """Programs and history of one job, without the fault."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.layout = spec.layout
        self.groups = Groups(self.layout, style=spec.style, naming=spec.naming)
        self.random = random.Random(f"hangscope {spec.seed}")
        self.model = self._model()
        self._programs: dict[tuple[int, str], tuple[Op, ...]] = {}
        self.checkpoint_every = spec.checkpoint_every or self.random.choice((7, 10, 25, 40))
        fewest = min(len(self.program(stage, TRAIN)) for stage in range(self.layout.pp))
        self.steps = spec.steps or spec.entries // fewest + self.random.randint(3, 30)
        """Number of the step in which the fault happens, or in which a healthy job is stopped, counted from 1."""
        self.begin_ns = START_NS + self.random.randrange(10**15)
        self.stages = [self.layout.place(rank)[2] for rank in range(spec.ranks)]

    def _model(self) -> Model:
        spec, rng = self.spec, self.random
        many = spec.ranks > 128
        return Model(
            layers=spec.layers or max(self.layout.pp, rng.choice((2, 3) if many else (2, 3, 4, 6))),
            microbatches=spec.microbatches or (1 if self.layout.pp == 1 else rng.choice((1, 2) if many else (2, 3, 4))),
            hidden=rng.choice((1024, 2048, 4096)),
            tokens=rng.choice((1024, 2048, 4096, 8192)),
            data_parallel="fsdp" if spec.hooked and spec.data_parallel == "coalesced" else spec.data_parallel,
            plain_p2p=spec.plain_p2p or spec.hooked,
            overlap=spec.overlap,
        )

    def program(self, stage: int, kind: str) -> tuple[Op, ...]:
        found = self._programs.get((stage, kind))
        if found is None:
            found = self._programs[stage, kind] = step(self.layout, stage, self.model, kind)
        return found

    def kind_of_step(self, number: int) -> str:
        return CHECKPOINT if number % self.checkpoint_every == 0 else TRAIN


REHEARSAL = (TRAIN, TRAIN, TRAIN, CHECKPOINT, TRAIN)
"""The second and third are the models of the past's steps, the fourth of those with a checkpoint."""
MODELS = {TRAIN: (1, 2), CHECKPOINT: (3,)}


class Run:
    """The job with one fault: the simulated steps and what came of them."""

    def __init__(self, job: Job, plan: Plan, *, steps_after: int) -> None:
        self.job, self.plan = job, plan
        spec = job.spec
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
        for rank in range(spec.ranks):
            steps = [job.program(job.stages[rank], kind) for kind in self.step_kinds]
            if rank in plan.programs:
                steps[self.fault_step] = plan.programs[rank]
            self.programs.append(steps)
        self.flat = [[op for ops in steps for op in ops] for steps in self.programs]
        self.offsets = [self._offsets(steps) for steps in self.programs]
        self.engine = self._run()
        self.timelines: list[Timeline] = self.engine.timelines

    @staticmethod
    def _offsets(steps: Steps) -> list[int]:
        offsets, total = [], 0
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
        if plan.odd:
            place = self.number(plan.rank, plan.number)
            index = self.job.groups.of[plan.rank][self._role_at_fault()]
            wrong.odd_groups[index] = self.collectives_before(plan.rank, place, index)
        if plan.link is not None:
            sender, receiver = plan.link
            place = self.number(sender, plan.number)
            wrong.lost_link = (sender, receiver, place)
            for index in self.job.groups.of[sender]:
                if index >= 0 and receiver in self.job.groups.all[index].members:
                    wrong.odd_groups[index] = self.collectives_before(sender, place, index)
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

    def _run(self) -> Engine:
        job, spec = self.job, self.job.spec
        jitter = random.Random(f"jitter {spec.seed}")
        gaps = []
        for ops in self.flat:
            draw = jitter.random
            gaps.append([int(op.gap_us * 1000 * spec.step_gap * (1.0 + 0.06 * draw())) for op in ops])
        engine = Engine(
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
