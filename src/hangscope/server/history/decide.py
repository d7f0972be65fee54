"""Machine, code, network, storage or outage: the table that decides, with its counts, and the experiment that would.

Machines are counted by their place (node, GPU, port, link, leaf switch), code by its program and the place in it, and
nothing is said against the verdict: what only a machine does is never held against code, nor the other way round.
Nothing is done by itself: the commands are printed for whoever may run them.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hangscope.report.history_lines import decided
from hangscope.server.history.place_names import apart
from hangscope.server.history.suspicion import CODE, OUTAGE_JOBS, OUTAGE_S, JobRecord, Key

LEAST_SHARE = 5
"""A machine is often named where it was in one of so many of its jobs, and so many times as often as all others."""

NOT_DECIDED = "not decided"
MACHINES = ("hardware", "network")


class Row(NamedTuple):
    """One line of the table: what would show it, what was counted, and what it speaks for."""

    what: str
    counted: str
    speaks_for: str
    holds: bool


class Experiment(NamedTuple):
    """Two commands, and what each outcome would mean."""

    commands: tuple[str, ...]
    outcomes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    rows: tuple[Row, ...]
    answer: str
    """The first cause whose line holds; "not decided" where none does."""
    experiment: Experiment | None

    @property
    def says(self) -> str:
        """In one line, as pages, the API and `diagnose --server` say it."""
        return decided(self.answer, self.rows)


def decide(
    job: JobRecord,
    past: Sequence[JobRecord],
    rate: Callable[[str], Rate | None] = lambda _: None,
    proposed: Collection[Key] = (),
) -> Decision:
    """What history says about the hang of one job. `rate` is the cluster's by kind, where it is known; `proposed` are
    those whose odds decide where the table speaks for machine and code alike."""
    others = [each for each in past if each.name != job.name]
    machines = (*_machine(job, others, rate), *_network(job, others, rate))
    doubted = not any(row.holds for row in machines) and _is_doubted(job, others, rate)
    rows = (*_outage(job, others), *machines, *_code(job, others, proposed, doubted=doubted))
    answer = _answer(rows, is_proposed=any(key in proposed for key in job.accused))
    return Decision(rows, answer, experiment(sorted({apart(name)[0] for kind, name in job.accused if kind == "node"})))


def _answer(rows: Sequence[Row], *, is_proposed: bool) -> str:
    """The first cause whose line holds. Where a machine's and the code's both do, they say nothing by themselves."""
    causes = [row.speaks_for for row in rows if row.holds]
    if not causes or ("code" in causes and causes[0] in MACHINES and not is_proposed):
        return NOT_DECIDED
    return causes[0]


MOST_TRIED = 4
"""Nodes of one experiment: with more it would tell nothing about each."""


def experiment(nodes: Sequence[str]) -> Experiment | None:
    """The two runs that tell bad nodes from bad code; None where no node is named, or too many are."""
    if not 0 < len(nodes) <= MOST_TRIED:
        return None
    names = shlex.quote(",".join(nodes))
    said = " and ".join(nodes)
    what = "the node" if len(nodes) == 1 else "these nodes and what is between them"
    return Experiment(
        (f"sbatch --exclude={names} the-same-job.sh", f"sbatch --nodelist={names} a-job-known-to-work.sh"),
        (
            f"the same job hangs without {said}: look at the code",
            f"a job known to work hangs on {said}: look at {what}",
            "neither hangs: both together, or bad luck; run both again",
        ),
    )


class Rate(NamedTuple):
    """Of all entities of one kind: in how many jobs they took part, each counted, and in how many they were named."""

    named: int
    jobs: int

    def without(self, named: int, jobs: int) -> Rate:
        return Rate(max(0, self.named - named), max(0, self.jobs - jobs))


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """One entity beside all others of its kind, over independent jobs. `cluster` is all others' rate, None where it is
    not known; `others` says that the job that is asked about is not counted."""

    kind: str
    name: str
    named: int
    jobs: int
    cluster: Rate | None = None
    others: bool = False

    @property
    def says(self) -> str:
        """In one line: its own rate beside everybody's."""
        other = " other" if self.others else ""
        if not self.jobs:
            return f"{self.name} is in no{other} job that is known here"
        jobs = f"its {self.jobs:,}{other} job{'' if self.jobs == 1 else 's'}"
        said = f"{self.name} {_WAS.get(self.kind, 'was named')} in {self.named:,} of {jobs}"
        return said + self._beside()

    def _beside(self) -> str:
        if self.cluster is None or not self.cluster.jobs:
            return ""
        if not self.cluster.named:
            return f"; no other {_CALLED.get(self.kind, self.kind)} was, in {self.cluster.jobs:,}"
        one_in = max(1, round(self.cluster.jobs / self.cluster.named))
        whose = "the cluster's rate" if self.kind == "node" else f"that of all {_ALL.get(self.kind, self.kind + 's')}"
        return f"; {whose} is 1 in {one_in:,}"


