"""How likely it is that a machine, and not chance or the code, is behind the hangs that name it. No I/O.

Every job in which an entity took part counts, healthy ones too. For each such job there is a chance that its hang names
the entity although nothing is wrong with it: how often jobs of the same code hang otherwise, divided among all that the
hang could have named. The odds compare what was seen with that chance, and with an entity that hangs its jobs at a rate
of its own. Older jobs count less (half after 14 days), and an entity that was fine before it broke is judged from then
on, too.

* Attempts of one job are one job: at least two independent ones must name an entity before it is proposed.
* One incident proposes one entity: what the strongest suspect explains is not held against another.
* Many jobs that hang within minutes are an outage, which accuses nobody.
* Where a tenth of the cluster would be proposed, nothing is: that is no tenth of bad nodes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

HALF_LIFE_S = 14 * 86400.0
"""After so long a job counts half."""
LEAST_JOBS = 2
PROPOSED_ODDS = 9.0
"""Nine to one: one proposal in ten may be wrong where the model is right."""
OUTAGE_S = 120.0
OUTAGE_JOBS = 5
BRAKE_SHARE = 0.1
PRIOR: Mapping[str, float] = {
    "node": 1e-3,
    "gpu": 2e-4,
    "nic": 2e-4,
    "leaf": 1e-3,
    "link": 1e-4,
    "commit": 4e-3,
    "image": 2e-3,
    "mount": 1e-3,
}
"""How likely each one is bad before anything is known of it. New code is at fault far more often than a machine."""
CODE = ("commit", "image")
_FLOOR = 1e-5
"""Least chance that a job's hang names an innocent entity: no verdict is better than that."""
_NO_JOBS = 4.0
"""Jobs of a code are believed to hang as all others do, with the weight of so many jobs."""


