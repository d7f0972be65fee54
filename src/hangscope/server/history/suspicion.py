"""How likely it is that a machine, and not chance or the code, is behind the hangs that it took part in. No I/O.

Every job in which an entity took part counts, healthy ones too. There are two stories about those jobs. In one, nothing
is wrong with the entity: each program hangs at a rate of its own, which its other jobs show as far as they go, and a
hang names any of its machines alike. In the other, the entity hangs its jobs at some rate, from some job on, and the
verdict then names it unless it is wrong. The odds are how much better the second story tells what was seen, times how
likely it was beforehand, over all other stories about the same hangs: a commit and a node that explain the same three
hangs equally well share their odds, and neither is proposed.

* A job counts half after 14 days. Attempts of one job are one job.
* At least two independent jobs must speak against an entity before it is proposed.
* One incident proposes one entity: what the strongest suspect explains is not held against another.
* Many jobs that hang within minutes are an outage, which accuses nobody.
* Where a tenth of the cluster would be proposed, nothing is: that is no tenth of bad nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hangscope.server.history.own_rate import CodeRates, Evidence, log_ratio_of_code, log_ratio_of_machine
from hangscope.server.history.place_names import is_past

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
    "leaf": 5e-4,
    "link": 1e-4,
    "commit": 1e-2,
    "image": 1e-2,
    "mount": 1e-3,
}
"""How likely each one is bad before anything is known of it. New code is at fault more often than a machine."""
CODE = ("commit", "image")
DOUBT = 0.1
"""How often a verdict names the wrong one, where nothing better is known."""
_LEAST_CHANCE = 1e-4
"""Least chance that an innocent job's hang names a certain entity: no verdict is better than that."""
_MOST_LOG = 50.0
Key = tuple[str, str]
Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Flags = NDArray[np.bool_]


class Suspect(NamedTuple):
    """An entity with its odds, and the counts behind them."""

    kind: str
    name: str
    odds: float
    named: int
    """Independent jobs whose hang names it; of code, that hung with it."""
    jobs: int
    """Independent jobs that it took part in."""
    expected: float
    """How many of them would if it were like all others."""


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
    accused: frozenset[Key] = frozenset()
    """(kind, name) of what the verdict names."""
    fingerprint: str = ""
    doubt: float = DOUBT
    """How likely it is that the verdict names the wrong one."""
    below: Mapping[str, int] | None = None
    """Leaf switch → how many of the job's nodes are below it, where that is known."""
    ends: frozenset[str] = frozenset()
    """Nodes that the verdict names as an end of a link, and not as the culprit."""
    about_code: bool = True
    """Whether the verdict lets the program be at fault, and names a place in it: a lost link or a killed rank does not.
    Where it does not let a machine be at fault, `accused` is empty."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What history says. `proposed` are those of `suspects` that somebody should look at, one an incident."""

    suspects: tuple[Suspect, ...]
    proposed: tuple[Suspect, ...]
    braked: bool = False
    outages: tuple[tuple[float, int], ...] = ()
    """(when, how many jobs) that hung together."""


def suspects(jobs: Sequence[JobRecord], now: float, *, every_name: bool = True) -> Suspicion:
    """Everybody who was named, by odds; without `every_name` only who was named by enough jobs to be proposed."""
    return Past(jobs).suspects(now, every_name=every_name)


