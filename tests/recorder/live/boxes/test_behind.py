"""Which members of a communicator have launched less than others."""

from __future__ import annotations

from hangscope.recorder.live.boxes.behind import Member, waiting_members
from hangscope.recorder.live.boxes.live_box import LastCall, LiveComm

S = 1_000_000_000


def member(key: str, rank: int, hash_: int = 1, **last: tuple[int, int]) -> Member:
    calls = {func: LastCall(seq, at_s * S) for func, (seq, at_s) in last.items()}
    return Member(key, LiveComm(hash_, rank, 4, "", 0, len(calls), calls))


def test_who_launched_more_waits_for_who_launched_less() -> None:
    """Since the last launch of either; who is missing is said."""
    waits = waiting_members([member(str(n), n, AllReduce=(20, 100) if n != 2 else (19, 97)) for n in range(4)])
    assert [(w.member.key, w.func, w.seq, w.missing, w.since_ns) for w in waits] == [
        (str(n), "AllReduce", 20, ("2",), 100 * S) for n in (0, 1, 3)
    ]


def test_a_member_that_never_launched_is_awaited_in_the_first_call() -> None:
    """It has the communicator and nothing of it."""
    [wait] = waiting_members([member("a", 0, AllGather=(0, 5)), member("b", 1)])
    assert (wait.member.key, wait.seq, wait.missing) == ("a", 0, ("b",))


def test_members_that_are_as_far_wait_for_nobody() -> None:
    """Neither do those of another communicator, nor the root of a broadcast, which may go on alone."""
    assert not waiting_members([member("a", 0, AllReduce=(7, 1)), member("b", 1, AllReduce=(7, 9))])
    assert not waiting_members([member("a", 0, AllReduce=(7, 1)), member("b", 1, 2, AllReduce=(3, 9))])
    assert not waiting_members([member("a", 0, Broadcast=(7, 1)), member("b", 1, Broadcast=(3, 9))])


def test_two_processes_that_claim_one_place_say_nothing() -> None:
    """A number that was used twice is no communicator's."""
    assert not waiting_members([member("a", 0, AllReduce=(7, 1)), member("b", 0, AllReduce=(3, 1))])