class Suspect(NamedTuple):
    """An entity with its odds, and the counts behind them."""

    kind: str
    name: str
    odds: float
    named: int
    """Independent jobs whose hang names it."""
    jobs: int
    """Independent jobs that it took part in."""
    expected: float
    """In how many of them a hang would name it if it were like all others."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job of the past: what it ran on, whether it hung, and what its verdict names. `name` is the same for all
    attempts; `code` is the same for jobs that run the same program."""

    name: str
    at: float
    code: str
    took_part: Mapping[str, frozenset[str]]
    """Kind → the entities of that kind."""
    hung_at: float | None = None
    accused: frozenset[tuple[str, str]] = frozenset()
    """(kind, name) of what the verdict names."""
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What history says. `proposed` are those of `suspects` that somebody should look at, one an incident."""

    suspects: tuple[Suspect, ...]
    proposed: tuple[Suspect, ...]
    braked: bool = False
    outages: tuple[tuple[float, int], ...] = ()
    """(when, how many jobs) that hung together."""


@dataclass(slots=True)
class _Seen:
    """What one independent job says of one entity."""

    at: float
    weight: float
    chance: float
    named: bool


def suspects(jobs: Sequence[JobRecord], now: float, *, every_name: bool = True) -> Suspicion:
    """Everybody who was named, by odds; without `every_name` only who was named by enough jobs to be proposed."""
    outages, within = _outages(jobs)
    past = _Past([job for job in jobs if job.name not in within], now)
    proposed, found, explained = _propose(past)
    if every_name:
        others = past.named - {(each.kind, each.name) for each in (*found, *proposed)}
        found += [each[0] for key in others if (each := past.judge(*key, explained)) is not None]
    nodes = {name for job in jobs for name in job.took_part.get("node", ())}
    machines = [each for each in proposed if each.kind not in CODE]
    braked = len(machines) > max(1.0, BRAKE_SHARE * len(nodes))
    kept = [each for each in proposed if each.kind in CODE] if braked else proposed
    ordered = (*proposed, *sorted(found, key=lambda each: (-each.odds, each.kind, each.name)))
    return Suspicion(ordered, tuple(kept), braked, outages)


def _propose(past: _Past) -> tuple[list[Suspect], list[Suspect], set[str]]:
    """The strongest suspect, then the strongest of what it does not explain, and so on; who is left; and the jobs that
    those who are proposed explain."""
    proposed: list[Suspect] = []
    explained: set[str] = set()
    candidates = past.often_named()
    while judged := [each for key in candidates if (each := past.judge(*key, explained)) is not None]:
        best, names = max(judged, key=lambda each: (each[0].odds, -len(each[0].name), each[0].name))
        if best.odds < PROPOSED_ODDS or best.named < LEAST_JOBS:
            return proposed, [each for each, _ in judged], explained
        proposed.append(best)
        candidates.discard((best.kind, best.name))
        explained |= names
    return proposed, [], explained


def _outages(jobs: Sequence[JobRecord]) -> tuple[tuple[tuple[float, int], ...], set[str]]:
    """Moments at which many jobs hung together, and the names of those jobs."""
    hung = sorted((job.hung_at, job.name) for job in jobs if job.hung_at is not None)
    found: list[tuple[float, int]] = []
    within: set[str] = set()
    start = 0
    for end in range(len(hung)):
        while hung[end][0] - hung[start][0] > OUTAGE_S:
            start += 1
        together = {name for _, name in hung[start : end + 1]}
        if len(together) >= OUTAGE_JOBS:
            if not found or hung[start][0] > found[-1][0] + OUTAGE_S:
                found.append((hung[start][0], len(together)))
            else:
                found[-1] = (found[-1][0], max(found[-1][1], len(together)))
            within |= together
    return tuple(found), within


class _Past:
    """The jobs, by what took part in them and by their code."""

    def __init__(self, jobs: Sequence[JobRecord], now: float) -> None:
        self._now = now
        self._of_entity: dict[tuple[str, str], list[tuple[JobRecord, float]]] = defaultdict(list)
        self._naming: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._code_jobs: dict[str, float] = defaultdict(float)
        self._code_hangs: dict[str, float] = defaultdict(float)
        weights = [self._weight(job.at) for job in jobs]
        for job, weight in zip(jobs, weights, strict=True):
            for key in self._names(job):
                self._naming[key].add(job.name)
            self._code_jobs[job.code] += weight
            self._code_hangs[job.code] += weight * (job.hung_at is not None)
        by_kind: dict[str, set[str]] = defaultdict(set)
        for kind, name in self.named:
            by_kind[kind].add(name)
        for job, weight in zip(jobs, weights, strict=True):
            for kind, named in by_kind.items():
                for name in job.took_part.get(kind, frozenset()) & named:
                    self._of_entity[kind, name].append((job, weight))
        self._jobs = sum(self._code_jobs.values())
        self._hangs = sum(self._code_hangs.values())

    @property
    def named(self) -> set[tuple[str, str]]:
        return set(self._naming)

    def often_named(self) -> set[tuple[str, str]]:
        """Those that enough independent jobs name to be proposed."""
        return {key for key, jobs in self._naming.items() if len(jobs) >= LEAST_JOBS}

    @staticmethod
    def _names(job: JobRecord) -> set[tuple[str, str]]:
        """What a job's hang may be held against: what its verdict names, and the code that it ran."""
        if job.hung_at is None:
            return set()
        code = {(kind, name) for kind in CODE for name in job.took_part.get(kind, ())}
        return set(job.accused) | code

    def _weight(self, at: float) -> float:
        return float(0.5 ** (max(0.0, self._now - at) / HALF_LIFE_S))

    def judge(self, kind: str, name: str, explained: set[str]) -> tuple[Suspect, set[str]] | None:
        """The suspect with the jobs that name it; None where nothing is left against it."""
        seen = self._seen(kind, name, explained)
        names = {job for job, each in seen.items() if each.named}
        if not names:
            return None
        ordered = sorted(seen.values(), key=lambda each: each.at)
        starts = [0, *(at for at, each in enumerate(ordered) if each.named)]
        windows = [_log_odds(ordered[start:]) for start in dict.fromkeys(starts)]
        # Whoever may choose where to begin finds a run of bad luck more easily: the choice costs what it gains.
        best = max([windows[0], *(each - math.log(len(windows)) for each in windows[1:])])
        odds = math.exp(min(50.0, best + math.log(PRIOR.get(kind, 1e-4)))) if best > -math.inf else 0.0
        expected = sum(each.chance for each in ordered)
        return Suspect(kind, name, odds, len(names), len(ordered), expected), names

    def _seen(self, kind: str, name: str, explained: set[str]) -> dict[str, _Seen]:
        """By independent job. A job that another suspect explains is one that this one did not hang."""
        found: dict[str, _Seen] = {}
        mine = self._of_entity.get((kind, name), [])
        rates = self._rates(mine, is_code=kind in CODE)
        naming = self._naming[kind, name] - explained
        for job, weight in mine:
            accuses = job.name in naming and (kind, name) in self._names(job)
            share = 1.0 if kind in CODE else _share(kind, job)
            chance = min(0.9, max(_FLOOR, rates[job.code] * share))
            seen = found.setdefault(job.name, _Seen(job.at, weight, chance, named=False))
            seen.named = seen.named or accuses
            seen.at = min(seen.at, job.at)
            seen.weight = max(seen.weight, weight)
        return found

    def _rates(self, mine: Sequence[tuple[JobRecord, float]], *, is_code: bool) -> dict[str, float]:
        """By program: how often its jobs hang in which this entity takes no part. Where those are few, a machine is
        compared with all jobs of the program, its own too; code with all jobs of other programs."""
        hangs: dict[str, float] = defaultdict(float)
        jobs: dict[str, float] = defaultdict(float)
        for job, weight in mine:
            jobs[job.code] += weight
            hangs[job.code] += weight * (job.hung_at is not None)
        own_hangs = sum(hangs.values())
        own_jobs = sum(jobs.values())
        rates = {}
        for code, count in jobs.items():
            without_hangs = self._code_hangs[code] - hangs[code]
            without_jobs = self._code_jobs[code] - count
            others = self._rate_elsewhere(code, own_hangs - hangs[code], own_jobs - count)
            like = others
            if not is_code:
                like = (self._code_hangs[code] + _NO_JOBS * others) / (self._code_jobs[code] + _NO_JOBS)
            rates[code] = (without_hangs + _NO_JOBS * like) / (without_jobs + _NO_JOBS)
        return rates

    def _rate_elsewhere(self, code: str, less_hangs: float, less_jobs: float) -> float:
        """How often jobs of other programs hang, without those of the entity itself."""
        hangs = self._hangs - self._code_hangs[code] - less_hangs
        jobs = self._jobs - self._code_jobs[code] - less_jobs
        return (max(0.0, hangs) + 0.1) / (max(0.0, jobs) + 2.0)


def _share(kind: str, job: JobRecord) -> float:
    """How likely a hang of the job that can name any of its entities of this kind names a certain one."""
    if kind == "link":
        nodes = len(job.took_part.get("node", ()))
        return 1.0 / max(1, nodes * (nodes - 1))
    return 1.0 / max(1, len(job.took_part.get(kind, ())))


def _log_odds(seen: Sequence[_Seen]) -> float:
    """Of a rate of its own, any of which is as likely, against the chance of each job. Who is named less often than by
    chance is no suspect."""
    if sum(each.weight * (each.named - each.chance) for each in seen) <= 0:
        return -math.inf
    named = sum(each.weight for each in seen if each.named)
    not_named = sum(each.weight for each in seen if not each.named)
    own = math.lgamma(named + 1) + math.lgamma(not_named + 1) - math.lgamma(named + not_named + 2)
    by_chance = sum(each.weight * math.log(each.chance if each.named else 1 - each.chance) for each in seen)
    return own - by_chance
