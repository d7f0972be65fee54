"""A part of the sweep, the same every time: what is damaged, missing or old never makes hangscope surely wrong.

The whole of it is a command, `python tests/sweep.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from frozen import stored, sweeps
from kits.knowable import expected
from kits.older_dumps import OLDER, unpacked, without_stamps
from kits.recorded import Recorded, recorded
from sweep import MODES, Change, Score, altered, exactness, keep, run

PARTS = 8
"""Parts that several processes can take."""


@pytest.fixture(scope="module")
def cases() -> list[Recorded]:
    return recorded()


def _failures(scores: list[Score]) -> list[str]:
    """Everything that breaks the promise, the worst first."""
    said = [f"INNOCENT {score.name}: {score.detail}" for score in scores if score.innocent_high]
    said += [f"DENIED {score.name}: {score.detail}" for score in scores if score.denied_high]
    said += [f"WORDS {score.name}: {slip}" for score in scores for slip in score.slips]
    said += [f"CHANGED {s.name}: {s.detail}" for s in scores if s.checksum != stored()[f"sweep/{s.name}"][0]]
    if exactness(scores) < 0.85:
        said.append(f"only {exactness(scores):.1%} exact in what remains knowable:")
        said += [f"{s.grade} {s.name}: {s.detail}" for s in scores if s.sure and s.grade != "exact"]
    return said


def _parts() -> list[list[Change]]:
    """The sample in parts that are about equal; all folders of one case are in one of them."""
    by_case: dict[str, list[Change]] = {}
    for change in sweeps().values():
        by_case.setdefault(change.case, []).append(change)
    parts: list[list[Change]] = [[] for _ in range(PARTS)]
    for some in by_case.values():
        min(parts, key=len).extend(some)
    return parts


@pytest.mark.parametrize("part", range(PARTS))
def test_evidence_that_misleads_makes_no_verdict_surely_wrong(part: int, cases: list[Recorded]) -> None:
    """No innocent and no denied hang at high confidence, no hole in a sentence, most exact if one can know, and all
    as it is stored."""
    wanted = _parts()[part]
    failures = _failures(run(wanted, cases))
    assert not failures, f"{len(failures)} of {len(wanted)}\n" + "\n".join(failures[:60])


def test_the_sample_covers_every_case_and_every_change(cases: list[Recorded]) -> None:
    """Each recorded job, each thing that can happen to a dump, and each level of logs is in the part that CI runs."""
    chosen = list(sweeps().values())
    assert sum(map(len, _parts())) == len(chosen) == len({change.name for change in chosen})
    assert {change.case for change in chosen} == {case.id for case in cases}
    assert {change.mode for change in chosen} >= set(MODES)
    assert {change.logs for change in chosen} == {"all", "training", "none"}


@pytest.mark.parametrize("mode", sorted(OLDER))
def test_an_older_dump_is_of_the_same_job_and_earlier(mode: str, cases: list[Recorded]) -> None:
    """It has the groups and operations of the present dump, and every time in it is at least a minute earlier."""
    for case in cases:
        for files in case.dumps.values():
            now, _ = unpacked(files[0].read_bytes())
            then, _ = unpacked(OLDER[mode](files[0].read_bytes()))
            assert then["pg_config"] == now["pg_config"]
            names = {entry["profiling_name"] for entry in now.get("entries", [])}
            assert {entry["profiling_name"] for entry in then["entries"]} <= names
            if then["entries"] and not mode.endswith("unstamped"):
                first = now["entries"][0]["time_created_ns"]
                assert first - then["entries"][0]["time_created_ns"] >= 60 * 10**9


def test_a_dump_without_times_says_everything_else(cases: list[Recorded]) -> None:
    """Only the times are gone."""
    data = cases[0].dumps[0][0].read_bytes()
    now, then = unpacked(data)[0], unpacked(without_stamps(data))[0]
    assert [e["state"] for e in now["entries"]] == [e["state"] for e in then["entries"]]
    assert {e["time_created_ns"] for e in then["entries"]} == {0}


def test_a_cut_dump_is_the_beginning_of_the_whole(cases: list[Recorded]) -> None:
    """Each cut keeps a true beginning, shorter than the file, down to nothing."""
    data = cases[0].dumps[0][0].read_bytes()
    lengths = []
    for mode in MODES:
        if mode.startswith("cut"):
            part = altered(data, mode)
            assert part is not None
            assert data.startswith(part)
            lengths.append(len(part))
    assert len(set(lengths)) == len(lengths) >= 10
    assert (min(lengths), max(lengths)) == (0, len(data) - 1)


def test_what_is_knowable_follows_from_who_saw_it(cases: list[Recorded]) -> None:
    """One of several victims may be lost, the only witness may not, and a lost culprit leaves doubt."""
    by_id = {case.id: case for case in cases}
    stalled = by_id["nccl/cpu_stall"]
    assert expected(stalled, "none", frozenset({0}), "gone").sure
    assert not expected(stalled, "none", frozenset({2}), "gone").sure
    assert not expected(by_id["nccl/pair_absent"], "none", frozenset({1}), "gone").sure
    killed = by_id["nccl/sigkill"]
    assert not expected(killed, "none", frozenset({0}), "gone").sure
    assert expected(killed, "all", frozenset({0}), "gone").sure


def test_scores_can_be_kept(cases: list[Recorded], tmp_path: Path) -> None:
    """A folder is written to disk under the name that a failure is listed with, and differs in the one dump."""
    assert keep("nccl/skipped/r1/gone/none", tmp_path / "kept", cases) == 0
    left = sorted(path.name for path in (tmp_path / "kept").rglob("*") if path.is_file())
    assert left == ["nccl_trace_rank_0", "nccl_trace_rank_2", "nccl_trace_rank_3"]
    (case,) = (case for case in cases if case.id == "nccl/skipped")
    for rank in (0, 2, 3):
        (kept,) = (tmp_path / "kept").rglob(f"nccl_trace_rank_{rank}")
        assert kept.read_bytes() == case.dumps[rank][0].read_bytes()
