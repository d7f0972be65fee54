"""What a rank stood in is kept where it fails because of a peer: Gloo's recorder marks it finished like any other."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hangscope.recorder.live.watched_rank import WatchedRank
from kits.agent_parts import rank


def status(enqueued: int, completed: int) -> dict[str, Any]:
    return {"0": {"last_enqueued_collective": enqueued, "last_completed_collective": completed}}


def stood(number: int, enqueued: int, completed: int) -> WatchedRank:
    """A rank whose counters have stood for a minute."""
    each = rank(number)
    each.progress.take_counters("gloo", status(enqueued, completed), time.monotonic() - 60, time.time_ns())
    each.note_counters("gloo", status(enqueued, completed))
    each.last_poll_at = time.time()
    return each


RING = {
    "pg_status": status(21, 21),
    "entries": [{"pg_id": 0, "collective_seq_id": number, "retired": True} for number in (20, 21)],
}


@pytest.mark.parametrize(("peer_launched", "failed"), [(20, True), (21, False)])
def test_an_operation_fails_that_a_peer_never_launched(peer_launched: int, failed: bool) -> None:
    """Then the ring is as it was when the rank stood; one that all launched may well have completed."""
    waits, peer = stood(0, 21, 20), stood(1, peer_launched, 20)
    waits.note_counters("gloo", status(21, 21))
    waits.note_failure([waits, peer])
    ring = waits.as_it_stood("gloo", RING)
    assert [entry["retired"] for entry in ring["entries"]] == [True, not failed]
    assert ring["pg_status"] == status(21, 20 if failed else 21)


def test_a_rank_that_launches_on_has_not_failed() -> None:
    """What it launched next shows that it got past the operation."""
    waits, peer = stood(0, 21, 20), stood(1, 20, 20)
    waits.note_counters("gloo", status(21, 21))
    waits.note_failure([peer])
    waits.note_counters("gloo", status(22, 21))
    assert waits.as_it_stood("gloo", RING) == RING
