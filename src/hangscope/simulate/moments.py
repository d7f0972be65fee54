"""When each rank wrote its dump, by whose clock, and which ranks wrote none."""

from __future__ import annotations

import random

import numpy as np

from hangscope.simulate.engine import NEVER
from hangscope.simulate.job import Run
from hangscope.simulate.records import UNSET, Holding

SECOND = 1_000_000_000


class Moments:
    """The times of one run that lie outside the operations themselves."""

    def __init__(self, run: Run) -> None:
        self.run = run
        spec, plan = run.job.spec, run.plan
        rng = random.Random(f"moments {spec.seed}")
        skew = int(spec.clock_skew_ms * 1e6)
        self._clock_off = {spec.node(rank): 0 for rank in range(spec.ranks)}
        for node in self._clock_off:
            self._clock_off[node] = rng.randint(-skew, skew)
        self.waiting_since = [self._oldest_pending(rank) for rank in range(spec.ranks)]
        timeout = int(spec.timeout_s * SECOND)
        waiting = [since for since in self.waiting_since if since is not None]
        self.first_timeout: int | None = min(waiting) + timeout if waiting else None
        self._dump: list[int | None] = []
        at_once = self._when_running(rng)
        for rank in range(spec.ranks):
            later = rng.randint(SECOND // 5, 6 * SECOND)
            since = self.waiting_since[rank]
            if plan.kind in ("dead", "frozen") and rank in plan.culprits:
                at = self._earlier(rng) if spec.stale_dump and plan.kind == "dead" else None
            elif at_once is not None:
                at = at_once + rng.randint(0, 2_000_000)
            elif self.first_timeout is None:
                at = self._end(rank) + later
            elif spec.self_dump:
                at = None if since is None else since + timeout + later // 6
            else:
                at = self.first_timeout + later
            self._dump.append(at)

    def dump_ns(self, rank: int) -> int | None:
        """When a rank wrote its dump, on the true clock; None if it never did."""
        return self._dump[rank]

    def stale(self, rank: int) -> bool:
        plan = self.run.plan
        return self.run.job.spec.stale_dump and plan.kind == "dead" and rank in plan.culprits

    def clock_off_ns(self, rank: int) -> int:
        """How far the clock of a rank's node is in front of the true one."""
        return self._clock_off[self.run.job.spec.node(rank)]

    def shift(self, held: Holding) -> None:
        """Turn the true clock's times into those of the rank's node."""
        off = self.clock_off_ns(held.rank)
        held.created_ns = held.created_ns + off
        held.started_ns = np.where(held.started_ns == UNSET, UNSET, held.started_ns + off)
        held.completed_ns = np.where(held.completed_ns == UNSET, UNSET, held.completed_ns + off)

    def _oldest_pending(self, rank: int) -> int | None:
        """When the rank launched the oldest operation that is not done."""
        line = self.run.timelines[rank]
        for number, created in enumerate(line.created):
            if number >= len(line.finished) or line.finished[number] == NEVER:
                return created
        return None

    def _end(self, rank: int) -> int:
        return max(self.run.timelines[rank].finished)

    def _when_running(self, rng: random.Random) -> int | None:
        """Some moment in the middle of a healthy step, the same everywhere."""
        if (self.run.plan.kind, self.run.plan.variant) != ("none", "running"):
            return None
        begin = self.run.step_begins(self.run.fault_step)
        end = max(self._end(rank) for rank in range(self.run.job.spec.ranks))
        return begin + int((end - begin) * rng.uniform(0.15, 0.85))

    def _earlier(self, rng: random.Random) -> int:
        """A moment at which the job was fine: a few steps before the end."""
        run = self.run
        begin = run.step_begins(run.fault_step - run.lead)
        length = run.step_begins(2) - run.step_begins(1)
        return begin - int(length * min(run.past, rng.uniform(0.5, 3.0)))
