"""Everything but the dumps: the launcher's roster, every rank's log, and NCCL's logs where a link died."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from hangscope.simulate.events.job_run import JobRun
from hangscope.simulate.files.dump_contents import DumpContents
from hangscope.simulate.files.write_nccl_logs import NcclLogWriter, address, pid
from hangscope.simulate.files.write_torch_logs import Membership, Overdue, RankLog, overdue
from hangscope.simulate.record.dump_times import SECOND, DumpTimes
from hangscope.simulate.spec.job_layout import WORLD

KILLED = -9
ABORTED = -6
_EXIT = {"killed": KILLED, "exception": 1, "exit": 0}
_LIVES = (None, None)

Exit = tuple["int | None", "int | None"]
"""Status and time on the true clock; None for what has not ended."""


class EvidenceFiles:
    """The logs and the roster of one run. Ask for the ranks' files first: the roster says how they ended."""

    def __init__(self, run: JobRun, times: DumpTimes) -> None:
        self.run = run
        self.times = times
        self.spec = run.job.spec
        self._exits: dict[int, Exit] = {}

    def rank_files(self, rank: int, dump: DumpContents | None) -> Iterator[tuple[str, bytes]]:
        node = self.spec.node(rank)
        yield f"{node}/rank_{rank}.log", self._rank_log(rank, dump).text.encode()
        if self.run.plan.kind == "network" and self.spec.backend != "gloo":
            log = self._nccl_log(rank)
            yield f"{node}/{log.name}", log.text.encode()

    def roster(self) -> bytes:
        rows = []
        for rank in range(self.spec.ranks):
            status, ended = self._exits[rank]
            off = self.times.clock_off_ns(rank)
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

    def _memberships(self, rank: int) -> dict[int, Membership]:
        """By role."""
        groups = self.run.job.groups
        found = {}
        for role, index in enumerate(groups.of[rank]):
            if index >= 0:
                group = groups.all[index]
                found[role] = Membership(group, groups.local_id[rank][index], group.members.index(rank))
        return found

    # ---- one rank's log ----------------------------------------------------------------------------------------------

    def _rank_log(self, rank: int, dump: DumpContents | None) -> RankLog:
        memberships = self._memberships(rank)
        first_group = memberships[self.run.flat[rank][0].role]
        log = RankLog(self.spec, rank, first_group.group_rank)
        rng = random.Random(f"log {self.spec.seed} {rank}")
        done = self._steps_done(rank)
        for step in range(max(1, done - 2), done + 1):
            log.say(f"step {step} loss {2.0 + 40 / (step + 20) + rng.random() / 50:.4f}")
        died = self.times.died_ns(rank)
        if died is not None:
            self._exits[rank] = self._death(log, rank, died)
        elif not self.run.plan.hang:
            self._exits[rank] = self._finish(log, rng)
        elif dump is None or self._says_nothing(rank):
            self._exits[rank] = _LIVES
        else:
            self._exits[rank] = self._watchdog(log, rank, dump, memberships, rng)
        return log

    def _says_nothing(self, rank: int) -> bool:
        """A stopped process prints no more, and Gloo has no watchdog."""
        plan = self.run.plan
        return self.spec.backend == "gloo" or (plan.kind == "frozen" and rank in plan.culprits)

    def _death(self, log: RankLog, rank: int, died: int) -> Exit:
        run = self.run
        shown = died + self.times.clock_off_ns(rank)
        if run.plan.variant == "exception":
            log.raised(run.flat[rank][run.engine.halted[rank]].site, shown)
        elif run.plan.variant == "exit":
            log.left(shown)
        return _EXIT[run.plan.variant], died

    def _finish(self, log: RankLog, rng: random.Random) -> Exit:
        if self.run.plan.variant == "running":
            return _LIVES
        ended = self.times.last_ns + rng.randint(1, 4) * SECOND
        log.say("training finished")
        return 0, ended

    def _watchdog(
        self,
        log: RankLog,
        rank: int,
        dump: DumpContents,
        memberships: dict[int, Membership],
        rng: random.Random,
    ) -> Exit:
        """The lines of a rank that lives through the hang, in the order of their times (on its own clock)."""
        spec = self.spec
        times = self.times
        off = times.clock_off_ns(rank)
        dumped_at = times.dump_ns(rank)
        assert dumped_at is not None
        ends = dumped_at + off + (15 * SECOND if spec.minor >= 8 else 60 * SECOND)
        works = overdue(spec, dump, memberships)
        enqueued, _, completed = dump.ring.status.get(WORLD, (-1, -1, -1))
        own = Overdue(memberships[WORLD], dump.ring.calls[0].site, 0, 0, enqueued, completed)
        own_end = False
        noticed = times.noticed_ns(rank)
        if noticed is not None and works:
            log.lost_peer(works[0], noticed + off, f"{address(spec, times.lost_peer)}<{50_000 + rank % 9_000}>")
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
            log.dumps(own, dumped_at + off, times.first_reporter)
        for at, work in after:
            log.timed_out(work, at)
        if not own_end:
            return _LIVES
        log.ends(own, ends)
        return ABORTED, ends - off

    def _steps_done(self, rank: int) -> int:
        """Steps whose last operation the rank finished."""
        run = self.run
        finished = run.timelines[rank].finished
        for position in range(len(run.programs[rank]) - 1, run.fault_step - run.lead - 1, -1):
            last = run.offsets[rank][position + 1] - 1
            if len(finished) > last and finished[last] >= 0:
                return run.past + position - (run.fault_step - run.lead) + 1
        return run.past

    # ---- NCCL --------------------------------------------------------------------------------------------------------

    def _nccl_log(self, rank: int) -> NcclLogWriter:
        run = self.run
        spec = self.spec
        off = self.times.clock_off_ns(rank)
        log = NcclLogWriter(spec, rank, run.job.begin_ns - 90 * SECOND + off)
        used = {op.role for op in run.flat[rank]}
        members = [member for role, member in self._memberships(rank).items() if role in used]
        for member in sorted(members, key=lambda member: member.pg_id):
            log.communicator(member.group)
        link = run.plan.link
        if spec.nccl_warnings and link is not None and link[0] == rank and spec.node(rank) != spec.node(link[1]):
            log.completion_error(link[1], self.times.last_ns + 30 * SECOND + off)
        return log