class Past:
    """All jobs, in columns: what was known at any moment can be asked of it without building it again."""

    def __init__(self, jobs: Sequence[JobRecord]) -> None:
        self._jobs = sorted(_independent(jobs), key=lambda job: job.at)
        self._at = np.array([job.at for job in self._jobs])
        self._hung_at = np.array([np.inf if job.hung_at is None else job.hung_at for job in self._jobs])
        codes = {code: number for number, code in enumerate(dict.fromkeys(job.code for job in self._jobs))}
        self._code = np.array([codes[job.code] for job in self._jobs], dtype=np.intp)
        self._codes = len(codes)
        self._nodes = len({name for job in self._jobs for name in job.took_part.get("node", ())})
        self._naming = self._who_is_named()
        self._of_entity = self._who_took_part()
        self._columns: dict[Key, _Column] = {}
        self._names_any = np.array([bool(job.accused) for job in self._jobs], dtype=bool)
        self._names_kind = self._which_name_a_kind()

    def suspects(self, now: float, *, every_name: bool = True) -> Suspicion:
        """What was known at the moment `now`."""
        outages, within = _outages(self._hung_at[self._hung_at <= now], self._hung_at)
        moment = _Moment(self, now, within)
        proposed, found = moment.propose(every_name=every_name)
        machines = [each for each in proposed if each.kind not in CODE and not is_past(each.name)]
        braked = len(machines) > max(1.0, BRAKE_SHARE * self._nodes)
        kept = [each for each in proposed if each.kind in CODE] if braked else proposed
        ordered = (*proposed, *sorted(found, key=lambda each: (-each.odds, each.kind, each.name)))
        return Suspicion(ordered, tuple(kept), braked, outages)

    def _which_name_a_kind(self) -> dict[str, Flags]:
        """Kind → of each job, whether its verdict names anything of that kind."""
        found: dict[str, Flags] = {}
        for row, job in enumerate(self._jobs):
            for kind, _ in job.accused:
                found.setdefault(kind, np.zeros(len(self._jobs), dtype=bool))[row] = True
        return found

    def _who_is_named(self) -> dict[Key, Rows]:
        """Entity → the jobs whose hang may be held against it: those that name it, and of code, all that hung."""
        found: dict[Key, list[int]] = defaultdict(list)
        for row, job in enumerate(self._jobs):
            if job.hung_at is None:
                continue
            code = {(kind, name) for kind in CODE for name in job.took_part.get(kind, ())}
            for key in code.union(job.accused):
                found[key].append(row)
        return {key: np.array(rows, dtype=np.intp) for key, rows in found.items()}

    def _who_took_part(self) -> dict[Key, Rows]:
        """The jobs of each entity that was ever named."""
        by_kind: dict[str, set[str]] = defaultdict(set)
        for kind, name in self._naming:
            by_kind[kind].add(name)
        found: dict[Key, list[int]] = defaultdict(list)
        for row, job in enumerate(self._jobs):
            for kind, names in by_kind.items():
                for name in names.intersection(job.took_part.get(kind, ())):
                    found[kind, name].append(row)
        return {key: np.array(rows, dtype=np.intp) for key, rows in found.items()}

    def column(self, key: Key) -> _Column:
        """What an entity's jobs say of it, whenever they said so."""
        if key not in self._columns:
            rows = self._of_entity.get(key, np.empty(0, dtype=np.intp))
            few = [self._jobs[row] for row in rows]
            named = np.isin(rows, self._naming[key])
            share = np.array([_share(key, job) for job in few]) if key[0] not in CODE else np.ones(len(few))
            doubt = np.array([job.doubt for job in few])
            says = self._names_kind.get(key[0], np.zeros(len(self._jobs), dtype=bool))[rows]
            self._columns[key] = _Column(rows, named, share, doubt, says)
        return self._columns[key]


class _Column(NamedTuple):
    rows: Rows
    named: Flags
    share: Floats
    doubt: Floats
    says: Flags
    """Whether the verdict names anything of the entity's kind."""


class _Judged(NamedTuple):
    suspect: Suspect
    log: float
    hangs: frozenset[int]
    """The jobs that are held against it."""


