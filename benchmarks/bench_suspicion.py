"""How soon history names what is bad, and how often it names what is not, beside counting and "the same node twice".

    python benchmarks/bench_suspicion.py --seeds 200 --processes 2      # minutes; --seeds 10 for a look

For each seed and each fault a fleet is simulated for four weeks. After each incident every rule says whom it proposes:

* hangscope: `server/history/suspicion.py`, from incidents and healthy jobs;
* counting: whoever was named by so many incidents of 14 days; the number is the least with which it proposes no more
  innocents than hangscope does in the same run;
* twice: the same node named in two jobs within 14 days, as NVRx's FACT does it from dmesg.

Seeds 0 to 39 were looked at while the model was made; figures in docs are of seeds from 1000 on.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from hangscope.server.history.suspicion import CODE, JobRecord, Past
from hangscope.simulate.fleet.simulated_fleet import (
    DAY_S,
    FLEET_FAULTS,
    GPUS,
    Fleet,
    FleetJob,
    FleetSpec,
    gpu_of,
    leaf_of,
    simulate_fleet,
)

Named = tuple[str, str]
COUNTS = range(2, 13)
WINDOW_S = 14 * DAY_S


def record(job: FleetJob, spec: FleetSpec, links: Iterable[str] = ()) -> JobRecord:
    """What the server knows of a job."""
    took_part = {
        "node": frozenset(job.nodes),
        "gpu": frozenset(gpu_of(node, number) for node in job.nodes for number in range(GPUS)),
        "nic": frozenset(f"{node}/mlx5_{number}" for node in job.nodes for number in range(GPUS)),
        "leaf": frozenset(leaf_of(node, spec) for node in job.nodes),
        "commit": frozenset((job.commit,)),
        "image": frozenset((job.image,)),
    }
    leaves = {("leaf", leaf_of(name, spec)) for kind, name in job.accused if kind == "node"}
    took_part["link"] = frozenset(link for link in links if set(link.split(" -> ")) <= set(job.nodes))
    return JobRecord(
        job.name,
        job.started_at,
        job.commit.partition("-")[0],
        took_part,
        job.hung_at,
        frozenset(job.accused) | leaves,
        job.function,
        below=Counter(leaf_of(node, spec) for node in job.nodes),
    )


@dataclass
class Said:
    """What a rule says after one incident, of which so many were the fault's own so far."""

    caused: int
    proposed: set[Named]
    first: Named | None = None


@dataclass
class Score:
    """Over seeds: how many of its own hangs each fault needed, and who was proposed wrongly."""

    incidents: int = 0
    wrong: int = 0
    """Machines; a commit that is looked at for nothing costs no node."""
    wrong_code: int = 0
    needed: dict[str, list[int | None]] = field(default_factory=dict)
    first: dict[str, list[int | None]] = field(default_factory=dict)
    machine_blamed_for_code: list[bool] = field(default_factory=list)

    def add(self, fleet: Fleet, said: Sequence[Said], incidents: int) -> None:
        ever = set().union(*(each.proposed for each in said)) if said else set()
        self.incidents += incidents
        wrong = [kind for kind, name in ever if (kind, name) not in fleet.also_right]
        self.wrong_code += sum(kind in CODE for kind in wrong)
        self.wrong += sum(kind not in CODE for kind in wrong)
        fault = fleet.spec.fault
        if fleet.truth is not None:
            proposed = next((each.caused for each in said if each.proposed & fleet.also_right), None)
            first = next((each.caused for each in said if each.first in fleet.also_right and each.caused), None)
            self.needed.setdefault(fault, []).append(proposed)
            self.first.setdefault(fault, []).append(first)
        if fault in CODE:
            self.machine_blamed_for_code.append(any(kind not in CODE for kind, _ in ever))

    def join(self, other: Score) -> None:
        self.incidents += other.incidents
        self.wrong += other.wrong
        self.wrong_code += other.wrong_code
        for mine, theirs in ((self.needed, other.needed), (self.first, other.first)):
            for fault, values in theirs.items():
                mine.setdefault(fault, []).extend(values)
        self.machine_blamed_for_code += other.machine_blamed_for_code

    @property
    def wrong_per_1000(self) -> float:
        return 1000 * self.wrong / max(1, self.incidents)


