"""Every dump of every recorded job cut, taken away and replaced by one of an older attempt, with and without logs.

    python tests/sweep.py                          all of it, on all cores
    python tests/sweep.py --case skipped --mode old --logs none --list
    python tests/sweep.py --keep nccl/skipped/r1/old-same-10min/none /tmp/folder

A folder's name says how to make it again: suite, case, ranks, what was done to their dumps, which logs are left. Each
is scored against the injected truth and what `knowable.py` says that one can still know. Two things are never forgiven:
an innocent rank accused with high confidence, and a hang denied with high confidence.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import hangscope
from hangscope.errors import HangscopeError, NotFoundError
from kits.answers import NAME, Answer, answer
from kits.knowable import LEVELS, Expected, expected
from kits.older_dumps import OLDER, without_stamps
from kits.recorded import DUMP, RANK_LOG, Recorded, read_case, recorded
from kits.verdict_words import slips

CUTS = {f"cut-{share:02d}": share / 100 for share in (0, 3, 12, 25, 38, 50, 62, 75, 88, 96)} | {"cut-end": 1.0}
"""Where a file breaks off, as a share of its bytes, hence inside a record; the last lacks one byte."""
NODE_MODES = ("gone", "cut-50", "old-behind-hung-70s", "old-done-70s", "old-ahead-done-5h")
"""What may happen to a whole node's dumps, as long as they are a minority."""
MODES = (*CUTS, "gone", *OLDER, "stampless")


@dataclass(frozen=True)
class Change:
    """One folder to make."""

    case: str
    ranks: tuple[int, ...]
    only: int
    """Which of a rank's dumps, where it has several; -1 for all."""
    mode: str
    logs: str

    @property
    def name(self) -> str:
        which = ("+".join(f"r{rank}" for rank in self.ranks) or "none") + (f".{self.only}" if self.only >= 0 else "")
        return f"{self.case}/{which}/{self.mode}/{self.logs}"

    @property
    def family(self) -> str:
        return "node " * (len(self.ranks) > 1) + self.mode.split("-")[0]


@dataclass(frozen=True)
class Score:
    """One folder, judged."""

    name: str
    family: str
    logs: str
    sure: bool
    """Whether the cause remains knowable."""
    grade: str
    """"exact", "honest" (less than that, and nobody wrongly accused) or "wrong"."""
    innocent_high: bool
    denied_high: bool
    confidence: str
    detail: str
    slips: tuple[str, ...] = ()
    """Sentences that must not reach a reader, whoever is accused in them."""
    checksum: str = ""
    """Of all that was said."""


def changes(case: Recorded) -> Iterator[Change]:
    """All folders to make of one recorded job."""
    for logs in LEVELS:
        yield Change(case.id, (), -1, "whole", logs)
        for rank, files in sorted(case.dumps.items()):
            for only in (-1, *(range(len(files)) if len(files) > 1 else ())):
                for mode in MODES:
                    yield Change(case.id, (rank,), only, mode, logs)
        for ranks in case.by_node().values():
            if 1 < len(ranks) < len(case.dumps) / 2:
                for mode in NODE_MODES:
                    yield Change(case.id, tuple(ranks), -1, mode, logs)


def altered(data: bytes, mode: str) -> bytes | None:
    """A dump's bytes after this was done to it; None where the file is gone."""
    if mode == "gone":
        return None
    if mode in CUTS:
        return data[: min(round(len(data) * CUTS[mode]), len(data) - 1)]
    return without_stamps(data) if mode == "stampless" else OLDER[mode](data)


def kept(path: Path, logs: str) -> bool:
    """Whether a file is left at this level of evidence."""
    if path.name == "truth.json":
        return False
    return logs == "all" or bool(DUMP.fullmatch(path.name)) or (logs == "training" and bool(RANK_LOG.match(path.name)))


