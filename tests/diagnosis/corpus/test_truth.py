"""The sentences of verdicts on recorded jobs are true, by code that shares nothing with what wrote them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

import frozen
from truth import problems, read

SUITES = ("cases", "links", "live", "outside")


def contradicted(suite: str, name: str) -> list[str]:
    """What the evidence contradicts of a verdict."""
    words = frozen.verdict(suite, name).words
    with tempfile.TemporaryDirectory(dir=frozen.SHM if frozen.SHM.is_dir() else None) as scratch:
        folder, _ = frozen.made(suite, name, Path(scratch))
        raw = read(folder)
    return list(problems(json.loads(words.json), words.text, raw))


@pytest.mark.parametrize("suite", SUITES)
def test_no_sentence_is_contradicted(suite: str) -> None:
    """Lines, ranks, numbers, calls, counts and advice of every verdict agree with the raw dumps, stacks and logs."""
    whole = [name for name in frozen.names(suite) if "without-" not in name]
    found = {name: wrong for name in whole if (wrong := contradicted(suite, name))}
    assert found == {}


def test_what_is_false_is_found() -> None:
    """A victim in another call, a line that no evidence has, a rank that is none and wrong numbers are each noticed."""
    words = frozen.verdict("cases", "cases/mesh_absent").words
    value = json.loads(words.json)
    with tempfile.TemporaryDirectory() as scratch:
        raw = read(frozen.made("cases", "cases/mesh_absent", Path(scratch))[0])
    assert list(problems(value, words.text, raw)) == []
    value["victims"][0]["operation"] = value["victims"][0]["operation"].replace("all_reduce", "all_to_all")
    value["headline"] = "rank 99 is in save (nowhere.py:7), and never launched all_reduce #123456"
    value["completeness"]["dumps"] = 100
    found = " ".join(problems(value, words.text, raw))
    for wrong in ("all_to_all", "nowhere.py:7", "no rank 99", "#123456", "100 dumps"):
        assert wrong in found


def test_what_is_false_of_states_and_lists_is_found() -> None:
    """A member that recorded what it never launched, an older last operation, dumps, stacks, gaps and lines that are
    not so, the wrong end of a message."""
    words = frozen.verdict("cases", "cases/mesh_absent").words
    value = json.loads(words.json)
    with tempfile.TemporaryDirectory() as scratch:
        raw = read(frozen.made("cases", "cases/mesh_absent", Path(scratch))[0])
    waits = value["victims"][0]["rank"]
    value["operation"]["state_by_rank"][str(waits)] = "not launched"
    value["last_completed"]["seq"] -= 1
    value["evidence"] = [{"text": "flight recorder dumps of ranks 0-99, format 1.0"}, {"text": "stacks of rank 99"}]
    value["gaps"] = [{"what": f"no dump of rank {waits}", "why": ""}]
    value["ruled_out"] = [{"kind": "dead", "why": "all 99 processes were alive"}]
    said = "rank 0 is inside recv 0<-2 of default_pg and waits for rank 1"
    call = f"{value['operation']['name']} #{value['operation']['seq']}"
    called = f"the others called {call} at /w/no.py:1; rank 0 did not get there"
    value["why"] += [{"text": text, "detail": [], "sources": []} for text in (said, called)]
    found = list(problems(value, words.text, raw))
    for wrong in (
        "and recorded it",
        "all finished the next",
        "rank 99",
        "format 1.0",
        "and did",
        "99 processes",
        "ends",
        "no.py:1",
    ):
        assert any(wrong in each for each in found), (wrong, found)
