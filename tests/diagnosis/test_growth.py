"""What a diagnosis costs grows with the number of operations, and hardly faster with the number of ranks.

Steps of the interpreter are counted, which do not depend on how busy the machine is; and seconds of the processor are
compared with a wide margin, because a step may be a whole column. A square would be sixteen times as much for four
times the ranks.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from functools import cache

import pytest

from hangscope.diagnosis import diagnose
from hangscope.model import Job
from hangscope.reader import load
from hangscope.reader.dumps import dump_file
from hangscope.reader.raw_evidence import Evidence
from hangscope.simulate import Spec, simulate

FEW, MANY = 64, 256
ENTRIES = 120
KINDS = {
    "absent in one group": {"fault": "absent"},
    "absent in a mesh": {"fault": "absent", "tp": 4, "pp": 4},
    "dead in a mesh": {"fault": "dead", "tp": 4, "pp": 4},
    "a link of a pipeline": {"fault": "network", "variant": "p2p", "pp": 8, "tp": 2},
    "everybody inside": {"fault": "network", "variant": "collective"},
    "deadlock": {"fault": "deadlock", "tp": 8, "pp": 2},
    "a call left out": {"fault": "mismatch", "variant": "skipped"},
    "slow": {"fault": "slow", "tp": 8},
    "nothing": {"fault": "none", "tp": 4, "pp": 2},
    "groups without names": {"fault": "absent", "torch": "2.2", "tp": 4, "pp": 2},
}
MOST_STEPS = 6.0
MOST_SECONDS = 10.0


@cache
def contents(kind: str, ranks: int) -> tuple[tuple[str, bytes], ...]:
    job = simulate(Spec(ranks=ranks, entries=ENTRIES, seed=3, **KINDS[kind]))  # type: ignore[arg-type]
    return tuple((f"rank_{rank}", job.dump(rank) or b"") for rank in job.dump_ranks)


def evidence(kind: str, ranks: int) -> Evidence:
    raws = [dump_file.read(data, file=name) for name, data in contents(kind, ranks)]
    return Evidence(dumps=raws, paths={raw.file: (raw.file,) for raw in raws})


def joined(kind: str, ranks: int) -> Job:
    return load._job(evidence(kind, ranks), ("a job",))


def steps(kind: str, ranks: int) -> int:
    """Calls that joining and judging take."""
    profile, read = cProfile.Profile(), evidence(kind, ranks)
    profile.enable()
    diagnose(load._job(read, ("a job",)))
    profile.disable()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def seconds(kind: str, ranks: int) -> float:
    job, best = joined(kind, ranks), float("inf")
    for _ in range(3):
        started = time.process_time()
        diagnose(job)
        best = min(best, time.process_time() - started)
    return best


@pytest.mark.parametrize("kind", KINDS)
def test_four_times_the_ranks_take_about_four_times_the_steps(kind: str) -> None:
    """Whatever hangs, and in whatever layout, no rule asks every rank about every rank."""
    assert steps(kind, MANY) < MOST_STEPS * steps(kind, FEW)


def test_four_times_the_ranks_take_about_four_times_as_long() -> None:
    """Over all kinds together, no column is walked over for every rank."""
    few, many = (sum(seconds(kind, ranks) for kind in KINDS) for ranks in (FEW, MANY))
    assert many < MOST_SECONDS * few
