"""Logs that a real Slurm wrote, each with what was done to its job."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.reader.load import load
from hangscope.reader.logs.launchers.own_lines import PrintedVerdicts
from hangscope.reader.logs.log_lines import Line

LOGS = Path(__file__).parents[3] / "recorded_slurm"
TRUTHS: dict[str, dict[str, Any]] = json.loads((LOGS / "truths.json").read_text())


@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_a_log_alone_names_the_culprit_or_nobody(name: str) -> None:
    """Cancelled, out of time, killed, raised, a node lost: no innocent, whatever srun and torchrun print at the end."""
    truth = TRUTHS[name]
    verdict = diagnose(load([LOGS / f"{name}.txt"]))
    assert verdict.outcome.value in truth["outcome"]
    assert [culprit.rank for culprit in verdict.culprits] in [truth["culprits"], *truth.get("accept", [])]
    assert truth.get("node", "") in verdict.headline


def test_a_peer_that_waited_until_its_timeout_tells_of_a_hang(tmp_path: Path) -> None:
    """Who loses its connection at once has seen a crash; who timed out has waited for the rank that ended."""
    log = (LOGS / "plain-raise.txt").read_text()
    before = re.search(r"Connection closed by peer.*", log)
    assert before is not None
    file = tmp_path / "slurm-1.out"
    file.write_text(log.replace(before[0], "Timed out waiting 1800000ms for recv operation to complete"))
    verdict = diagnose(load([file]))
    assert (verdict.outcome.value, [culprit.rank for culprit in verdict.culprits]) == ("hang", [1])


def test_a_headline_ends_where_its_lines_had_room(tmp_path: Path) -> None:
    """What stands below a printed headline is no part of it; what was wrapped is."""
    lines = (
        "the verdict on /shared/hangs/4:",
        "HANG   rank 0 waits in all_reduce #21; there is no evidence      confidence: low",
        "       from rank 1: hangscope's agent on n2 stopped reporting",
        "       all_reduce #21 of default_pg (2 ranks), called at train.py:73 in train",
        "       1 rank has waited 6.2s",
        "the verdict on /shared/hangs/5:",
        "CRASH  rank 1 ended in go_wrong (train.py:31) with            confidence: medium",
        "       ValueError: a batch that cannot be read",
        '       at train.py:31 in go_wrong (raised here): raise ValueError("a batch")',
    )
    read = PrintedVerdicts("slurm-4.out")
    headlines = []
    for number, line in enumerate(lines, 1):
        read.feed(Line(number, f"hangscope: {line}"))
        headlines.append(read.found[-1].headline if read.found else "")
    assert headlines[4] == (
        "rank 0 waits in all_reduce #21; there is no evidence from rank 1: hangscope's agent on n2 stopped reporting"
    )
    assert headlines[-1] == "rank 1 ended in go_wrong (train.py:31) with ValueError: a batch that cannot be read"