class _Moment:
    """The past as it was known at one moment, without the jobs of outages and those that somebody explains."""

    def __init__(self, past: Past, now: float, within: Flags) -> None:
        self._past = past
        self._hung = past._hung_at <= now
        self._left = (past._at <= now) & ~within
        self._weight = 0.5 ** (np.maximum(0.0, now - past._at) / HALF_LIFE_S)
        self._count_rates()

    def _count_rates(self) -> None:
        past = self._past
        weight = self._weight * self._left
        jobs = np.bincount(past._code, weight, minlength=past._codes)
        hangs = np.bincount(past._code, weight * self._hung, minlength=past._codes)
        rates = CodeRates(hangs.astype(np.float64), jobs.astype(np.float64))
        self._rate = rates.mean
        self._log_weight = {is_code: rates.log_weight(of_code=is_code) for is_code in (False, True)}
        hung = self._hung & self._left
        self._hangs = int(hung.sum())
        self._said = int((hung & past._names_any).sum())
        self._said_kind = {kind: int((hung & names).sum()) for kind, names in past._names_kind.items()}

    def propose(self, *, every_name: bool) -> tuple[list[Suspect], list[Suspect]]:
        """The strongest suspect, then the strongest of what it does not explain, and so on; and who is left."""
        proposed: list[Suspect] = []
        least = 1 if every_name else LEAST_JOBS
        keys = [key for key in self._past._naming if self._naming_now(key) >= least]
        judged = {key: self._judge(key) for key in keys}
        while True:
            left = _against_others([each for each in judged.values() if each is not None])
            best = _strongest(left)
            if best is None:
                return proposed, [each.suspect for each in left]
            proposed.append(best.suspect)
            del judged[best.suspect.kind, best.suspect.name]
            self._left[list(best.hangs)] = False
            self._count_rates()
            touched = [key for key, each in judged.items() if each is not None and each.hangs & best.hangs]
            judged |= {key: self._judge(key) for key in touched}

    def _naming_now(self, key: Key) -> int:
        rows = self._past._naming[key]
        return int((self._hung[rows] & self._left[rows]).sum())

    def _judge(self, key: Key) -> _Judged | None:
        """The odds against an entity, by itself; None where nothing is left against it."""
        past = self._past
        column = past.column(key)
        there = self._left[column.rows]
        rows = column.rows[there]
        hung = self._hung[rows]
        named = column.named[there] & hung
        count = int(named.sum())
        if not count:
            return None
        is_code = key[0] in CODE
        share = column.share[there]
        says = self._says(key[0], count)
        chance = np.ones(len(rows)) if is_code else np.maximum(_LEAST_CHANCE, says * share)
        seen = _Seen(named[hung], column.says[there][hung], share[hung], column.doubt[there][hung])
        evidence = Evidence(self._weight[rows], hung, past._code[rows], self._ratio(seen, says))
        log_ratio = log_ratio_of_code if is_code else log_ratio_of_machine
        log = log_ratio(evidence, self._log_weight[is_code]) + np.log(PRIOR.get(key[0], 1e-4))
        expected = float((self._rate[past._code[rows]] * chance).sum())
        odds = float(np.exp(min(_MOST_LOG, log)))
        hangs = frozenset(int(row) for row in rows[named])
        return _Judged(Suspect(*key, odds, count, len(rows), expected), float(log), hangs)

    def _says(self, kind: str, own: int) -> float:
        """How often a hang's verdict names anything of this kind, where the entity itself is not what it names."""
        return (max(0, self._said_kind.get(kind, 0) - own) + 0.5) / (max(0, self._hangs - own) + 1.0)

    def _ratio(self, seen: _Seen, says: float) -> Floats:
        """By hang: how likely its verdict is if the entity hung the job, over how likely if the job hung otherwise."""
        speaks = (self._said + 1.0) / (self._hangs + 2.0)
        right = np.where(
            seen.named,
            speaks * (1.0 - seen.doubt + seen.doubt * seen.share),
            np.where(seen.says, speaks * seen.doubt * (1.0 - seen.share), 1.0 - speaks),
        )
        otherwise = np.where(seen.named, says * seen.share, np.where(seen.says, says * (1.0 - seen.share), 1.0 - says))
        return np.maximum(right, 1e-3) / np.maximum(otherwise, _LEAST_CHANCE)


class _Seen(NamedTuple):
    """Of each hang: whether it names the entity, or anything of its kind, and how likely the former is by chance."""

    named: Flags
    says: Flags
    share: Floats
    doubt: Floats


