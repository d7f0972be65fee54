"""The public face: a `Spec` goes in, files and their truth come out."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from hangscope.errors import SettingsError
from hangscope.simulate.events.job_run import JobRun
from hangscope.simulate.faults.fault_plan import FaultPlan
from hangscope.simulate.faults.plan_fault import plan_fault
from hangscope.simulate.files.dump_contents import DumpContents, dump_contents
from hangscope.simulate.files.dump_files import encode, file_name
from hangscope.simulate.files.torch_pickle import Encoder
from hangscope.simulate.files.write_evidence import EvidenceFiles
from hangscope.simulate.program.healthy_job import HealthyJob
from hangscope.simulate.record.dump_times import DumpTimes
from hangscope.simulate.record.ring_contents import RingRecorder
from hangscope.simulate.spec.job_spec import Spec
from hangscope.simulate.truth.judge_fault import judge, rings_hold_the_fault
from hangscope.simulate.truth.truth_file import truth_of

STEPS_SHIFTED = 20
ATTEMPTS = 40
"""Places that are tried before a fault is said not to fit the job."""


class Simulated:
    """One job that was run. Files are made when they are asked for."""

    def __init__(self, run: JobRun) -> None:
        self.spec = run.job.spec
        self._run = run
        self._recorder = RingRecorder(run)
        self._times = DumpTimes(run)
        self._encoder = Encoder()
        self.truth: dict[str, object] = truth_of(run, self._recorder.table)

    @property
    def dump_ranks(self) -> list[int]:
        """The ranks that left a dump."""
        return [rank for rank in range(self.spec.ranks) if self._times.dump_ns(rank) is not None]

    @property
    def summary(self) -> str:
        """The truth in one sentence."""
        plan = self._run.plan
        if plan.kind == "none":
            return "no fault: the job is healthy"
        who = f"rank{'s' if len(plan.culprits) > 1 else ''} {', '.join(map(str, sorted(plan.culprits)))}"
        if not plan.culprits:
            who = "no rank to blame"
        if plan.link is not None:
            who += f", link {plan.link[0]} -> {plan.link[1]}"
        what = f"{plan.kind} ({plan.variant}): {who}"
        operation = self.truth["operation"]
        if isinstance(operation, dict):
            what += f"; {operation['name']} #{operation['seq']} of {operation['description']}"
        return what if plan.hang else f"{what}; the job did not hang"

    def dump(self, rank: int) -> bytes | None:
        """One rank's dump file, None if it left none."""
        contents = self.contents(rank)
        return None if contents is None else encode(self.spec, contents, self._encoder)

    def contents(self, rank: int) -> DumpContents | None:
        """What one rank's dump says, before it is encoded."""
        at = self._times.dump_ns(rank)
        if at is None:
            return None
        ring = self._recorder.contents(rank, at, stale=self._times.stale(rank))
        self._times.shift(ring)
        return dump_contents(self.spec, self._run.job.groups, ring)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """(relative path, contents) of everything: dumps, the evidence around them and the truth."""
        evidence = EvidenceFiles(self._run, self._times)
        for rank in range(self.spec.ranks):
            contents = self.contents(rank)
            if contents is not None:
                yield f"{self.spec.node(rank)}/{file_name(self.spec, rank)}", encode(self.spec, contents, self._encoder)
            if self.spec.evidence:
                yield from evidence.rank_files(rank, contents)
        if self.spec.evidence:
            yield "roster.json", evidence.roster()
        yield "truth.json", (json.dumps(self.truth, indent=1) + "\n").encode()

    def write(self, directory: str | Path) -> None:
        """Write all files below a directory, which is made if need be."""
        root = Path(directory)
        for name, data in self.files():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _steps_after(plan: FaultPlan) -> int:
    """Steps that are simulated after the fault's own: what lasts is shown by many."""
    if plan.kind == "shift":
        return STEPS_SHIFTED
    return 2 if plan.hang else 0


def simulate(spec: Spec) -> Simulated:
    """Run one job. The same spec gives the same bytes."""
    job = HealthyJob(spec)
    for attempt in range(ATTEMPTS):
        rng = random.Random(f"fault {spec.seed} {attempt}")
        plan = plan_fault(job, rng)
        if plan is None:
            continue
        run = JobRun(job, plan, steps_after=_steps_after(plan))
        if not judge(run):
            continue
        if plan.kind == "mismatch" and not plan.hang:
            # NCCL did not notice: the job went on for a while, and that is what its rings hold.
            plan.accept.clear()
            run = JobRun(job, plan, steps_after=rng.randint(0, 1))
            if not judge(run):
                continue
        if rings_hold_the_fault(run):
            return Simulated(run)
    raise SettingsError(
        f"found no place for {spec.fault} {spec.variant}".rstrip() + f" in a job of {spec.ranks} ranks ({spec.layout})",
        hint="choose another variant, layout, culprit or seed, or more --entries",
    )
