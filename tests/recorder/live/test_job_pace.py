"""Whether a job was moving when somebody ended it."""

from __future__ import annotations

import time
from dataclasses import replace

from hangscope.recorder.live.job_pace import JobPace
from hangscope.recorder.live.watched_rank import WatchedRank
from kits.agent_parts import rank


def moves(each: WatchedRank, number: int, now: float, waits: bool = False) -> None:
    counters = {"0": {"last_enqueued_collective": number + waits, "last_completed_collective": number}}
    each.progress.take_counters("gloo", counters, now, time.time_ns())


def ended_after(still_s: float, *, waits: bool = True, step_s: float = 1.0) -> bool | None:
    """Whether it stood still, of a rank that got on every `step_s` and ended `still_s` after it last did."""
    each = rank(0)
    each.process = replace(each.process, socket="/nowhere.sock")
    pace = JobPace()
    now = 1000.0
    for number in range(10):
        moves(each, number, now, waits and number == 9)
        pace.look([each], 1.0, now)
        now += step_s
    assert pace.stood_still is None
    each.ended_at = time.time()
    pace.look([each], 1.0, now - step_s + still_s)
    return pace.stood_still


def test_a_job_that_moved_a_moment_ago_did_not_stand_still() -> None:
    """What happened since the last look is not seen yet."""
    assert ended_after(1.5) is False


def test_a_job_that_waited_for_longer_than_ever_stood_still() -> None:
    """By its own steps: what is long for one is a step of another."""
    assert ended_after(20.0) is True
    assert ended_after(20.0, step_s=60.0) is False
    assert ended_after(100.0, step_s=60.0) is True


def test_a_job_in_which_nobody_waits_did_not_stand_still() -> None:
    """Every rank computes, for however long."""
    assert ended_after(500.0, waits=False) is False


def test_operations_that_fail_just_before_an_end_are_no_move() -> None:
    """A rank that Ctrl-C reached closes its connections, and its peers' operations end, before it is seen to end."""
    each = rank(0)
    each.process = replace(each.process, socket="/nowhere.sock")
    pace = JobPace()
    for number in range(10):
        moves(each, number, 1000.0 + number, waits=number == 9)
        pace.look([each], 1.0, 1000.0 + number)
    pace.look([each], 1.0, 1014.0)
    moves(each, 10, 1015.0)
    pace.look([each], 1.0, 1015.0)
    each.ended_at = time.time()
    pace.look([each], 1.0, 1015.5)
    assert pace.stood_still is True


def test_a_ring_that_is_read_of_a_hang_is_no_move() -> None:
    """More is known of the rank by then, and it has not got on."""
    each = rank(0)
    pace = JobPace()
    for number in range(10):
        moves(each, number, 1000.0 + number, waits=number == 9)
        pace.look([each], 1.0, 1000.0 + number)
    entry = {"record_id": 9, "pg_id": 0, "collective_seq_id": 10, "time_created_ns": time.time_ns() - 60 * 10**9}
    each.progress.take_full("gloo", {"entries": [entry]}, time.time_ns())
    pace.look([each], 1.0, 1069.0)
    each.ended_at = time.time()
    pace.look([each], 1.0, 1072.0)
    assert pace.stood_still is True