_WAS = {
    "node": "was the culprit",
    "gpu": "was the culprit's GPU",
    "nic": "was an end of the broken link",
    "link": "was the broken link",
    "leaf": "had the culprit below it",
    "commit": "hung",
    "image": "hung",
}
_CALLED = {"gpu": "GPU", "nic": "port", "leaf": "leaf switch"}
_ALL = {"gpu": "GPUs", "nic": "ports", "leaf": "leaf switches"}


def track_record(key: Key, past: Sequence[JobRecord], cluster: Rate | None, without: str = "") -> TrackRecord:
    """Of an entity, in all jobs of `past` but the one named `without`."""
    kind, name = key
    jobs = {job.name for job in past if name in job.took_part.get(kind, ())}
    named = {job.name for job in past if _is_named(job, kind, name)}
    mine = {without}
    beside = None if cluster is None else cluster.without(len(named), len(jobs | named))
    return TrackRecord(kind, name, len(named - mine), len((jobs | named) - mine), beside, others=bool(without))


def _is_named(job: JobRecord, kind: str, name: str) -> bool:
    if kind in CODE:
        return job.hung_at is not None and name in job.took_part.get(kind, ())
    return (kind, name) in job.accused and not (kind == "node" and name in job.ends)


def rates(past: Sequence[JobRecord]) -> dict[str, Rate]:
    """By kind, of all entities together."""
    jobs: dict[str, set[tuple[str, str]]] = defaultdict(set)
    named: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for job in past:
        for kind, names in job.took_part.items():
            jobs[kind].update((job.name, name) for name in names)
            if kind in CODE and job.hung_at is not None:
                named[kind].update((job.name, name) for name in names)
        for kind, name in job.accused:
            jobs[kind].add((job.name, name))
            if _is_named(job, kind, name):
                named[kind].add((job.name, name))
    return {kind: Rate(len(named[kind]), len(pairs)) for kind, pairs in jobs.items()}


def _named(job: JobRecord, kind: str) -> set[str]:
    return {name for each, name in job.accused if each == kind}


def _outage(job: JobRecord, others: Sequence[JobRecord]) -> list[Row]:
    if job.hung_at is None:
        return []
    near = [each for each in others if each.hung_at is not None and abs(each.hung_at - job.hung_at) <= OUTAGE_S]
    together = {each.name for each in near}
    is_outage = len(together) + 1 >= OUTAGE_JOBS
    mounts = [name for name in job.took_part.get("mount", ()) if all(name in _mounts(each) for each in near)]
    rows = []
    if mounts and is_outage:
        rows.append(Row("same mount", f"{len(together)} other jobs, all with {mounts[0]}", "storage", holds=True))
    counted = f"{len(together)} other jobs hung within {OUTAGE_S / 60:g} minutes"
    rows.append(Row("everything in one minute", counted, "outage", is_outage))
    return rows


def _mounts(job: JobRecord) -> frozenset[str]:
    return job.took_part.get("mount", frozenset())


def _is_often(named: int, ran: int, cluster: Rate | None) -> bool:
    """Whether it was named in a fifth of its jobs, and far more often than all of its kind are."""
    often = bool(named) and named * LEAST_SHARE >= ran
    usual = 0.0 if cluster is None or not cluster.jobs else cluster.named / cluster.jobs
    return often and named >= LEAST_SHARE * usual * ran


