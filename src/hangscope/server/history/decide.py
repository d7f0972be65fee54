"""Machine, code, network, storage or outage: the table that decides, with its counts, and the experiment that would.

Nothing is done by itself: the commands are printed for whoever may run them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hangscope.server.history.suspicion import OUTAGE_JOBS, OUTAGE_S, JobRecord, Suspect

MINUTE_S = 60.0


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


def decide(job: JobRecord, past: Sequence[JobRecord]) -> Decision:
    """What history says about the hang of one job."""
    others = [each for each in past if each.name != job.name]
    rows = (*_outage(job, others), *_machine(job, others), *_network(job, others), *_code(job, others))
    answer = next((row.speaks_for for row in rows if row.holds), "not decided")
    nodes = sorted(name for kind, name in job.accused if kind == "node")
    return Decision(rows, answer, experiment(nodes[0]) if nodes else None)


def experiment(node: str) -> Experiment:
    """The two runs that tell a bad node from bad code."""
    name = shlex.quote(node)
    return Experiment(
        (f"sbatch --exclude={name} the-same-job.sh", f"sbatch --nodelist={name} a-job-known-to-work.sh"),
        (
            f"the same job hangs without {node}: look at the code",
            f"a job known to work hangs on {node}: look at the node",
            "neither hangs: both together, or bad luck; run both again",
        ),
    )


def sentence(suspect: Suspect, past: Sequence[JobRecord]) -> str:
    """What is said of a suspect in one line: its own rate beside everybody's."""
    hung = {job.name for job in past if any(kind == suspect.kind for kind, _ in job.accused)}
    took_part = sum(len(job.took_part.get(suspect.kind, ())) for job in past)
    rate = f"1 in {max(1, took_part // max(1, len(hung))):,}" if hung else "none"
    return (
        f"{suspect.name} was named in {suspect.named} of its {suspect.jobs} jobs; "
        f"for all of the cluster's {suspect.kind}s it is {rate}"
    )


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


def _machine(job: JobRecord, others: Sequence[JobRecord]) -> list[Row]:
    rows = []
    for node in sorted(_named(job, "node")):
        ran = {each.name for each in others if node in each.took_part.get("node", ())}
        named = {each.name for each in others if node in _named(each, "node")}
        programs = {each.code for each in others if node in _named(each, "node")}
        counted = f"{node} was named in {len(named)} of its {len(ran)} other jobs"
        holds = bool(named) and len(named) * 5 >= len(ran) and (len(named) > 1 or job.code not in programs)
        rows.append(Row("same node, other jobs", counted, "hardware", holds))
    return rows


def _network(job: JobRecord, others: Sequence[JobRecord]) -> list[Row]:
    rows = []
    for kind, speaks in (("link", "same pair"), ("leaf", "same leaf switch")):
        for name in sorted(_named(job, kind)):
            named = [each for each in others if name in _named(each, kind)]
            nodes = {node for each in (*named, job) for node in _named(each, "node")}
            holds = len(named) >= 2 and (kind == "link" or len(nodes) > 2)
            counted = f"{name} in {len({each.name for each in named})} other jobs, with {len(nodes)} nodes named"
            rows.append(Row(speaks, counted, "network", holds))
    return rows


def _code(job: JobRecord, others: Sequence[JobRecord]) -> list[Row]:
    if not job.fingerprint:
        return []
    same = [each for each in others if each.fingerprint == job.fingerprint]
    mine = _named(job, "node")
    elsewhere = {each.name for each in same if not _named(each, "node") & mine}
    counted = f"the same hang in {len({each.name for each in same})} other jobs, in {len(elsewhere)} on other nodes"
    return [Row("same code, other nodes", counted, "code", len(elsewhere) >= 2)]