def _strongest(judged: Sequence[_Judged]) -> _Judged | None:
    """Who is proposed; None where nobody is suspect enough."""
    strong = [each for each in judged if each.suspect.odds >= PROPOSED_ODDS and _is_enough(each.suspect)]
    order = [(each.suspect.odds, each.log, each.suspect.kind, each.suspect.name) for each in strong]
    return strong[order.index(max(order))] if strong else None


def _is_enough(suspect: Suspect) -> bool:
    return suspect.named >= LEAST_JOBS and suspect.named > suspect.expected


def _against_others(judged: Sequence[_Judged]) -> list[_Judged]:
    """Each with its odds over all other stories about the same hangs: chance, and whoever else explains half of them.
    A machine and what it is part of are one story."""
    by_hang: dict[int, list[int]] = defaultdict(list)
    for number, each in enumerate(judged):
        for hang in each.hangs:
            by_hang[hang].append(number)
    found = []
    for number, each in enumerate(judged):
        shared: dict[int, int] = defaultdict(int)
        for hang in each.hangs:
            for other in by_hang[hang]:
                shared[other] += 1
        rivals = [
            judged[other].suspect.odds
            for other, count in shared.items()
            if other != number and 2 * count >= len(each.hangs) and _are_rivals(each.suspect, judged[other].suspect)
        ]
        odds = each.suspect.odds / (1.0 + sum(rivals))
        found.append(each._replace(suspect=each.suspect._replace(odds=odds)))
    return found


def _are_rivals(one: Suspect, other: Suspect) -> bool:
    """Whether the two exclude each other: two of one kind, or code and machine."""
    return one.kind == other.kind or (one.kind in CODE) != (other.kind in CODE)


def _share(key: Key, job: JobRecord) -> float:
    """How likely a hang of the job that can name any of its entities of this kind names a certain one."""
    kind, name = key
    named = max(1, sum(each == kind for each, _ in job.accused))
    nodes = len(job.took_part.get("node", ()))
    if kind == "link":
        return min(1.0, named / max(1, nodes * (nodes - 1)))
    if kind == "leaf" and job.below:
        return min(1.0, job.below.get(name, 1) / max(1, sum(job.below.values())))
    return min(1.0, named / max(1, len(job.took_part.get(kind, ()))))


def _independent(jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """The attempts of each job as one: it hung if any of them did, and names what any of them names."""
    by_name: dict[str, list[JobRecord]] = defaultdict(list)
    for job in jobs:
        by_name[job.name].append(job)
    return [attempts[0] if len(attempts) == 1 else _joined(attempts) for attempts in by_name.values()]


def _joined(attempts: Sequence[JobRecord]) -> JobRecord:
    ordered = sorted(attempts, key=lambda job: job.at)
    kinds = {kind for job in ordered for kind in job.took_part}
    hung = [job for job in ordered if job.hung_at is not None]
    first = hung[0] if hung else ordered[0]
    return JobRecord(
        first.name,
        ordered[0].at,
        first.code,
        {kind: frozenset().union(*(job.took_part.get(kind, frozenset()) for job in ordered)) for kind in kinds},
        first.hung_at,
        frozenset().union(*(job.accused for job in ordered)),
        first.fingerprint,
        first.doubt,
        first.below,
        first.ends,
        first.about_code,
    )


def _outages(hung: Floats, hung_at: Floats) -> tuple[tuple[tuple[float, int], ...], Flags]:
    """Moments at which many jobs hung together, and which jobs those are."""
    times = np.sort(hung)
    found: list[tuple[float, int]] = []
    within = np.zeros(len(hung_at), dtype=bool)
    if len(times) < OUTAGE_JOBS:
        return (), within
    last = np.searchsorted(times, times + OUTAGE_S, side="right") - 1
    for start, end in enumerate(last):
        together = int(end) - start + 1
        if together < OUTAGE_JOBS:
            continue
        within |= (hung_at >= times[start]) & (hung_at <= times[end])
        if found and times[start] <= found[-1][0] + OUTAGE_S:
            found[-1] = (found[-1][0], max(found[-1][1], together))
        else:
            found.append((float(times[start]), together))
    return tuple(found), within
