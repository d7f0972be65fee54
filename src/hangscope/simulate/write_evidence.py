"""Everything but the dumps: the launcher's roster, every rank's log, and NCCL's logs where a link died."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from hangscope.simulate.dump_formats import Dumped
from hangscope.simulate.dump_moments import SECOND, Moments
from hangscope.simulate.layouts import WORLD, GroupDef
from hangscope.simulate.whole_job import Run
from hangscope.simulate.write_logs import Overdue, RankLog, overdue
from hangscope.simulate.write_nccl_logs import NcclLog, address, pid

KILLED, ABORTED = -9, -6
_EXIT = {"killed": KILLED, "exception": 1, "exit": 0}


class Evidence:
    """The logs and the roster of one run. Ask for the ranks' files first: the roster says how they ended."""

    def __init__(self, run: Run, moments: Moments) -> None:
        self.run, self.moments, self.spec = run, moments, run.job.spec
        self._exits: dict[int, tuple[int | None, int | None]] = {}

    def rank_files(self, rank: int, dump: Dumped | None) -> Iterator[tuple[str, bytes]]:
        node = self.spec.node(rank)
        yield f"{node}/rank_{rank}.log", self._rank_log(rank, dump).text.encode()
        if self.run.plan.kind == "network" and self.spec.backend != "gloo":
            log = self._nccl_log(rank)
            yield f"{node}/{log.name}", log.text.encode()

    def roster(self) -> bytes:
        rows = []
        for rank in range(self.spec.ranks):
            status, ended = self._exits[rank]
            off = self.moments.clock_off_ns(rank)
            rows.append(
                {
                    "rank": rank,
                    "host": self.spec.node(rank),
                    "local_rank": rank % self.spec.gpus_per_node,
                    "pid": pid(self.spec, rank),
                    "exit": status,
                    "ended_at": None if ended is None else round((ended + off) / SECOND, 1),
                }
            )
        return (json.dumps(rows, indent=1) + "\n").encode()

    # ---- one rank's log ----------------------------------------------------------------------------------------------

    def _groups_of(self, rank: int) -> dict[int, tuple[GroupDef, int, int]]:
        groups = self.run.job.groups
        found = {}
        for role, index in enumerate(groups.of[rank]):
            if index >= 0:
                group = groups.all[index]
                found[role] = (group, groups.local_id[rank][index], group.members.index(rank))
        return found

    def _rank_log(self, rank: int, dump: Dumped | None) -> RankLog:
        run, spec, plan, moments = self.run, self.spec, self.run.plan, self.moments
        of = self._groups_of(rank)
        first_group = of[run.flat[rank][0].role]
        log = RankLog(spec, rank, first_group[2])
        rng = random.Random(f"log {spec.seed} {rank}")
        done = self._steps_done(rank)
        for step in range(max(1, done - 2), done + 1):
            log.say(f"step {step} loss {2.0 + 40 / (step + 20) + rng.random() / 50:.4f}")
        died = moments.died_ns(rank)
        off = moments.clock_off_ns(rank)
        if died is not None:
            self._exits[rank] = (_EXIT[plan.variant], died)
            if plan.variant == "exception":
                log.raised(run.flat[rank][run.engine.halted[rank]].site, died + off)
            elif plan.variant == "exit":
                log.left(died + off)
        elif not plan.hang:
            ended = plan.variant != "running"
            self._exits[rank] = (0, moments.last_ns + rng.randint(1, 4) * SECOND) if ended else (None, None)
            if ended:
                log.say("training finished")
        elif dump is None or (plan.kind == "frozen" and rank in plan.culprits) or spec.backend == "gloo":
            self._exits[rank] = (None, None)
        else:
            self._watchdog(log, rank, dump, of, rng)
        return log

    def _watchdog(
        self,
        log: RankLog,
        rank: int,
        dump: Dumped,
        of: dict[int, tuple[GroupDef, int, int]],
        rng: random.Random,
    ) -> None:
        """The lines of a rank that lives through the hang, in the order of their times (on its own clock)."""
        spec, moments = self.spec, self.moments
        off = moments.clock_off_ns(rank)
        dumped_at = moments.dump_ns(rank)
        assert dumped_at is not None
        ends = dumped_at + off + (15 * SECOND if spec.minor >= 8 else 60 * SECOND)
        works = overdue(spec, dump, of)
        group, local_id, group_rank = of[WORLD]
        enqueued, _, completed = dump.holding.status.get(WORLD, (-1, -1, -1))
        own = Overdue(group, local_id, group_rank, dump.holding.calls[0].site, 0, 0, enqueued, completed)
        own_end = False
        noticed = moments.noticed_ns(rank)
        if noticed is not None and works:
            log.lost_peer(works[0], noticed + off, f"{address(spec, moments.lost_peer)}<{50_000 + rank % 9_000}>")
            own_end = True
        after: list[tuple[int, Overdue]] = []
        for work in works:
            at = work.created_ns + int(spec.timeout_s * SECOND) + rng.randint(5, 95) * 1_000_000
            if at >= ends or (spec.hooked and own_end):
                continue
            own_end = True
            if at <= dumped_at + off:
                log.timed_out(work, at)
            else:
                after.append((at, work))
        if spec.minor >= 3:
            log.dumps(own, dumped_at + off, moments.first_reporter)
        for at, work in after:
            log.timed_out(work, at)
        if own_end:
            log.ends(own, ends)
        self._exits[rank] = (ABORTED, ends - off) if own_end else (None, None)

    def _steps_done(self, rank: int) -> int:
        """Steps whose last operation the rank finished."""
        run = self.run
        finished = run.timelines[rank].finished
        for position in range(len(run.step_kinds) - 1, run.fault_step - run.lead - 1, -1):
            last = run.offsets[rank][position + 1] - 1
            if len(finished) > last and finished[last] >= 0:
                return run.past + position - (run.fault_step - run.lead) + 1
        return run.past

    # ---- NCCL --------------------------------------------------------------------------------------------------------

    def _nccl_log(self, rank: int) -> NcclLog:
        run, spec = self.run, self.spec
        started = run.job.begin_ns - 90 * SECOND + self.moments.clock_off_ns(rank)
        log = NcclLog(spec, rank, started)
        used = {op.role for op in run.flat[rank]}
        groups = [group for role, (group, _, _) in sorted(self._groups_of(rank).items()) if role in used]
        for group in sorted(groups, key=lambda group: run.job.groups.local_id[rank][group.index]):
            log.communicator(group)
        link = run.plan.link
        if spec.nccl_warnings and link is not None and link[0] == rank and spec.node(rank) != spec.node(link[1]):
            lost = self.moments.last_ns + 30 * SECOND
            log.completion_error(link[1], lost + self.moments.clock_off_ns(rank))
        return log
