"""How soon history names what is bad, and how often it names what is not, beside counting and "the same node twice".

    python benchmarks/bench_suspicion.py --seeds 200          # minutes; --seeds 10 for a look

For each seed and each fault a fleet is simulated for four weeks. After each incident every rule says whom it proposes:

* hangscope: `server/history/suspicion.py`, from incidents and healthy jobs;
* counting: whoever was named by so many incidents of 14 days; the number is the least with which it proposes no more
  innocents than hangscope does in the same run;
* twice: the same node named in two jobs within 14 days, as NVRx's FACT does it from dmesg.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hangscope.server.history.suspicion import CODE, JobRecord, suspects
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
    accused = frozenset(job.accused) | leaves
    return JobRecord(
        job.name, job.started_at, job.commit.partition("-")[0], took_part, job.hung_at, accused, job.function
    )


@dataclass
class Score:
    """Over seeds: how many of its own hangs each fault needed, and who was proposed wrongly."""

    incidents: int = 0
    wrong: int = 0
    """Machines; a commit that is looked at for nothing costs no node."""
    wrong_code: int = 0
    needed: dict[str, list[int | None]] = field(default_factory=lambda: defaultdict(list))
    node_blamed_for_code: list[bool] = field(default_factory=list)

    def add(self, fleet: Fleet, proposals: Sequence[tuple[int, set[Named]]], incidents: int) -> None:
        """`proposals` are, after each incident, how many were caused by the fault so far, and who is proposed."""
        ever = set().union(*(proposed for _, proposed in proposals)) if proposals else set()
        self.incidents += incidents
        wrong = [kind for kind, name in ever if (kind, name) not in fleet.also_right]
        self.wrong_code += sum(kind in CODE for kind in wrong)
        self.wrong += sum(kind not in CODE for kind in wrong)
        if fleet.truth is not None:
            first = next((caused for caused, proposed in proposals if proposed & fleet.also_right), None)
            self.needed[fleet.spec.fault].append(first)
        if fleet.spec.fault in CODE:
            self.node_blamed_for_code.append(any(kind not in CODE for kind, _ in ever))

    @property
    def wrong_per_1000(self) -> float:
        return 1000 * self.wrong / max(1, self.incidents)


def play(fleet: Fleet, scores: dict[str, Score]) -> None:
    """Let every rule see one fleet's incidents, one after the other."""
    links = {name for job in fleet.jobs for kind, name in job.accused if kind == "link"}
    records = [record(job, fleet.spec, links) for job in fleet.jobs]
    hangs = sorted((job for job in fleet.jobs if job.hung_at is not None), key=lambda job: job.hung_at or 0)
    said: dict[str, list[tuple[int, set[Named]]]] = defaultdict(list)
    caused = 0
    for hang in hangs:
        now = hang.hung_at or 0.0
        caused += hang.caused
        known = [
            each if each.hung_at is None or each.hung_at <= now else healthy_so_far(each)
            for each in records
            if each.at <= now
        ]
        proposed = suspects(known, now, every_name=False).proposed
        said["hangscope"].append((caused, {(each.kind, each.name) for each in proposed}))
        counts = Counter(node for each in hangs for node in nodes_named(each, now))
        for most in COUNTS:
            said[f"counting {most}"].append((caused, {("node", node) for node, n in counts.items() if n >= most}))
    for rule, proposals in said.items():
        scores[rule].add(fleet, proposals, len(hangs))


def healthy_so_far(job: JobRecord) -> JobRecord:
    return JobRecord(job.name, job.at, job.code, job.took_part)


def nodes_named(hang: FleetJob, now: float) -> Iterable[str]:
    at = hang.hung_at or 0.0
    return {name for kind, name in hang.accused if kind == "node"} if now - WINDOW_S <= at <= now else ()


def of_list(needed: Sequence[int | None]) -> str:
    found = sorted(each for each in needed if each is not None)
    if not found:
        return f"never in {len(needed)}"
    missed = len(needed) - len(found)
    rank = found[min(len(found) - 1, int(0.95 * len(found)))]
    return f"median {statistics.median(found):g}, 95 % {rank}" + (
        f", never in {missed} of {len(needed)}" if missed else ""
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--faults", nargs="*", default=list(FLEET_FAULTS))
    given = parser.parse_args()
    began = time.process_time()
    scores: dict[str, Score] = defaultdict(Score)
    for seed in range(given.first, given.first + given.seeds):
        for fault in given.faults:
            play(simulate_fleet(FleetSpec(fault=fault, seed=seed)), scores)
    ours = scores["hangscope"]
    fair = next((n for n in COUNTS if scores[f"counting {n}"].wrong_per_1000 <= ours.wrong_per_1000), COUNTS[-1])
    print(f"{given.seeds} seeds of 4 weeks, {ours.incidents} incidents, {time.process_time() - began:.0f} s of CPU")
    rules = (
        ("hangscope", "hangscope"),
        (f"counting to {fair}", f"counting {fair}"),
        ("twice", "counting 2"),
    )
    for label, rule in rules:
        score = scores[rule]
        blamed = score.node_blamed_for_code
        print(
            f"\n{label}: {score.wrong_per_1000:.1f} wrong machines in 1,000 incidents, {score.wrong_code} wrong "
            f"commits or images; machines blamed for code in {sum(blamed)} of {len(blamed)}"
        )
        for fault, needed in score.needed.items():
            print(f"  {fault:8} proposed after {of_list(needed)} of its own hangs")


if __name__ == "__main__":
    main()
