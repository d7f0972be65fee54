"""What agents saw last, where nothing was captured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import Diagnosis, diagnose
from hangscope.reader.load import load
from hangscope.reader.sources import live_status
from kits.small_dumps import entry, group, packed, top


def write(
    folder: Path,
    node: str,
    *rows: tuple[int, int, int, float],
    at: float = 1000.0,
    code: dict[str, Any] | None = None,
    row: dict[str, Any] | None = None,
    **more: Any,
) -> None:
    """A node's status; each row is a rank, what it launched and completed last, and for how long nothing moved."""
    live = [
        {
            "rank": rank,
            "pid": 100 + rank,
            "server_answers": True,
            "code": code,
            **(row or {}),
            "groups": [
                {"group": "dp", "name": "0", "size": 3, "enqueued": launched, "completed": done, "still_s": still}
            ],
        }
        for rank, launched, done, still in rows
    ]
    value = {"schema": "hangscope.status/1", "node": node, "world_size": 3, "at": at, "live": live, **more}
    (folder / "nodes" / node).mkdir(parents=True, exist_ok=True)
    (folder / "nodes" / node / "status.json").write_text(json.dumps(value))


def verdict_of(folder: Path) -> Diagnosis:
    return diagnose(load([folder]))


def test_the_rank_that_never_launched_it_is_named(tmp_path: Path) -> None:
    """Two ranks wait in an operation that the third has not launched, and nobody moved for seconds."""
    write(tmp_path, "a", (0, 21, 20, 9.0), (1, 21, 20, 9.0))
    write(tmp_path, "b", (2, 20, 20, 9.0))
    verdict = verdict_of(tmp_path)
    assert (verdict.outcome.value, [(each.rank, each.node) for each in verdict.culprits]) == ("hang", [(2, "b")])
    assert verdict.confidence != "high"
    assert not any("hangscope run" in step for step in verdict.next_steps)  # that is where it comes from


def test_a_status_that_is_older_than_the_wait_accuses_nobody(tmp_path: Path) -> None:
    """A rank that moved when its node wrote last may have come as far as the others since."""
    write(tmp_path, "a", (0, 21, 20, 9.0), (1, 21, 20, 9.0))
    write(tmp_path, "b", (2, 20, 20, 0.3), at=985.0)
    verdict = verdict_of(tmp_path)
    assert verdict.confidence == "low" or not verdict.culprits


def test_a_job_that_moved_is_no_hang(tmp_path: Path) -> None:
    """Counters that changed a moment before the end accuse nobody."""
    write(tmp_path, "a", (0, 21, 20, 0.5), (1, 21, 20, 0.5), (2, 20, 20, 0.5))
    verdict = verdict_of(tmp_path)
    assert (verdict.hang, verdict.culprits) == (False, ())


@pytest.mark.parametrize("rows", [None, 7, [None], [{"rank": "x"}], [{"rank": 1, "groups": [{"enqueued": []}]}]])
def test_a_status_that_anybody_may_have_written_breaks_nothing(rows: object, tmp_path: Path) -> None:
    """What is of another kind counts as not said."""
    write(tmp_path, "a", (0, 21, 20, 9.0), (1, 20, 20, 9.0))
    write(tmp_path, "b", live=rows)
    assert [culprit.rank for culprit in verdict_of(tmp_path).culprits] == [1]


def _ended(rank: int, enqueued: int, exit_status: int, *, last_poll_at: float) -> dict[str, Any]:
    group = {"group": "default_pg", "name": "0", "size": 2, "enqueued": enqueued, "completed": 284, "still_s": 7.8}
    return {
        "rank": rank,
        "state": "gone",
        "exit_status": exit_status,
        "last_poll_at": last_poll_at,
        "groups": [group],
    }


@pytest.mark.parametrize(
    ("exit_status", "last_poll_at", "stood"),
    [(0, 100.0, False), (-15, 92.2, False), (-15, 99.0, True)],
    ids=["ended well", "not seen since it moved", "seen standing still"],
)
def test_a_job_that_ended_well_did_not_stand_still(exit_status: int, last_poll_at: float, stood: bool) -> None:
    """On a busy machine the last answer is seconds old, and the counters of the last step look as if they stood."""
    rows = [_ended(rank, 284 + rank, exit_status, last_poll_at=last_poll_at) for rank in (0, 1)]
    value = {"schema": "hangscope.status/1", "node": "n1", "at": 100.0, "world_size": 2, "live": rows}
    assert live_status.stood_still([live_status.read(value, "status.json")]) is stood


AT = {"file": "/work/train.py", "line": 22, "function": "load"}


def captured(folder: Path, at: str = "1970-01-01T00:16:30Z") -> None:
    """Ranks 0 and 1 wait in the second all_reduce, and were captured at second 990."""
    for rank in (0, 1):
        waits = {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
        file = folder / "nodes" / "a" / f"nccl_trace_rank_{rank}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(packed(top([entry(0, 1), entry(1, 2, **waits)], group("0", "dp", 0, 1, 2))))
    value = {"schema": "hangscope.incident/1", "job": "j", "attempt": "0", "reason": "stall", "captured_at": at}
    (folder / "incident.json").write_text(json.dumps({**value, "world_size": 3}))


def test_a_node_that_captured_nothing_still_says_where_its_rank_is(tmp_path: Path) -> None:
    """Without a common disk only those that wait notice: the other, which has not moved since, has its status."""
    captured(tmp_path)
    write(tmp_path, "b", (2, 1, 1, 15.0), code=AT)
    verdict = verdict_of(tmp_path)
    assert (verdict.kind.value, [(each.rank, each.node) for each in verdict.culprits]) == ("absent", [(2, "b")])
    assert "rank 2 is in load (train.py:22)" in verdict.headline


@pytest.mark.parametrize(
    ("still_s", "at", "more"),
    [(3.0, 1000.0, {}), (15.0, 980.0, {}), (15.0, 1000.0, {"state": "gone", "exit_status": -9})],
    ids=["moved since", "older than the capture", "gone"],
)
def test_a_status_that_is_not_of_that_moment_says_nothing_of_it(
    still_s: float, at: float, more: dict[str, Any], tmp_path: Path
) -> None:
    """A rank that moved after the others were captured, was last seen before, or is gone, is not shown to be absent."""
    captured(tmp_path)
    write(tmp_path, "b", (2, 1, 1, still_s), at=at, code=AT, row=more)
    verdict = verdict_of(tmp_path)
    assert verdict.confidence == "low"
    assert "load" not in verdict.headline


@pytest.mark.parametrize(
    ("ends", "still_s", "said"),
    [
        ((143, 143), 0.4, "received SIGTERM"),
        ((143, None), 0.4, "received SIGTERM"),
        ((130, 130), 0.4, "someone pressed Ctrl-C"),
        ((143, 1), 0.4, ""),
        ((0, 0), 0.4, ""),
        ((None, None), 0.4, ""),
        (([143], True), 0.4, ""),
        ((143, 143), 9.0, ""),
    ],
)
def test_a_job_that_was_ended_while_it_moved_says_so(
    ends: tuple[object, object], still_s: float, said: str, tmp_path: Path
) -> None:
    """Commands that all ended by a signal from outside were ended by somebody; one that ended otherwise tells more."""
    write(tmp_path, "a", (0, 21, 20, still_s), (1, 21, 20, still_s), ended=ends[0])
    write(tmp_path, "b", (2, 20, 20, still_s), ended=ends[1])
    verdict = verdict_of(tmp_path)
    assert (said in verdict.headline) if said else "ended the job" not in verdict.headline
    assert (verdict.outcome.value == "hang") == (still_s > 5)
