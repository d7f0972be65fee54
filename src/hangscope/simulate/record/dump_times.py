"""When each rank wrote its dump, by whose clock, and which ranks wrote none."""

from __future__ import annotations

import random

import numpy as np

from hangscope.simulate.events.event_engine import NEVER
from hangscope.simulate.events.job_run import JobRun
from hangscope.simulate.events.true_waits import waits_for
from hangscope.simulate.record.ring_contents import UNSET, RingContents

SECOND = 1_000_000_000


class DumpTimes:
    """The times of one run that lie outside the operations themselves."""

    def __init__(self, run: JobRun) -> None:
        self.run = run
        spec = run.job.spec
        rng = random.Random(f"moments {spec.seed}")
        skew = int(spec.clock_skew_ms * 1e6)
        self._clock_off = {spec.node(rank): 0 for rank in range(spec.ranks)}
        for node in self._clock_off:
            self._clock_off[node] = rng.randint(-skew, skew)
        self.waiting_since = [self._oldest_pending(rank) for rank in range(spec.ranks)]
        self._timeout = int(spec.timeout_s * SECOND)
        self.last_ns = max(max(line.finished, default=0) for line in run.timelines)
        """When anything was last finished anywhere."""
        self.first_reporter = -1
        self.first_report: int | None = None
        """When a rank first complained: of a timeout, or of a peer that is gone."""
        self.lost_peer = run.plan.culprits[0] if run.plan.kind == "dead" else -1
        self._noticed: dict[int, int] = {}
        self._find_first_report(rng)
        at_once = self._while_running(rng)
        self._dumps = [self._when_dumped(rank, at_once, rng) for rank in range(spec.ranks)]

    def dump_ns(self, rank: int) -> int | None:
        """When a rank wrote its dump, on the true clock; None if it never did."""
        return self._dumps[rank]

    def died_ns(self, rank: int) -> int | None:
        """When the process of a rank ended by itself or was killed; None for those that lived on."""
        plan = self.run.plan
        if plan.kind != "dead" or rank not in plan.culprits:
            return None
        return max(self.run.timelines[rank].finished, default=self.run.job.begin_ns) + 5_000_000

    def noticed_ns(self, rank: int) -> int | None:
        """When NCCL on that rank noticed that a peer is gone."""
        return self._noticed.get(rank)

    def stale(self, rank: int) -> bool:
        """Whether the dump of a dead rank is one of an earlier moment."""
        plan = self.run.plan
        return self.run.job.spec.stale_dump and plan.kind == "dead" and rank in plan.culprits

    def clock_off_ns(self, rank: int) -> int:
        """How far the clock of a rank's node is in front of the true one."""
        return self._clock_off[self.run.job.spec.node(rank)]

    def shift(self, contents: RingContents) -> None:
        """Turn the true clock's times into those of the rank's node."""
        off = self.clock_off_ns(contents.rank)
        contents.created_ns = contents.created_ns + off
        contents.started_ns = np.where(contents.started_ns == UNSET, UNSET, contents.started_ns + off)
        contents.completed_ns = np.where(contents.completed_ns == UNSET, UNSET, contents.completed_ns + off)

    # ---- who reports first -------------------------------------------------------------------------------------------

    def _find_first_report(self, rng: random.Random) -> None:
        run = self.run
        spec = run.job.spec
        reports = [(since + self._timeout, rank) for rank, since in enumerate(self.waiting_since) if since is not None]
        # NCCL 2.26 and 2.27, in torch 2.7 to 2.10, keep a lost connection to themselves.
        if run.plan.kind == "dead" and not spec.hooked and not 7 <= spec.minor <= 10:
            died = self.died_ns(self.lost_peer)
            assert died is not None
            for rank in self._neighbours(self.lost_peer):
                self._noticed[rank] = died + rng.randint(SECOND // 5, SECOND)
        reports += [(at, rank) for rank, at in self._noticed.items()]
        if reports:
            self.first_report, self.first_reporter = min(reports)

    def _neighbours(self, lost: int) -> list[int]:
        """Ranks next to a lost one on the ring of a group that they are stuck in."""
        waiting = sorted(rank for rank, missing in waits_for(self.run).items() if lost in missing)
        return [rank for rank in waiting if self._next_on_a_ring(rank, lost)]

    def _next_on_a_ring(self, rank: int, lost: int) -> bool:
        for number in self.run.stuck(rank):
            members = self.run.job.members(rank, self.run.flat[rank][number].role)
            if lost in members:
                distance = (members.index(rank) - members.index(lost)) % len(members)
                if distance in (1, len(members) - 1):
                    return True
        return False

    def _oldest_pending(self, rank: int) -> int | None:
        """When the rank launched the oldest operation that is not done."""
        line = self.run.timelines[rank]
        for number, created in enumerate(line.created):
            if number >= len(line.finished) or line.finished[number] == NEVER:
                return created
        return None

    # ---- when each rank dumps ----------------------------------------------------------------------------------------

    def _when_dumped(self, rank: int, at_once: int | None, rng: random.Random) -> int | None:
        spec = self.run.job.spec
        plan = self.run.plan
        later = rng.randint(SECOND // 5, 6 * SECOND)
        if plan.kind in ("dead", "frozen") and rank in plan.culprits:
            return self._earlier(rng) if self.stale(rank) else None
        if at_once is not None:
            return at_once + rng.randint(0, 2_000_000)
        if self.first_report is None:
            return self._end(rank) + later
        if not spec.self_dump:
            return self.first_report + later
        since = self.waiting_since[rank]
        return None if since is None else self._noticed.get(rank, since + self._timeout) + later // 6

    def _end(self, rank: int) -> int:
        return max(self.run.timelines[rank].finished)

    def _while_running(self, rng: random.Random) -> int | None:
        """Some moment in the middle of a healthy step, the same everywhere; None where the job does not run."""
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
