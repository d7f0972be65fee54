"""Looks at the rings with stacks: when, of whom, and what is made of the answers."""

from __future__ import annotations

import pytest

from hangscope.recorder.live.looks import ANSWERS_S, FIRST_S, Looks, until_next


def test_the_first_look_comes_some_time_after_the_first_rank_moved() -> None:
    """Before anybody moves there is nothing to look at; then the start is left alone for a while."""
    looks = Looks()
    assert not looks.is_due(5.0, moving=False)
    assert not looks.is_due(6.0, moving=True)
    assert not looks.is_due(6.0 + FIRST_S - 1, moving=True)
    assert looks.is_due(6.0 + FIRST_S, moving=True)
    assert not looks.is_due(6.0 + FIRST_S, moving=False)


def test_looks_come_ever_more_seldom() -> None:
    """The pause grows to a quarter of an hour, whatever the clock shows."""
    looks = Looks()
    assert looks.is_due(0.0, moving=True) is False
    now = FIRST_S
    pauses = []
    for _ in range(8):
        assert looks.is_due(now, moving=True)
        looks.begin(now, 0, [])
        looks.finished(now)
        begun = now
        while not looks.is_due(now, moving=True):
            now += 1.0
        pauses.append(now - begun)
    assert 60 <= pauses[0] <= 181
    assert all(450 <= pause <= 1351 for pause in pauses[-3:])


@pytest.mark.parametrize("pause", [3.0, 120.0, 900.0])
def test_all_nodes_look_at_the_same_times_by_the_clock(pause: float) -> None:
    """Nodes that looked some seconds apart meet at the next time; it is never at once."""
    clock = 1_794_970_000.0
    first, second = (clock + late + until_next(clock + late, pause) for late in (0.0, pause / 20))
    assert first % pause == pytest.approx(0.0, abs=1e-3)
    assert first == pytest.approx(second) or abs(first - second) == pytest.approx(pause)
    assert pause / 2 <= until_next(clock, pause) <= 1.5 * pause


def test_a_look_is_what_came_in_time() -> None:
    """A look ends when all have answered, or after its time; an answer to another look is none of it."""
    looks = Looks(5.0)
    looks.begin(100.0, 77, [(0, "nccl"), (1, "nccl")])
    looks.take(0, "nccl", b"ring")
    looks.take(2, "nccl", b"nobody asked")
    assert looks.finished(101.0) is None
    late = looks.finished(100.0 + ANSWERS_S)
    assert late is not None
    assert (late.launched, late.rings) == (77, {0: {"nccl": b"ring"}})
    looks.take(1, "nccl", b"too late")
    assert looks.finished(200.0) is None
    looks.begin(300.0, 99, [(0, "nccl")])
    looks.take(0, "nccl", b"")
    empty = looks.finished(300.0)
    assert empty is not None
    assert empty.rings == {}
