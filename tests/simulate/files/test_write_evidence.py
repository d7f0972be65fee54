"""The logs and the roster beside the dumps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hangscope.simulate import Spec, simulate

CASES = Path(__file__).parents[2] / "cases"


def test_the_roster_and_logs_tell_the_dead_from_the_frozen() -> None:
    """A killed rank has its signal in the roster, a frozen one is still there; neither has anything in its log."""
    killed = dict(simulate(Spec(ranks=8, fault="dead", variant="killed", culprits=(3,), entries=60)).files())
    frozen = dict(simulate(Spec(ranks=8, fault="frozen", culprits=(3,), entries=60)).files())
    rosters = [{row["rank"]: row for row in json.loads(files["roster.json"])} for files in (killed, frozen)]
    assert [roster[3]["exit"] for roster in rosters] == [-9, None]
    real = json.loads((CASES / "sigkill/roster.json").read_text())
    assert list(rosters[0][0]) == list(real[0])
    for files in (killed, frozen):
        assert b"ProcessGroupNCCL" not in files["gpu-node-0/rank_3.log"]
        assert b"ProcessGroupNCCL" in files["gpu-node-0/rank_2.log"]


def test_an_exception_leaves_its_traceback() -> None:
    """A rank that raised says what and where, and exits with status 1."""
    files = dict(simulate(Spec(ranks=8, fault="dead", variant="exception", culprits=(6,), entries=60)).files())
    log = files["gpu-node-0/rank_6.log"].decode()
    assert "[rank6]: Traceback (most recent call last):" in log
    assert "[rank6]: ValueError: bad sample" in log
    assert json.loads(files["roster.json"])[6]["exit"] == 1


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        ("2.2", "[rank1]:[E ProcessGroupNCCL.cpp:523] [Rank "),
        ("2.3", "Timeout at NCCL work: "),
        ("2.4", "ProcessGroupNCCL.cpp:607] [Rank "),
        ("2.5", "Exception (either an error or timeout) detected by watchdog at work: "),
        ("2.9", " failure detected by watchdog at work sequence id: "),
        ("2.14", "ProcessGroupNCCL.cpp:741] [PG GUID "),
    ],
)
def test_logs_speak_the_words_of_their_version(torch: str, words: str) -> None:
    """Ranks that wait log the watchdog's line as that PyTorch writes it."""
    files = dict(simulate(Spec(ranks=8, fault="absent", culprits=(3,), torch=torch, entries=60)).files())
    log = files["gpu-node-0/rank_1.log"].decode()
    assert "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=" in log
    assert words in log


def test_a_dead_link_comes_with_nccls_view_of_the_ring() -> None:
    """NCCL's logs name the neighbours on the ring and the device of each channel, and the warning if asked for."""
    spec = Spec(
        ranks=16, gpus_per_node=4, fault="network", variant="collective", nccl_warnings=True, entries=60, seed=2
    )
    job = simulate(spec)
    link: Any = job.truth["link"]
    sender, receiver = link
    texts = {name: data.decode() for name, data in job.files() if "/nccl." in name}
    assert len(texts) == 16
    warned = [name for name, text in texts.items() if "NCCL WARN" in text]
    assert len(warned) == (spec.node(sender) != spec.node(receiver))
    assert all("Ring 00 : " in text and "Init COMPLETE" in text for text in texts.values())
