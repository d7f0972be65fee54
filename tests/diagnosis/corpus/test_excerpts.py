"""Verdicts on texts as people post them, end to end: tests/excerpts holds the texts and what an expert would say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frozen import diagnosis
from hangscope.diagnosis.verdict import Diagnosis

EXCERPTS = sorted((Path(__file__).parents[2] / "excerpts").glob("*.txt"))
SHARE = 0.8


def truth(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return value


def verdict(path: Path) -> Diagnosis:
    return diagnosis("excerpts", path.stem)


def words(found: Diagnosis) -> str:
    """Everything that the verdict says, in one text."""
    parts = [found.headline, found.summary, *found.next_steps]
    for finding in (*found.why, *found.evidence):
        parts += [finding.text, *finding.detail]
    for gap in found.gaps:
        parts += [gap.what, gap.why]
    for culprit in found.culprits:
        parts += [culprit.why, culprit.node or ""]
    return "\n".join(parts).lower()


def one_of(value: Any, wanted: Any) -> bool:
    return value in (wanted if isinstance(wanted, list) else [wanted])


def mistakes(path: Path) -> list[str]:
    """What an expert would miss in the verdict, or object to."""
    found, want = verdict(path), truth(path)
    said = words(found)
    wrong = []
    if not one_of(found.outcome, want["outcome"]):
        wrong.append(f"outcome {found.outcome}, not {want['outcome']}")
    if want["hang"] is not None and found.hang != want["hang"]:
        wrong.append(f"hang {found.hang}")
    if not one_of(found.kind, want["kind"]):
        wrong.append(f"kind {found.kind}, not {want['kind']}")
    accused = sorted(culprit.rank for culprit in found.culprits)
    if accused != want["culprits"] and accused not in want.get("accept", []):
        wrong.append(f"culprits {accused}, not {want['culprits']}")
    if want["operation"] is not None and not _names(found, want["operation"], said):
        wrong.append(f"does not name {want['operation']}")
    wrong += [f"does not name {who}" for who in (want["node"], want["peer"]) if who and who.lower() not in said]
    for fact in want["must_mention"]:
        where = found.next_steps[0].lower() if fact == "recorder" and found.next_steps else said
        if fact.lower() not in where:
            wrong.append(f"does not mention {fact}")
    return wrong + _not_as_shown(found, want, said)


def _not_as_shown(found: Diagnosis, want: dict[str, Any], said: str) -> list[str]:
    """Decisive lines that are not shown, and what the headline or the advice should not say."""
    shown = flat("\n".join([said, *(fact.quote for fact in found.facts)]))
    wrong = []
    for entry in want.get("decisive", []):
        if not any(flat(one) in shown for one in (entry if isinstance(entry, list) else [entry])):
            wrong.append(f"does not quote {entry}")
    headline = flat(found.headline)
    wrong += [f"the headline says {phrase}" for phrase in want.get("forbid", []) if flat(phrase) in headline]
    advice = flat("\n".join(found.next_steps))
    wrong += [f"advises {phrase}" for phrase in want.get("forbid_advice", []) if flat(phrase) in advice]
    return wrong


def flat(text: str) -> str:
    """Without capitals and runs of white space, which differ where a line was wrapped."""
    return " ".join(text.split()).lower()


def _names(found: Diagnosis, operation: dict[str, Any], said: str) -> bool:
    held = found.operation
    if held is not None and (held.name, held.seq) == (operation["name"], operation["seq"]):
        return True
    number = "" if operation["seq"] is None else f" #{operation['seq']}"
    return f"{operation['name']}{number}" in said


def test_there_are_sixty_of_them() -> None:
    """At least sixty texts, each with its truth."""
    assert len(EXCERPTS) >= 60
    assert all(path.with_suffix(".json").exists() for path in EXCERPTS)


FAILURES = [path for path in EXCERPTS if not one_of("ok", truth(path)["outcome"])]
HEALTHY = [path for path in EXCERPTS if truth(path)["outcome"] == "ok"]


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_a_healthy_run_is_called_ok(path: Path) -> None:
    """Where the text shows the job moving or its end as planned, the verdict says so, and what shows it."""
    found = verdict(path)
    assert (found.outcome, found.exit_status) == ("ok", 0)
    assert found.why and found.facts


@pytest.mark.parametrize("path", FAILURES, ids=lambda path: path.stem)
def test_no_failure_is_called_ok(path: Path) -> None:
    """A text that shows a failure is never answered with "no hang found"."""
    found = verdict(path)
    assert found.outcome != "ok"
    assert found.exit_status != 0


@pytest.mark.parametrize("path", EXCERPTS, ids=lambda path: path.stem)
def test_no_innocent_is_accused_for_sure(path: Path) -> None:
    """High confidence only against whom the text incriminates, and never where it cannot carry that much."""
    found, want = verdict(path), truth(path)
    if found.confidence != "high" or not found.culprits:
        return
    guilty = set(want["culprits"]).union(*want.get("accept", []))
    assert {culprit.rank for culprit in found.culprits} <= guilty
    assert not want["never_high"]


def test_most_verdicts_say_what_an_expert_would() -> None:
    """Four of five verdicts have everything right: outcome, kind, culprits, operation, node, peer and the facts."""
    wrong = {path.stem: found for path in EXCERPTS if (found := mistakes(path))}
    report = "\n".join(f"{name}: {'; '.join(found)}" for name, found in wrong.items())
    assert len(EXCERPTS) - len(wrong) >= SHARE * len(EXCERPTS), report