@contextlib.contextmanager
def workspace(case: Recorded, logs: str, scratch: Path) -> Iterator[Path]:
    """A copy of the case with the files of this level, to change and restore one dump after the other in."""
    folder = Path(tempfile.mkdtemp(dir=scratch)) / NAME
    for path in case.folder.rglob("*"):
        if path.is_file() and kept(path, logs):
            target = folder / path.relative_to(case.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    yield folder
    shutil.rmtree(folder.parent)


@contextlib.contextmanager
def applied(case: Recorded, change: Change, folder: Path) -> Iterator[None]:
    """The change made in a workspace, and undone."""
    before: dict[Path, bytes] = {}
    for rank in change.ranks:
        for number, path in enumerate(case.dumps[rank]):
            if change.only in (-1, number):
                target = folder / path.relative_to(case.folder)
                before[target] = target.read_bytes()
                data = altered(before[target], change.mode)
                if data is None:
                    target.unlink()
                else:
                    target.write_bytes(data)
    yield
    for target, data in before.items():
        target.write_bytes(data)


def judge(case: Recorded, change: Change, said: Answer | Exception) -> Score:
    """Compare what was said of a folder with what one can know."""
    touched = frozenset(change.ranks) if change.only < 0 else frozenset[int]()
    may = expected(case, change.logs, touched, change.mode)
    score = Score(change.name, change.family, change.logs, may.sure, "wrong", False, False, "", "")
    if isinstance(said, Exception):  # a traceback of any kind is a failure of its own, and the sweep goes on
        return replace(score, innocent_high=True, denied_high=True, detail=f"CRASH {said!r}")
    verdict = said.verdict
    score = replace(score, checksum=said.words.checksum)
    if isinstance(verdict, NotFoundError):
        lost = len(case.dumps) == len(change.ranks) and change.logs != "all"
        return replace(score, grade="honest" if lost else "wrong", detail=f"refused: {verdict}")
    if isinstance(verdict, HangscopeError):
        return replace(score, innocent_high=True, denied_high=True, detail=f"CRASH {verdict!r}")
    grade, innocent = graded(case, may, verdict)
    denied = bool(case.truth["hang"]) and verdict.outcome in ("ok", "slow", "pause")
    high = verdict.confidence == "high"
    return replace(
        score,
        grade="wrong" if denied else grade,
        innocent_high=high and bool(innocent),
        denied_high=high and denied,
        confidence=verdict.confidence,
        detail=f"truth {case.truth['kind']} {case.guilty}; said {verdict.outcome} {verdict.kind} "
        f"{[c.rank for c in verdict.culprits]} ({verdict.confidence}): {verdict.headline} | {may.why}",
        slips=tuple(slips(verdict)),
    )


def graded(case: Recorded, may: Expected, verdict: hangscope.Diagnosis) -> tuple[str, set[int]]:
    """("exact", "honest" or "wrong", the innocent ranks among the accused)."""
    accused = frozenset(culprit.rank for culprit in verdict.culprits)
    innocent = set(accused) - {rank for ranks in case.honest for rank in ranks}
    alarm = not case.truth["hang"] and verdict.outcome in ("hang", "crash")
    if accused in may.culprits and verdict.kind in may.kinds and not alarm:
        return "exact", innocent
    excess = accused - {rank for ranks in may.culprits for rank in ranks}
    return ("wrong" if excess or innocent or alarm else "honest"), innocent


Workspace = tuple[str, str, tuple[Change, ...]]
"""(case, which logs are left, the changes to make there)."""
_CASES: dict[str, Recorded] = {}


def by_workspace(wanted: Iterable[Change]) -> list[Workspace]:
    """The changes that can be made one after the other in one copy of a case."""
    found: dict[tuple[str, str], list[Change]] = defaultdict(list)
    for change in wanted:
        found[change.case, change.logs].append(change)
    return [(case, logs, tuple(some)) for (case, logs), some in found.items()]


def answers(name: str, logs: str, wanted: Iterable[Change]) -> Iterator[tuple[Change, Answer | Exception]]:
    """What is said of each folder of one case at one level of evidence."""
    case = _CASES.get(name) or next(case for case in recorded() if case.id == name)
    shared = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as scratch,
        workspace(case, logs, Path(scratch)) as folder,
    ):
        for change in wanted:
            with applied(case, change, folder):
                try:
                    yield change, answer(folder)
                except Exception as error:
                    yield change, error


def _judged(work: Workspace) -> list[Score]:
    case = _CASES[work[0]]
    return [judge(case, change, said) for change, said in answers(*work)]


def run(wanted: Iterable[Change], cases: Sequence[Recorded], jobs: int = 1) -> list[Score]:
    """Make and judge folders, one process a core."""
    _CASES.update({case.id: case for case in cases})
    work = by_workspace(wanted)
    if jobs < 2:
        return [score for item in work for score in _judged(item)]
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        return [score for scores in pool.imap(_judged, work) for score in scores]


def simulated(first: int, count: int, scratch: Path) -> list[Recorded]:
    """Jobs that nobody has seen, of small size and in the formats that `older` can rewrite."""
    from hangscope.errors import SettingsError
    from hangscope.simulate import random_spec, simulate

    found: list[Recorded] = []
    for seed in range(first, first + 100 * count):
        spec = random_spec(seed)
        if len(found) == count:
            break
        if spec.ranks > 32 or spec.minor < 4 or spec.backend not in ("nccl", "rccl", "xccl"):
            continue
        with contextlib.suppress(SettingsError):  # no place for that fault in so short a ring
            job = simulate(replace(spec, gzip=False, entries=min(spec.entries, 120)))
            job.write(scratch / f"seed-{seed}")
            found.append(read_case("simulated", scratch / f"seed-{seed}"))
    return found


def sample(wanted: Sequence[Change], count: int) -> list[Change]:
    """Some of the folders, the same ones every time, spread over cases and over what was done."""
    strata: dict[tuple[str, str], list[Change]] = defaultdict(list)
    for change in sorted(wanted, key=lambda change: hashlib.blake2b(change.name.encode()).digest()):
        strata[change.case, change.family].append(change)
    chosen: list[Change] = []
    turn = 0
    while len(chosen) < min(count, len(wanted)):
        chosen.extend(some[turn] for _, some in sorted(strata.items()) if turn < len(some))
        turn += 1
    return chosen[:count] if turn == 1 else chosen