def play(fleet: Fleet, scores: dict[str, Score]) -> None:
    """Let every rule see one fleet's incidents, one after the other."""
    links = {name for job in fleet.jobs for kind, name in job.accused if kind == "link"}
    past = Past([record(job, fleet.spec, links) for job in fleet.jobs])
    hangs = sorted((job for job in fleet.jobs if job.hung_at is not None), key=lambda job: job.hung_at or 0)
    said: dict[str, list[Said]] = defaultdict(list)
    caused = 0
    for hang in hangs:
        now = hang.hung_at or 0.0
        caused += hang.caused
        found = past.suspects(now, every_name=False)
        first = found.suspects[:1]
        ours = {(each.kind, each.name) for each in found.proposed}
        said["hangscope"].append(Said(caused, ours, (first[0].kind, first[0].name) if first else None))
        counts = Counter(node for each in hangs for node in nodes_named(each, now))
        for most in COUNTS:
            said[f"counting {most}"].append(Said(caused, {("node", node) for node, n in counts.items() if n >= most}))
    for rule, each in said.items():
        scores.setdefault(rule, Score()).add(fleet, each, len(hangs))


def nodes_named(hang: FleetJob, now: float) -> Iterable[str]:
    at = hang.hung_at or 0.0
    return {name for kind, name in hang.accused if kind == "node"} if now - WINDOW_S <= at <= now else ()


def play_seed(seed: int, faults: Sequence[str]) -> tuple[dict[str, Score], float]:
    began = time.process_time()
    scores: dict[str, Score] = {}
    for fault in faults:
        play(simulate_fleet(FleetSpec(fault=fault, seed=seed)), scores)
    return scores, time.process_time() - began


def of_list(needed: Sequence[int | None]) -> str:
    """Median and 95 % over all fleets, those in which it never was so too."""
    endless = float("inf")
    values = sorted(endless if each is None else each for each in needed)
    median = statistics.median(values)
    rank = values[min(len(values) - 1, int(0.95 * len(values)))]
    never = sum(each is None for each in needed)
    words = [
        f"{name} {'never' if value == endless else f'{value:g}'}"
        for name, value in (("median", median), ("95 %", rank))
    ]
    return ", ".join(words) + (f", never in {never} of {len(needed)}" if never else "")


def report(label: str, score: Score) -> None:
    blamed = score.machine_blamed_for_code
    print(
        f"\n{label}: {score.wrong_per_1000:.2f} wrong machines in 1,000 incidents, {score.wrong_code} wrong "
        f"commits or images; machines blamed for code in {sum(blamed)} of {len(blamed)} fleets"
    )
    for fault, needed in score.needed.items():
        print(f"  {fault:8} proposed after {of_list(needed)} of its own hangs")
        if any(each is not None for each in score.first[fault]):
            print(f"  {'':8} first among the suspects after {of_list(score.first[fault])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--faults", nargs="*", default=list(FLEET_FAULTS))
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    scores: dict[str, Score] = defaultdict(Score)
    cpu_s = 0.0
    seeds = range(given.first, given.first + given.seeds)
    with ProcessPoolExecutor(given.processes) as pool:
        for done, (found, took_s) in enumerate(pool.map(play_seed, seeds, [given.faults] * len(seeds)), 1):
            cpu_s += took_s
            for rule, score in found.items():
                scores[rule].join(score)
            print(f"\r{done} of {given.seeds} seeds", end="", file=sys.stderr)
    print(file=sys.stderr)
    ours = scores["hangscope"]
    fair = next((n for n in COUNTS if scores[f"counting {n}"].wrong_per_1000 <= ours.wrong_per_1000), COUNTS[-1])
    print(f"{given.seeds} seeds from {given.first}, 4 weeks each: {ours.incidents} incidents, {cpu_s:.0f} s of CPU")
    report("hangscope", ours)
    report(f"counting to {fair}, the least that proposes no more wrongly", scores[f"counting {fair}"])
    report("the same node twice", scores["counting 2"])
    wrong = [f"{n}: {scores[f'counting {n}'].wrong_per_1000:.2f}" for n in COUNTS]
    print(f"\nwrong machines in 1,000 incidents by what counting counts to: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
