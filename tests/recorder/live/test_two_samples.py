"""Two samples of a job: who moved between them, and who only became better known."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hangscope.recorder.live import two_samples
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.live.thread_waits import StackFrame, ThreadStack
from hangscope.recorder.live.two_samples import TwoSamples
from hangscope.recorder.live.unfinished_ops import RankProgress
from hangscope.recorder.live.watched_rank import WatchedRank
from kits.agent_parts import rank

Act = Callable[[WatchedRank], None]


def counters(enqueued: int, completed: int, group: str = "0") -> dict[str, Any]:
    return {group: {"last_enqueued_collective": enqueued, "last_completed_collective": completed}}


def ring(*records: int, age_s: float = 36.0) -> dict[str, Any]:
    created = time.time_ns() - int(age_s * 1e9)
    return {"entries": [{"record_id": each, "pg_id": 0, "time_created_ns": created} for each in records]}


def moved(first: Act, between: Act, tmp_path: Path) -> bool | None:
    """What is noted of a rank, of which `first` is known before the first sample and `between` comes after it."""
    polling = Polling(tmp_path)
    watched = rank(0)
    polling.ranks.by_number[0] = watched
    first(watched)
    samples = TwoSamples(polling, 100.0)
    between(watched)
    assert samples.done(100.0 + two_samples.MOST_S)
    polling.close()
    return watched.moved


def count(enqueued: int, completed: int) -> Act:
    return lambda rank: rank.progress.take_counters("gloo", counters(enqueued, completed), 0.0, time.time_ns())


def read_ring(*records: int, age_s: float = 36.0) -> Act:
    return lambda rank: rank.progress.take_full("gloo", ring(*records, age_s=age_s), time.time_ns())


def nothing(_: WatchedRank) -> None:
    pass


@pytest.mark.parametrize(
    ("first", "between", "expected"),
    [
        (count(80, 79), read_ring(79), False),
        (count(80, 79), nothing, False),
        (nothing, count(80, 79), False),
        (count(80, 79), count(81, 80), True),
        (count(80, 80), lambda rank: rank.progress.take_counters("gloo", counters(1, 0, "1"), 0.0, 0), True),
        (read_ring(79), read_ring(), True),
        (read_ring(79), count(80, 80), False),
        (nothing, read_ring(79, age_s=-1.0), True),
        (read_ring(79), lambda rank: rank.progress.unfinished.clear(), True),
    ],
    ids=[
        "its ring was read in between",
        "nothing was asked",
        "its counters were read in between",
        "its counters moved",
        "it began in another group",
        "its ring shows the operation as finished",
        "counters that nothing is known to compare with",
        "it launched an operation after the first sample",
        "its operation is over",
    ],
)
def test_a_rank_moves_by_what_it_did_and_not_by_what_became_known(
    first: Act, between: Act, expected: bool, tmp_path: Path
) -> None:
    """A ring that is first read between the samples shows operations of long before: that is no move of the rank's."""
    assert moved(first, between, tmp_path) is expected


def at_work(*places: str) -> Act:
    """The kernel saw it at work, and a sample of its stacks was taken after each time."""

    def act(watched: WatchedRank) -> None:
        for number, place in enumerate(places):
            watched.position.note_move()
            main = ThreadStack(1, True, (StackFrame("train.py", 7, place),))
            watched.position.take([main], None, float(number), float(number))
            watched.position.works = True

    return act


@pytest.mark.parametrize(
    ("places", "expected"), [(("item", "item"), None), (("forward", "backward"), True)], ids=["one line", "two lines"]
)
def test_to_be_at_work_at_one_line_is_no_move(places: tuple[str, str], expected: bool | None, tmp_path: Path) -> None:
    """Whoever waits for a GPU, or for a file to appear, is at work all the time: hung jobs were called OK."""
    assert moved_with_samples(at_work(places[0]), at_work(places[1]), tmp_path) is expected


def moved_with_samples(first: Act, between: Act, tmp_path: Path) -> bool | None:
    polling = Polling(tmp_path)
    watched = rank(0)
    polling.ranks.by_number[0] = watched
    samples = TwoSamples(polling, 100.0)
    first(watched)
    assert not samples.done(100.5)  # not yet: it is not known of it that it stands
    between(watched)
    assert samples.done(100.0 + two_samples.MOST_S)
    polling.close()
    return watched.moved


def test_to_launch_on_behind_an_operation_that_does_not_end_is_no_move(tmp_path: Path) -> None:
    """A rank of a GPU runs ahead of it by a thousand operations: a hung job on NCCL was taken for one that moves."""
    assert moved(count(80, 79), count(200, 79), tmp_path) is False
    assert moved(count(80, 79), count(200, 81), tmp_path) is True
    assert moved(read_ring(79), read_ring(79, 80, age_s=-1.0), tmp_path) is False


def test_what_does_not_end_is_looked_at_although_more_is_launched() -> None:
    """After the threshold, and not only once the rank cannot launch any more."""
    progress = RankProgress(counts_alone=True)
    for second in range(12):
        status = counters(80 + second, 79)
        progress.take_counters("nccl", status, float(second), second * 10**9)
        urgent, _ = progress.doubtful(float(second), second * 10**9, 6.0)
        assert urgent == ({"nccl"} if second > 6 else set()), second
    progress.take_counters("nccl", counters(92, 80), 12.0, 12 * 10**9)
    assert progress.doubtful(12.0, 12 * 10**9, 6.0)[0] == set()
