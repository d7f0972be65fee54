"""Score hangscope, and torchfrtrace beside it, on simulated jobs and on the recorded cases.

    python tests/scoreboard.py --jobs 1000

Every job is written to files and read back, so the whole path is scored: reader, alignment, rules. A verdict is *exact*
if hang, kind and the set of accused ranks are the injected truth (or one of the sets that truth.json accepts). An
innocent rank that is accused with high confidence is a failure of its own, whatever the rest says.

torchfrtrace (of the installed torch) is scored generously: only the set of ranks that it names counts, since it
names no kind; where it refuses because dumps are missing it is asked again with --allow-incomplete-ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import hangscope

CASES = Path(__file__).parent / "cases"
LEAST_ENTRIES = 60


@dataclass(frozen=True)
class Score:
    """One job, judged."""

    name: str
    truth_kind: str
    got_kind: str
    exact_ranks: bool
    exact: bool
    innocent_high: bool
    confidence: str
    peer: bool | None = None
    detail: str = ""


def judge(name: str, truth: dict[str, Any], directory: Path, peer: Peer | None) -> Score:
    """Diagnose one directory and compare with its truth."""
    score = graded(name, truth, hangscope.diagnose(hangscope.load([directory])))
    if peer is None:
        return score
    return replace(score, peer=peer.names(directory) in [set(ranks) for ranks in honest(truth)])


def honest(truth: dict[str, Any]) -> list[list[int]]:
    """The sets of ranks that are a right answer."""
    return [truth["culprits"], *truth.get("accept", [])]


def graded(name: str, truth: dict[str, Any], verdict: hangscope.Diagnosis) -> Score:
    """Compare a verdict with the truth."""
    got = [c.rank for c in verdict.culprits]
    exact_ranks = sorted(got) in [sorted(ranks) for ranks in honest(truth)]
    kinds = [truth["kind"], *truth.get("accept_kinds", [])]
    allowed = {rank for ranks in honest(truth) for rank in ranks}
    return Score(
        name=name,
        truth_kind=truth["kind"],
        got_kind=verdict.kind,
        exact_ranks=exact_ranks,
        exact=exact_ranks and verdict.kind in kinds and verdict.hang == truth["hang"],
        innocent_high=verdict.confidence == "high" and bool(set(got) - allowed),
        confidence=verdict.confidence,
        detail=f"truth {truth['culprits']} accept {truth.get('accept')} got {got}: {verdict.headline}",
    )


class Peer:
    """torchfrtrace, imported once and forked for every job."""

    limit_s = 20

    def __init__(self) -> None:
        from torch.distributed.flight_recorder.fr_trace import main  # here and nowhere else is torch imported

        self._main = main

    def names(self, directory: Path) -> set[int] | None:
        """The set of ranks it names; None where it fails."""
        with tempfile.TemporaryDirectory() as scratch:
            for file in sorted(directory.rglob("*")):
                match = re.search(r"rank_(\d+)$", file.name)
                if match and file.is_file():
                    shutil.copy(file, Path(scratch) / f"nccl_trace_rank_{match[1]}")
            arguments = [scratch, "-p", "nccl_trace_rank_"]
            status, text = self._run(arguments)
            if status != 0:
                status, text = self._run([*arguments, "--allow-incomplete-ranks"])
        if status != 0:
            return None
        named = {int(r) for r in re.findall(r"Culprit rank (\d+)", text)}
        for group in re.findall(r"missing ranks: \{([\d, ]+)\}", text):
            named |= {int(r) for r in group.split(",")}
        return named

    def _run(self, arguments: list[str]) -> tuple[int, str]:
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if child == 0:
                status = 1
                with contextlib.suppress(BaseException):
                    os.dup2(output.fileno(), 1)
                    os.dup2(output.fileno(), 2)
                    signal.alarm(self.limit_s)
                    self._main(arguments)
                    sys.stdout.flush()
                    status = 0
                os._exit(status)
            _, status = os.waitpid(child, 0)
            output.seek(0)
            return status, output.read().decode(errors="replace")


def recorded(peer: Peer | None) -> Iterator[Score]:
    """The recorded cases."""
    for truth_file in sorted(CASES.glob("*/truth.json")):
        truth = json.loads(truth_file.read_text())
        yield judge(truth_file.parent.name, truth, truth_file.parent, peer)


def simulated(
    first: int, count: int, operations: int, peer: Peer | None, scratch: Path, *, shifted: bool = False
) -> Iterator[Score]:
    """Jobs drawn from the whole space of sizes, layouts, faults, formats and ring sizes, one process a core.

    `shifted`: of those that come apart without hanging.
    """
    one = partial(_simulated, operations=operations, peer=peer, scratch=scratch, shifted=shifted)
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=20) as pool:
        yield from (score for score in pool.imap(one, range(first, first + count)) if score is not None)


def _simulated(seed: int, operations: int, peer: Peer | None, scratch: Path, shifted: bool) -> Score | None:
    from hangscope.errors import SettingsError
    from hangscope.simulate import random_shift_spec, random_spec, simulate

    directory = scratch / f"{seed} {shifted}"
    spec = random_shift_spec(seed) if shifted else random_spec(seed)
    # A large job gets a smaller ring: what it shows fits into the last steps, and a thousand jobs fit into an hour. Not
    # with torchcomms, which counts over all groups: what is left of a ring without its start cannot be told apart.
    if spec.backend != "torchcomms" and not shifted:
        spec = replace(spec, entries=min(spec.entries, max(LEAST_ENTRIES, operations // spec.ranks)))
    try:
        job = simulate(spec)
    except SettingsError as error:
        print(f"seed {seed} makes no job: {error}", file=sys.stderr, flush=True)
        return None
    job.write(directory)
    score = judge(f"{'shifted ' if shifted else ''}seed {seed}", dict(job.truth), directory, peer)
    shutil.rmtree(directory)
    return score


def show(title: str, scores: list[Score]) -> None:
    """Print the confusion matrix and the summary."""
    kinds = sorted({s.truth_kind for s in scores} | {s.got_kind for s in scores})
    cells = Counter((s.truth_kind, s.got_kind) for s in scores)
    print(f"\n{title}: {len(scores)} jobs")
    print("  truth \\ verdict  " + " ".join(f"{k[:8]:>8}" for k in kinds) + "    exact  ranks")
    for truth in kinds:
        mine = [s for s in scores if s.truth_kind == truth]
        if mine:
            row = " ".join(f"{cells[truth, got] or '.':>8}" for got in kinds)
            exact = sum(s.exact for s in mine) / len(mine)
            ranks = sum(s.exact_ranks for s in mine) / len(mine)
            print(f"  {truth:<16} {row}   {exact:6.1%} {ranks:6.1%}")
    total = len(scores)
    print(
        f"  exact kind and ranks   {sum(s.exact for s in scores)}/{total} = {sum(s.exact for s in scores) / total:.1%}",
    )
    print(
        f"  exact ranks            {sum(s.exact_ranks for s in scores)}/{total} = "
        f"{sum(s.exact_ranks for s in scores) / total:.1%}",
    )
    print(f"  innocent, high         {sum(s.innocent_high for s in scores)}")
    compared = [s for s in scores if s.peer is not None]
    if compared:
        theirs, ours = sum(bool(s.peer) for s in compared), sum(s.exact_ranks for s in compared)
        print(
            f"  exact ranks, same jobs hangscope {ours}/{len(compared)}, torchfrtrace {theirs}/{len(compared)}",
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000, help="how many simulated jobs")
    parser.add_argument("--first", type=int, default=50_000, help="the first seed")
    parser.add_argument("--operations", type=int, default=40_000, help="the most recorded operations of one job")
    parser.add_argument("--shifts", type=int, default=50, help="how many more that come apart without hanging")
    parser.add_argument("--no-peer", action="store_true", help="do not score torchfrtrace beside it")
    parser.add_argument("--misses", action="store_true", help="list every job that is not exact")
    options = parser.parse_args()
    peer = None
    if not options.no_peer:
        try:
            peer = Peer()
        except ImportError:
            print("torchfrtrace is not scored: this interpreter has no torch with it", file=sys.stderr)
    cases = list(recorded(peer))
    show("recorded cases", cases)
    jobs: list[Score] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        for score in simulated(options.first, options.jobs, options.operations, peer, Path(scratch)):
            jobs.append(score)
            if len(jobs) % 50 == 0:
                exact = sum(s.exact for s in jobs) / len(jobs)
                print(f"{len(jobs)} jobs, {exact:.1%} exact", file=sys.stderr, flush=True)
        shifts = simulated(options.first, options.shifts, options.operations, None, Path(scratch), shifted=True)
        apart = list(shifts)
    if jobs:
        show("simulated jobs", jobs)
    if apart:
        show("simulated jobs that come apart without hanging", apart)
    jobs += apart
    if options.misses:
        for score in [*cases, *jobs]:
            if not score.exact or score.innocent_high:
                flag = "INNOCENT " if score.innocent_high else ""
                print(f"{flag}{score.name}: {score.truth_kind} -> {score.got_kind} ({score.confidence}) {score.detail}")
    good = not any(s.innocent_high for s in [*cases, *jobs])
    return 0 if good and (not jobs or sum(s.exact_ranks for s in jobs) / len(jobs) >= 0.99) else 1


if __name__ == "__main__":
    sys.exit(main())
