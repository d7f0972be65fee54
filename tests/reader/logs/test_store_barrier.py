"""The barrier over the store at the start: how many came, and who did not where that follows."""
# ruff: noqa: E501  (log lines are quoted whole)

from __future__ import annotations

from hangscope.reader.logs.line_prefixes import split_prefix
from hangscope.reader.logs.store_barrier import StoreBarrier, StoreBarriers

ADDED = "INFO:torch.distributed.distributed_c10d:Added key: store_based_barrier_key:1 to store for rank: {}"
WAITING = "INFO:torch.distributed.distributed_c10d:Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 (world_size=4, worker_count={}, timeout=0:30:00)"
TIMED_OUT = "RuntimeError: Timed out initializing process group in store based barrier on rank: 3187, for key: store_based_barrier_key:209 (world_size=2048, worker_count=1792, timeout=0:30:00)"
LATER = "torch.distributed.DistStoreError: Timed out after 1801 seconds in store based barrier on rank 7, key: store_based_barrier_key:1 (world_size=8, num_workers_joined=4, timeout=0:30:00 error=wait timeout)"
COMPLETED = "INFO:torch.distributed.distributed_c10d:Rank 0: Completed store-based barrier for key:store_based_barrier_key:1 with 4 nodes."


def barriers(*lines: str) -> list[StoreBarrier]:
    found = StoreBarriers()
    for number, line in enumerate(lines, 1):
        found.feed(split_prefix(number, line))
    return found.not_completed


def test_how_many_came_is_read_in_every_wording() -> None:
    """PyTorch 1.x counts workers, 2.x those that joined."""
    assert [(b.waiter, b.came, b.size) for b in barriers(TIMED_OUT)] == [(3187, 1792, 2048)]
    assert [(b.waiter, b.came, b.size) for b in barriers(LATER)] == [(7, 4, 8)]
    assert [(b.waiter, b.came, b.size) for b in barriers(WAITING.format(1), WAITING.format(3))] == [(0, 3, 4)]


def test_who_is_missing_follows_where_all_who_came_say_so() -> None:
    """Three of four added themselves, and the count agrees."""
    came = [ADDED.format(rank) for rank in (0, 1, 3)]
    assert barriers(*came, WAITING.format(3))[0].missing == (2,)


def test_who_is_missing_is_not_guessed() -> None:
    """Not where somebody who came is not in the log, nor where most did not come."""
    assert barriers(ADDED.format(0), WAITING.format(3))[0].missing == ()
    assert barriers(ADDED.format(0), WAITING.format(1))[0].missing == ()
    assert barriers(TIMED_OUT)[0].missing == ()


def test_a_barrier_that_was_completed_is_no_failure() -> None:
    """A slow start prints the same notes."""
    assert barriers(WAITING.format(3), COMPLETED) == []