_PLACES = (
    ("node", "same node, other jobs", "hardware"),
    ("gpu", "same GPU", "hardware"),
    ("nic", "same port", "network"),
)


def _machine(job: JobRecord, others: Sequence[JobRecord], rate: Callable[[str], Rate | None]) -> list[Row]:
    rows = []
    for kind, what, speaks_for in _PLACES:
        for place in sorted(_named(job, kind)):
            with_it = [each for each in others if place in _named(each, kind)]
            named = {each.name for each in with_it}
            ran = named | {each.name for each in others if place in each.took_part.get(kind, ())}
            counted = f"{place} was named in {len(named)} of its {len(ran)} other job{'' if len(ran) == 1 else 's'}"
            is_other = len(named) > 1 or job.code not in {each.code for each in with_it}
            holds = is_other and _is_often(len(named), len(ran), rate(kind))
            rows.append(Row(what, counted, speaks_for, holds))
    return rows


def _network(job: JobRecord, others: Sequence[JobRecord], rate: Callable[[str], Rate | None]) -> list[Row]:
    rows = []
    for kind, speaks in (("link", "same pair"), ("leaf", "same leaf switch")):
        for name in sorted(_named(job, kind)):
            named = [each for each in others if name in _named(each, kind)]
            jobs = {each.name for each in named}
            ran = jobs | {each.name for each in others if name in each.took_part.get(kind, ())}
            holds = len(jobs) >= 2 and _is_often(len(jobs), len(ran), rate(kind))
            if kind == "leaf":
                holds = holds and _are_spread([job, *named])
            nodes = {node for each in (*named, job) for node in _named(each, "node")}
            counted = f"{name} in {len(jobs)} of its {len(ran)} other jobs, with {len(nodes)} nodes named"
            rows.append(Row(speaks, counted, "network", holds))
    return rows


def _are_spread(hung: Sequence[JobRecord]) -> bool:
    """Whether hangs below one switch name its nodes in turn: where one node is in half of them, it is the node."""
    counts = Counter(node for job in hung for node in _named(job, "node"))
    return len(counts) > 2 and 2 * max(counts.values()) <= len(hung)


def _may_be_one_program(one: JobRecord, other: JobRecord) -> bool:
    """Where of one of them the program is not known, its fingerprint alone says it."""
    return one.code == other.code or not one.code or not other.code


def _ran_on(job: JobRecord, proposed: Collection[Key]) -> bool:
    return any(name in job.took_part.get(kind, ()) for kind, name in proposed if kind not in CODE)


def _is_doubted(job: JobRecord, others: Sequence[JobRecord], rate: Callable[[str], Rate | None]) -> bool:
    """Whether a machine that the hang names was named in other jobs far more often than usual, if not often enough to
    speak for itself: then it may be that, and nothing speaks for the code alone."""
    for kind, _, _ in _PLACES:
        for place in _named(job, kind):
            named = {each.name for each in others if place in _named(each, kind)}
            ran = named | {each.name for each in others if place in each.took_part.get(kind, ())}
            usual = rate(kind)
            share = 0.0 if usual is None or not usual.jobs else usual.named / usual.jobs
            if len(named) >= 2 and len(named) >= LEAST_SHARE * share * len(ran):
                return True
    return False


def _code(
    job: JobRecord, others: Sequence[JobRecord], proposed: Collection[Key], *, doubted: bool = False
) -> list[Row]:
    """What hangs in the same place of the same program, on other nodes. What a machine did is no such place; and a job
    that ran on a machine which is proposed may have hung by that, whatever its verdict names."""
    if not job.fingerprint:
        return []
    same = [each for each in others if each.fingerprint == job.fingerprint and _may_be_one_program(each, job)]
    if not job.about_code or not all(each.about_code for each in same):
        return []
    mine = _named(job, "node")
    elsewhere = {each.name for each in same if not _named(each, "node") & mine and not _ran_on(each, proposed)}
    counted = f"the same hang in {len({each.name for each in same})} other jobs, in {len(elsewhere)} on other nodes"
    holds = len(elsewhere) >= 2 and not _ran_on(job, proposed) and not doubted
    return [Row("same code, other nodes", counted, "code", holds)]
