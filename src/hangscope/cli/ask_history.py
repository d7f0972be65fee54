"""`diagnose --server`: what a server remembers of other jobs, added to a verdict that stands without it.

The question is what the verdict names (nodes, GPUs, ports, link), its fingerprint, its job and when it was; no evidence
is sent. The answer is a stranger's: only numbers and known words are taken from it, sentences and commands are made
here. Whatever the server does, the verdict comes out, a few seconds later at most.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hangscope.diagnosis.retry import retry_with_history
from hangscope.diagnosis.verdict import HISTORY_GAP, Diagnosis, History, HistoryRow, SeenBefore, TrackRecord
from hangscope.errors import HangscopeError
from hangscope.model import Gap, Job

if TYPE_CHECKING:
    from hangscope.push.server_client import ServerClient

DEADLINE_S = 5.0
SCHEMA = "hangscope.history/1"
ANSWERS = ("hardware", "code", "network", "storage", "outage", "not decided")
MOST = 64
_LARGEST = 1 << 40


def with_history(verdict: Diagnosis, job: Job, client: ServerClient, deadline_s: float = DEADLINE_S) -> Diagnosis:
    """The verdict with what the server says; with a gap that says why not, where it does not."""
    from hangscope.verdict_words import is_trouble

    if not is_trouble(str(verdict.outcome)):
        return verdict
    found: list[History | str] = []

    def ask() -> None:
        try:
            found.append(_history(client.history(_question(verdict, job)), client.url))
        except HangscopeError as error:
            found.append(str(error))
        except Exception as error:  # whatever a stranger's answer leads to, it is not worth a verdict
            found.append(f"{client.url}: its answer cannot be used ({type(error).__name__})")

    thread = threading.Thread(target=ask, name="history", daemon=True)
    thread.start()
    thread.join(deadline_s)
    answer = found[0] if found else f"{client.url} did not answer within {deadline_s:g} s"
    if isinstance(answer, History):
        return replace(verdict, history=answer, retry=retry_with_history(verdict, answer))
    return replace(verdict, gaps=(*verdict.gaps, Gap(HISTORY_GAP, answer)))


def _question(verdict: Diagnosis, job: Job) -> dict[str, Any]:
    from hangscope.server.digest.named_entities import accused, fingerprint_of, has_raised

    machines = [entity for entity, _ in accused(verdict, {}) if entity.kind != "rank"] if verdict.is_likely else []
    named = [{"kind": entity.kind, "name": entity.name} for entity in machines]
    found = fingerprint_of(verdict, job)
    question: dict[str, Any] = {
        "accused": named[:MOST],
        "fingerprint": found.value,
        "parts": {name: part for name, part in found.explanation.items() if part},
        "kind": str(verdict.kind),
        "raised": has_raised(verdict),
    }
    if job.job_id:
        question["job"] = job.job_id
    if job.captured_at_ns is not None:
        question["happened_at"] = job.captured_at_ns / 1e9
    return question


def _history(answer: Mapping[str, Any], url: str) -> History:
    """The answer, as far as it can be one."""
    from hangscope.server.history.decide import experiment

    if answer.get("schema") != SCHEMA or answer.get("answer") not in ANSWERS:
        raise HangscopeError(f"{url} answers, but not as a hangscope server")
    track_records = tuple(made for each in _items(answer, "track_records") if (made := _track_record(each)) is not None)
    rows = tuple(row for each in _items(answer, "rows") if (row := _row(each)) is not None)
    trial = experiment([each.name for each in track_records if each.kind == "node"])
    return History(
        url,
        track_records,
        str(answer["answer"]),
        rows,
        trial.commands if trial else (),
        trial.outcomes if trial else (),
        _seen_before(answer.get("issue"), url),
    )


def _items(answer: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = answer.get(name)
    return [each for each in found[:MOST] if isinstance(each, dict)] if isinstance(found, list) else []


def _track_record(value: Mapping[str, Any]) -> TrackRecord | None:
    """Counts that cannot be are none at all."""
    from hangscope.server.history.decide import Rate
    from hangscope.server.history.decide import TrackRecord as Counted

    kind = _text(value, "kind", 20)
    name = _text(value, "name", 300)
    named = _count(value, "named")
    jobs = _count(value, "jobs")
    if not kind or not name or named is None or jobs is None or named > jobs:
        return None
    cluster = value.get("cluster")
    cluster_named = _count(cluster, "named") if isinstance(cluster, dict) else None
    cluster_jobs = _count(cluster, "jobs") if isinstance(cluster, dict) else None
    beside = None
    if cluster_named is not None and cluster_jobs is not None and cluster_named <= cluster_jobs:
        beside = Rate(cluster_named, cluster_jobs)
    says = Counted(kind, name, named, jobs, beside, others=True).says
    return TrackRecord(kind, name, named, jobs, beside.named if beside else None, beside.jobs if beside else None, says)


def _row(value: Mapping[str, Any]) -> HistoryRow | None:
    what = _text(value, "what", 80)
    counted = _text(value, "counted", 300)
    speaks_for = value.get("speaks_for")
    holds = value.get("holds")
    if not what or speaks_for not in ANSWERS or not isinstance(holds, bool):
        return None
    return HistoryRow(what, counted, str(speaks_for), holds)


def _seen_before(value: object, url: str) -> SeenBefore | None:
    if not isinstance(value, dict):
        return None
    number = _count(value, "id")
    incidents = _count(value, "incidents")
    if number is None or incidents is None:
        return None
    since = value.get("first_seen_at")
    if isinstance(since, bool) or not isinstance(since, (int, float)) or not 0 < since < 1 << 33:
        since = None
    return SeenBefore(number, incidents, since, f"{url}/issues/{number}")


def _text(value: Mapping[str, Any], name: str, most: int) -> str:
    from hangscope.server.intake import plain_values as plain

    return plain.text(value, name, most)


def _count(value: Mapping[str, Any], name: str) -> int | None:
    from hangscope.server.intake import plain_values as plain

    return plain.whole(value, name, _LARGEST)
