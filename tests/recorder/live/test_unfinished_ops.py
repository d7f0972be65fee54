"""From answers to a suspicion: what counts as unfinished, and for how long is too long."""

from __future__ import annotations

from typing import Any

from hangscope.recorder.live.unfinished_ops import RankProgress, unfinished

S = 1_000_000_000


def entry(record: int, *, name: str = "nccl:all_reduce", seq: int | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "record_id": record,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": record + 1 if seq is None else seq,
        "p2p_seq_id": 0,
        "profiling_name": name,
        "time_created_ns": 100 * S,
        "input_sizes": [[4]],
        "state": "scheduled",
        "retired": False,
        "is_p2p": False,
        **fields,
    }


def status(enqueued: int, completed: int, group: str = "0") -> dict[str, Any]:
    return {group: {"last_enqueued_collective": str(enqueued), "last_completed_collective": str(completed)}}


def records(found: list[Any]) -> list[int]:
    return [each.record for each in found]


def test_gloo_operations_are_finished_when_retired() -> None:
    """Gloo never changes the state."""
    dump = {"entries": [entry(0, retired=True), entry(1)]}
    assert records(unfinished("gloo", dump)) == [1]


def test_operations_inside_a_finished_batch_are_finished() -> None:
    """In NCCL's recorder they stay scheduled for ever; the closing entry tells."""
    inner = [entry(n, name="nccl:send 0->1", seq=3, p2p_seq_id=1, is_p2p=True) for n in (0, 1)]
    closing = entry(2, name="nccl:coalesced", seq=3, p2p_seq_id=1, input_sizes=[])
    assert unfinished("nccl", {"entries": [*inner, {**closing, "state": "completed"}]}) == []
    assert records(unfinished("nccl", {"entries": [*inner, {**closing, "state": "started"}]})) == [0, 1, 2]


def test_what_a_full_answer_clears_is_not_suspected_again() -> None:
    """A batch's leftovers appear in every list of unfinished operations; one full answer settles them."""
    leftover = entry(0, name="nccl:send 0->1", seq=3, p2p_seq_id=1, is_p2p=True)
    closing = entry(1, name="nccl:coalesced", seq=3, p2p_seq_id=1, input_sizes=[], state="completed")
    progress = RankProgress()
    progress.take_active({"entries": [leftover]}, 0.0, 140 * S)
    assert progress.doubtful(0.0, 140 * S, 30.0) == ({"nccl"}, set())
    progress.take_full("nccl", {"entries": [leftover, closing]}, 140 * S)
    progress.take_active({"entries": [leftover]}, 1.0, 141 * S)
    assert progress.doubtful(1.0, 141 * S, 30.0) == (set(), set())
    assert progress.oldest() is None
    assert progress.slowest_s == 0.0


def test_an_operation_older_than_the_threshold_is_confirmed_first() -> None:
    """The cheap answer raises the suspicion, and what is oldest is told with its group."""
    progress = RankProgress()
    progress.take_active({"entries": [entry(7, seq=8), entry(8, seq=9, time_created_ns=120 * S)]}, 0.0, 131 * S)
    assert progress.doubtful(0.0, 131 * S, 30.0)[0] == {"nccl"}
    oldest = progress.oldest()
    assert oldest is not None
    assert (oldest.label, oldest.group, oldest.age_s(131 * S)) == ("all_reduce #8", "default_pg", 31.0)


def test_the_slowest_finished_operation_is_learnt() -> None:
    """It sets the default threshold, so that a slow network does not look like a stall."""
    progress = RankProgress()
    progress.take_active({"entries": [entry(0)]}, 0.0, 112 * S)
    progress.take_active({"entries": []}, 1.0, 113 * S)
    assert progress.slowest_s == 13.0


def test_counters_that_stand_still_with_work_left_are_urgent() -> None:
    """Gloo's cheap answer has counters only: they must stand still for the whole threshold."""
    progress = RankProgress()
    progress.take_counters("gloo", status(5, 4), 10.0, 100 * S)
    assert progress.doubtful(15.0, 105 * S, 30.0) == (set(), set())
    assert progress.doubtful(17.0, 107 * S, 30.0) == (set(), {"gloo"})
    assert progress.doubtful(41.0, 131 * S, 30.0) == ({"gloo"}, set())


def test_counters_that_only_look_behind_are_checked_once() -> None:
    """Two operations that finished out of order leave the lower number; the ring shows that nothing is left."""
    progress = RankProgress()
    progress.take_counters("gloo", status(5, 4), 10.0, 100 * S)
    progress.take_full("gloo", {"entries": [entry(4, retired=True)]}, 131 * S)
    assert progress.doubtful(60.0, 150 * S, 30.0) == (set(), set())
    progress.take_counters("gloo", status(6, 5), 70.0, 160 * S)
    assert progress.doubtful(101.0, 191 * S, 30.0) == ({"gloo"}, set())


def test_an_operation_of_gloo_is_over_when_its_counter_moves() -> None:
    """Between two full answers the counters say that the group went on."""
    progress = RankProgress()
    progress.take_counters("gloo", status(5, 4), 10.0, 100 * S)
    progress.take_full("gloo", {"entries": [entry(4)]}, 106 * S)
    assert progress.oldest() is not None
    progress.take_counters("gloo", status(5, 5), 20.0, 110 * S)
    assert progress.oldest() is None
    assert progress.slowest_s == 10.0


def test_a_moving_group_does_not_hide_a_stuck_one() -> None:
    """Each group's counters are judged by themselves."""
    progress = RankProgress()
    progress.take_counters("gloo", {**status(5, 4, "0"), **status(1, 1, "1")}, 0.0, 100 * S)
    for second in range(1, 40):
        progress.take_counters("gloo", {**status(5, 4, "0"), **status(second, second, "1")}, float(second), 100 * S)
    assert progress.doubtful(40.0, 140 * S, 30.0)[0] == {"gloo"}


def test_an_answer_of_another_shape_is_no_answer() -> None:
    """A later torch may say things that we do not know."""
    progress = RankProgress()
    progress.take_counters("gloo", {"0": 7, "1": {"last_enqueued_collective": "x"}}, 0.0, 0)
    progress.take_active({"entries": [3, {"record_id": None}], "pg_status": []}, 0.0, 0)
    assert progress.counters == {}
    assert len(progress.unfinished["nccl"]) == 1
