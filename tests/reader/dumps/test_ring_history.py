"""Huge rings: what is let go is what no rule asks for, so the verdict stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hangscope.diagnosis import diagnose
from hangscope.model import State
from hangscope.reader.dumps import dump_file, ring_history
from hangscope.reader.load import load
from hangscope.simulate import Spec, simulate
from hangscope.simulate.spec.job_spec import FAULTS
from kits.small_dumps import entry, group, packed, read, top


def ring(count: int) -> list[dict[str, object]]:
    return [entry(number, number + 1) for number in range(count)]


def test_a_ring_within_the_bound_is_kept_whole() -> None:
    """A ring of as many entries as may be kept loses none of them, and does not count as wrapped."""
    raw = read(top(ring(40)), 0, keep=40)
    assert (len(raw), raw.records, raw.first_record) == (40, 40, 0)


def test_the_end_of_a_larger_ring_is_kept() -> None:
    """Of a larger one the last entries stay, the dump counts as wrapped, and how many were read is still known."""
    raw = read(top(ring(100)), 0, keep=40)
    assert raw.columns["seq"].tolist() == list(range(61, 101))
    assert (raw.records, raw.first_record) == (100, 60)


def test_what_waits_is_kept_however_old_it_is() -> None:
    """From an unfinished entry on all of its group stays, so that no number is missing between two that are there."""
    entries = ring(100)
    for number in range(0, 100, 4):
        entries[number].update(process_group=("1", "tp"), pg_id=1, collective_seq_id=number // 4 + 1)
    entries[20].update(state="started", retired=False, time_discovered_completed_ns=None)
    raw = read(top(entries, group("0", "default_pg", 0, 1), group("1", "tp", 0, 1)), 0, keep=40)
    tp = raw.columns["seq"][raw.columns["group"] == raw.groups.index(next(g for g in raw.groups if g.name == "1"))]
    assert tp.tolist() == list(range(6, 26))
    assert raw.columns["state"].tolist().count(State.STARTED) == 1
    assert len(raw) == 40 + 10  # those of the other group are let go all the same


def test_a_group_that_fell_silent_keeps_its_last_calls() -> None:
    """A group that was last used long ago still says how far it got: absence there can be told from ignorance."""
    entries = ring(100)
    for number in range(10):
        entries[number].update(process_group=("7", "init"), pg_id=7, collective_seq_id=number + 1)
    raw = read(top(entries), 0, keep=40)
    assert raw.columns["seq"][:8].tolist() == list(range(3, 11))
    assert len(raw) == 48


def test_every_rank_gets_its_share() -> None:
    """Few ranks keep long rings, many keep short ones, and never so few entries that a call order could not be seen."""
    assert ring_history.share(1) == ring_history.share(8) == ring_history.MOST_OF_A_RANK
    assert ring_history.share(1024) * 1024 <= ring_history.MOST_OF_A_JOB
    assert ring_history.share(1024) > 900
    assert ring_history.share(100_000) == ring_history.LEAST_OF_A_RANK


@pytest.mark.parametrize("fault", FAULTS)
def test_the_verdict_of_what_is_kept_is_that_of_everything(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rings of 3,000 entries cut to 512 give the same kind, culprits and confidence as the whole of them; but where a
    shift began is lost with its entries, and that is said."""
    simulate(Spec(ranks=8, dp=2, tp=2, pp=2, fault=fault, entries=3000, seed=11)).write(tmp_path)
    monkeypatch.setattr(ring_history, "MOST_OF_A_RANK", 512)
    whole, part = load(tmp_path, full=True), load(tmp_path)
    assert len(part.ops) < len(whole.ops) / 3
    assert sum(d.records for of_rank in part.dumps.values() for d in of_rank) == len(whole.ops)
    one, other = diagnose(whole), diagnose(part)
    assert (one.kind, one.hang) == (other.kind, other.hang)
    if fault == "shift":
        assert (one.confidence, other.confidence) == ("high", "medium")
        assert "where it began is no longer recorded" in (other.confidence_rule or "")
    else:
        assert one.confidence == other.confidence
    assert [c.rank for c in one.culprits] == [c.rank for c in other.culprits]


def test_both_readers_keep_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is decided on columns, whoever made them."""
    data = packed(top(ring(3000)))
    fast = dump_file.read(data, file="x", keep=1000)
    monkeypatch.setenv("HANGSCOPE_DECODER", "python")
    slow = dump_file.read(data, file="x", keep=1000)
    for name, column in slow.columns.items():
        np.testing.assert_array_equal(fast.columns[name], column)
