"""The public face: a `Spec` goes in, files and their truth come out."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from hangscope.errors import SettingsError
from hangscope.simulate import faults, truth
from hangscope.simulate.dump_files import encode, file_name
from hangscope.simulate.dump_formats import Dumped, dumped
from hangscope.simulate.dump_moments import Moments
from hangscope.simulate.ring_records import Recorder
from hangscope.simulate.spec import Spec
from hangscope.simulate.torch_pickle import Encoder
from hangscope.simulate.whole_job import Job, Run
from hangscope.simulate.write_evidence import Evidence

ATTEMPTS = 40
"""Places that are tried before a fault is said not to fit the job."""


class Simulated:
    """One job that was run. Files are made when they are asked for."""

    def __init__(self, spec: Spec, run: Run, recorder: Recorder) -> None:
        self.spec = spec
        self._run = run
        self._recorder = recorder
        self._moments = Moments(run)
        self._encoder = Encoder()
        self.truth: dict[str, object] = truth.write(run, recorder, run.plan)

    @property
    def dump_ranks(self) -> list[int]:
        """The ranks that left a dump."""
        return [rank for rank in range(self.spec.ranks) if self._moments.dump_ns(rank) is not None]

    @property
    def summary(self) -> str:
        """The truth in one sentence."""
        plan, operation = self._run.plan, self.truth["operation"]
        if plan.kind == "none":
            return "no fault: the job is healthy"
        who = f"rank{'s' if len(plan.culprits) > 1 else ''} {', '.join(map(str, sorted(plan.culprits)))}"
        if not plan.culprits:
            who = "no rank to blame"
        if plan.link is not None:
            who += f", link {plan.link[0]} -> {plan.link[1]}"
        what = f"{plan.kind} ({plan.variant}): {who}"
        if isinstance(operation, dict):
            what += f"; {operation['name']} #{operation['seq']} of {operation['description']}"
        return what if plan.hang else f"{what}; the job did not hang"

    def dump(self, rank: int) -> bytes | None:
        """One rank's dump file, None if it left none."""
        contents = self.contents(rank)
        return None if contents is None else encode(self.spec, contents, self._encoder)

    def contents(self, rank: int) -> Dumped | None:
        """What one rank's dump says, before it is encoded."""
        at = self._moments.dump_ns(rank)
        if at is None:
            return None
        held = self._recorder.hold(rank, at, stale=self._moments.stale(rank))
        self._moments.shift(held)
        return dumped(self.spec, self._run.job.groups, held)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """(relative path, contents) of everything: dumps, the evidence around them and the truth."""
        evidence = Evidence(self._run, self._moments)
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


def simulate(spec: Spec) -> Simulated:
    """Run one job. The same spec gives the same bytes."""
    job = Job(spec)
    for attempt in range(ATTEMPTS):
        rng = random.Random(f"fault {spec.seed} {attempt}")
        plan = faults.draw(job, rng)
        if plan is None:
            continue
        run = Run(job, plan, steps_after=0 if not plan.hang else 2)
        if not truth.judge(run):
            continue
        if plan.kind == "mismatch" and not plan.hang:
            plan.accept.clear()
            run = Run(job, plan, steps_after=rng.randint(0, 1))
            if not truth.judge(run):
                continue
        if truth.seen(run):
            return Simulated(spec, run, Recorder(run))
    raise SettingsError(
        f"found no place for {spec.fault} {spec.variant}".rstrip() + f" in a job of {spec.ranks} ranks ({spec.layout})",
        hint="choose another variant, layout, culprit or seed, or more --entries",
    )
