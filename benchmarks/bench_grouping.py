"""Are the hangs of a fleet grouped as a person would? 200 incidents of our own making, labelled by what was injected.

    python benchmarks/bench_grouping.py --incidents 200

Three programs, each with its own name in front of its jobs', run on machines of two clusters that have the same
names, and fail in eleven ways. A job's seed chooses ranks, steps, lines, rings and layout. Each incident is diagnosed
and fingerprinted as a server's digest does it. The label is made of the simulator's truth alone: of code the fault,
the program and the function in which the ranks part; of a GPU its node and slot, of a link its two nodes, of a slow
rank its node; of a rank that was killed or stopped, or is whole steps apart, the program. Two incidents are a pair
where they are in one group; precision is how many pairs of the groups are pairs of the labels, recall the other way
round. Exit status 1 where either is less than 0.95.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from hangscope.diagnosis import diagnose
from hangscope.reader.load import load
from hangscope.server.digest.fingerprint import completed, program_of
from hangscope.server.digest.named_entities import fingerprint_of
from hangscope.simulate import Spec, simulate
from hangscope.simulate.program.training_sites import CALLERS
from hangscope.verdict_words import is_trouble

ENOUGH = 0.95
PROGRAMS = ("llm-pretrain", "vision_finetune", "ranking-v2")
CLUSTERS = ("east", "west")
FAULTS = (
    ("absent", ""),
    ("mismatch", "skipped"),
    ("mismatch", "size"),
    ("deadlock", ""),
    ("shift", ""),
    ("dead", "killed"),
    ("dead", "exception"),
    ("frozen", ""),
    ("gpu", ""),
    ("network", ""),
    ("slow", ""),
)


class Made(NamedTuple):
    """One incident: the label of who knows what was done, and the group that a server puts it into."""

    label: tuple[str, ...]
    group: str
    explanation: Mapping[str, str]
    headline: str


def made(number: int, folder: Path) -> Made | None:
    """None where the fault hung nothing."""
    fault, variant = FAULTS[number % len(FAULTS)]
    chance = random.Random(number)
    program = chance.choice(PROGRAMS)
    cluster = chance.choice(CLUSTERS)
    prefix = f"{chance.choice('abc')}-node-"
    layout = chance.choice(({}, {"tp": 2}, {"pp": 2}))
    spec = Spec(
        ranks=8,
        gpus_per_node=2,
        node_prefix=prefix,
        fault=fault,
        variant=variant,
        entries=chance.choice((60, 120)),
        nccl_warnings=fault == "network",
        steps=chance.choice((4, 6, 9)),
        torch=chance.choice(("2.6", "2.9", "2.11")),
        seed=number,
        **layout,
    )
    target = folder / str(number)
    target.mkdir()
    job = simulate(spec)
    job.write(target)
    truth = json.loads((target / "truth.json").read_text())
    loaded = load([target])
    verdict = diagnose(loaded)
    if not is_trouble(str(verdict.outcome)):
        return None
    found = fingerprint_of(verdict, loaded).explanation
    group = completed(found, program_of(f"{program}-{1000 + number}"), cluster)
    return Made(_label(truth, program, cluster), group.value, group.explanation, verdict.headline)


def _label(truth: Mapping[str, Any], program: str, cluster: str) -> tuple[str, ...]:
    kind = truth["kind"]
    nodes = {int(rank): node for rank, node in truth["nodes"].items()}
    if kind == "network" and truth["link"]:
        return (kind, cluster, *sorted({nodes[rank] for rank in _ends(truth["link"])}))
    where = sorted({nodes[rank] for rank in truth["culprits"]})
    if kind == "gpu":
        slots = sorted(f"{nodes[rank]} {rank % 2}" for rank in truth["culprits"])
        return (kind, cluster, *slots)
    if kind == "slow":
        return (kind, cluster, *where)
    if kind == "shift":  # a whole step more or less, wherever that shows
        return (kind, program)
    if kind == "frozen" or (kind == "dead" and truth["variant"] != "exception"):
        return (kind, truth["variant"], program)
    line = truth["culprit_line"] or truth["line"]
    return (kind, program, _functions().get(line or "", line or ""))


def _ends(link: Mapping[str, Any] | Iterable[int]) -> list[int]:
    if isinstance(link, Mapping):
        return [int(each["rank"]) if isinstance(each, Mapping) else int(each) for each in link.values()]
    return [int(each) for each in link]


@cache
def _functions() -> Mapping[str, str]:
    return {f"{file}:{line}": name for frames in CALLERS.values() for name, file, line in frames}


def pairs(groups: Iterable[Iterable[int]]) -> set[tuple[int, int]]:
    return {pair for members in groups for pair in combinations(sorted(members), 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--incidents", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print what was put together, or apart, wrongly")
    given = parser.parse_args()
    found: list[Made] = []
    with tempfile.TemporaryDirectory() as folder:
        number = given.first
        while len(found) < given.incidents:
            one = made(number, Path(folder))
            found += [one] if one is not None else []
            number += 1
    precision, recall = measured(found)
    kinds = Counter(each.label[0] for each in found)
    print(f"{len(found)} incidents: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}")
    print(f"{len({each.label for each in found})} labels, {len({each.group for each in found})} groups")
    print(f"pairs: precision {precision:.3f}, recall {recall:.3f}")
    if given.show:
        _show(found)
    return 0 if min(precision, recall) >= ENOUGH else 1


def measured(found: list[Made]) -> tuple[float, float]:
    by_label: dict[Any, list[int]] = defaultdict(list)
    by_group: dict[Any, list[int]] = defaultdict(list)
    for number, each in enumerate(found):
        by_label[each.label].append(number)
        by_group[each.group].append(number)
    right, said = pairs(by_label.values()), pairs(by_group.values())
    both = len(right & said)
    return both / max(1, len(said)), both / max(1, len(right))


def _show(found: list[Made]) -> None:
    for one, other in combinations(found, 2):
        if (one.label == other.label) != (one.group == other.group):
            print("apart" if one.label == other.label else "together", one.label, other.label)
            for each in (one, other):
                print("   ", each.headline, {name: part for name, part in each.explanation.items() if part})


if __name__ == "__main__":
    sys.exit(main())
