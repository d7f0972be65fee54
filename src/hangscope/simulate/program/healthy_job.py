"""The whole job as it is without a fault: its groups, its model, how many steps it ran, and the program of each."""

from __future__ import annotations

import random
from dataclasses import replace

from hangscope.simulate.program.step_operations import CHECKPOINT, ELSEWHERE, TRAIN, Model, Op
from hangscope.simulate.program.training_sites import on_line_of
from hangscope.simulate.program.training_step import training_step
from hangscope.simulate.spec.job_layout import Groups
from hangscope.simulate.spec.job_spec import Spec

START_NS = 1_790_000_000_000_000_000
"""Some day in 2026, when every simulated job started, give or take its seed."""


class HealthyJob:
    """Programs and history of one job, as they are without the fault."""

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
        spec = self.spec
        rng = self.random
        many = spec.ranks > 128
        return Model(
            layers=spec.layers or max(self.layout.pp, rng.choice((2, 3) if many else (2, 3, 4, 6))),
            microbatches=spec.microbatches or self._microbatches(),
            hidden=rng.choice((1024, 2048, 4096)),
            tokens=rng.choice((1024, 2048, 4096, 8192)),
            data_parallel="fsdp" if spec.hooked and spec.data_parallel == "coalesced" else spec.data_parallel,
            plain_p2p=spec.plain_p2p or spec.hooked,
            overlap=spec.overlap,
        )

    def _microbatches(self) -> int:
        if self.layout.pp == 1:
            return 1
        return self.random.choice((1, 2) if self.spec.ranks > 128 else (2, 3, 4))

    def program(self, stage: int, kind: str) -> tuple[Op, ...]:
        found = self._programs.get((stage, kind))
        if found is None:
            found = training_step(self.layout, stage, self.model, TRAIN if kind == ELSEWHERE else kind)
            if kind == ELSEWHERE:
                found = tuple(replace(op, site=on_line_of(op.site, "other branch")) for op in found)
            self._programs[stage, kind] = found
        return found

    def members(self, rank: int, role: int) -> tuple[int, ...]:
        """The ranks of the group that a rank has in one role."""
        return self.groups.all[self.groups.of[rank][role]].members

    def kind_of_step(self, number: int) -> str:
        if self.spec.fault == "shift" and number >= self.steps - 1:
            return ELSEWHERE if (number - self.steps) % 2 else TRAIN
        return CHECKPOINT if number % self.checkpoint_every == 0 else TRAIN