def show(scores: Sequence[Score], listing: bool) -> None:
    """The table, and the folders that went wrong."""
    columns = ("folders", "knowable", "exact", "honest", "wrong", "rest", "honest", "wrong", "INNOCENT", "DENIED")
    print(f"{'':26}" + "".join(f"{name:>9}" for name in columns))
    rows: dict[tuple[str, str], list[Score]] = defaultdict(list)
    for score in scores:
        rows[score.family, score.logs].append(score)
        rows["all", ""].append(score)
    for (family, logs), mine in sorted(rows.items(), key=lambda row: (row[0][0] == "all", row[0])):
        sure, rest = [s for s in mine if s.sure], [s for s in mine if not s.sure]
        grades, others = Counter(s.grade for s in sure), Counter(s.grade for s in rest)
        cells = (len(mine), len(sure), grades["exact"], grades["honest"], grades["wrong"])
        more = (len(rest), others["exact"] + others["honest"], others["wrong"])
        hard = (sum(s.innocent_high for s in mine), sum(s.denied_high for s in mine))
        print(f"{family + ' / ' + logs if logs else family:26}" + "".join(f"{n:>9}" for n in (*cells, *more, *hard)))
    print(f"exact in what remains knowable: {exactness(scores):.2%}")
    worded = {slip: score.name for score in scores for slip in score.slips}
    for slip, name in sorted(worded.items())[:40]:
        print(f"WORDS  {name}  {slip}")
    for score in scores:
        if score.innocent_high or score.denied_high:
            print(f"{'INNOCENT' if score.innocent_high else 'DENIED'}  {score.name}  {score.detail}")
    if listing:
        for score in scores:
            if score.grade == "wrong" or (score.sure and score.grade != "exact"):
                print(f"{score.grade}{' KNOWABLE' if score.sure else ''}  {score.name}  {score.detail}")


def exactness(scores: Sequence[Score]) -> float:
    """The share of exact verdicts among the folders whose cause remains knowable."""
    sure = [score for score in scores if score.sure]
    return sum(score.grade == "exact" for score in sure) / len(sure) if sure else 1.0


def keep(name: str, target: Path, cases: Sequence[Recorded]) -> int:
    """Write one folder to disk."""
    for case in cases:
        for change in changes(case):
            if change.name == name:
                with workspace(case, change.logs, Path(tempfile.gettempdir())) as folder, applied(case, change, folder):
                    shutil.copytree(folder, target)
                    score = judge(case, change, answer(folder))
                print(f"{target}: {score.grade}{'' if score.sure else ', not knowable'}\n{score.detail}")
                return 0
    print(f"error: no folder is called {name}", file=sys.stderr)
    return 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", help="a case, as skipped or nccl/skipped; may be repeated")
    parser.add_argument("--rank", type=int, help="only changes to the dumps of this rank alone")
    parser.add_argument("--mode", action="append", help="cut, gone, old, stampless, node or one of them in full")
    parser.add_argument("--logs", choices=LEVELS, action="append", help="which logs are left")
    parser.add_argument("--sample", type=int, help="this many folders, the same ones every time")
    parser.add_argument("--simulated", type=int, help="instead of the recorded jobs, this many simulated ones")
    parser.add_argument("--first", type=int, default=70_000, help="the first seed of simulated jobs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many processes")
    parser.add_argument(
        "--list", action="store_true", help="also list what is not exact, though nobody is surely wronged"
    )
    parser.add_argument("--json", type=Path, help="write every score there")
    parser.add_argument("--keep", nargs=2, metavar=("NAME", "DIR"), help="write one folder to disk, and its verdict")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cases = simulated(options.first, options.simulated, Path(scratch)) if options.simulated else recorded()
        return sweep(options, cases)


def sweep(options: argparse.Namespace, cases: list[Recorded]) -> int:
    """What the command line asks for."""
    if options.keep:
        return keep(options.keep[0], Path(options.keep[1]), cases)
    if options.case:
        cases = [case for case in cases if case.id in options.case or case.name in options.case]
    wanted = [change for case in cases for change in changes(case)]
    if options.rank is not None:
        wanted = [change for change in wanted if change.ranks == (options.rank,)]
    if options.mode:
        wanted = [c for c in wanted if c.mode in options.mode or set(c.family.split()) & set(options.mode)]
    if options.logs:
        wanted = [change for change in wanted if change.logs in options.logs]
    if options.sample:
        wanted = sample(wanted, options.sample)
    started = time.perf_counter()
    scores = run(wanted, cases, options.jobs)
    show(scores, options.list)
    print(f"{len(scores)} folders in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps([asdict(score) for score in scores], indent=1))
    wronged = any(score.innocent_high or score.denied_high for score in scores)
    return 1 if wronged or exactness(scores) < 0.9 else 0


if __name__ == "__main__":
    sys.exit(main())
