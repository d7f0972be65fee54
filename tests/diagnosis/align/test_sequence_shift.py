"""Whether one sequence follows another at a distance, and what a distance cannot explain."""

from __future__ import annotations

import numpy as np
import pytest

from hangscope.diagnosis.align.sequence_shift import find_shift, two_sides, usual

STEP = [1, 2, 3, 4]


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, dtype=np.int64)


def steps(count: int) -> list[int]:
    return STEP * count


@pytest.mark.parametrize("left_out", [1, 2, 3])
def test_calls_left_out_are_found_with_where_it_began(left_out: int) -> None:
    """Some calls of one step are missing: the rest follows that many numbers earlier, from that number on."""
    whole = steps(40)
    odd = whole[:80] + whole[80 + left_out :]
    found = find_shift(ints(*odd, *[-1] * left_out), ints(*whole))
    assert found is not None
    assert (found.start, found.by, found.begins) == (80, left_out, True)


def test_a_call_that_nobody_else_makes_was_added() -> None:
    """One call that is found nowhere, and from then on everything one number later."""
    whole = steps(40)
    odd = [*whole[:81], 99, *whole[81:-1]]
    found = find_shift(ints(*odd), ints(*whole))
    assert found is not None
    assert (found.start, found.by, found.begins, found.other_way) == (81, -1, True, None)


def test_a_shift_from_before_the_recording_has_no_beginning() -> None:
    """The ring holds only what came after: then nothing says where it began."""
    whole = steps(40)
    found = find_shift(ints(*whole[1:], -1), ints(*whole))
    assert found is not None
    assert (found.by, found.begins) == (1, False)


def test_a_whole_step_left_out_shows_where_something_is_not_in_every_step() -> None:
    """Every tenth step logs: a step left out moves that, while all other calls look the same."""
    whole = [call for number in range(60) for call in ([*STEP, 9] if number % 10 == 0 else STEP)]
    odd = whole[:100] + whole[104:]
    found = find_shift(ints(*odd, *[-1] * 4), ints(*whole))
    assert found is not None
    assert found.by == 4


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(steps(39), id="a whole step is missing"),
        pytest.param([5, 6, 7, 8] * 40, id="other lines all along"),
        pytest.param([1, 2, 3, 8] * 40, id="one line of its own"),
        pytest.param([4, 4, 4, 4] * 40, id="one call all the time"),
        pytest.param(steps(20) + STEP[1:] + [1] + steps(19), id="off for one step"),
        pytest.param(np.random.default_rng(7).integers(1, 5, 160).tolist(), id="by chance"),
    ],
)
def test_what_no_distance_explains_is_no_shift(odd: list[int]) -> None:
    """Roles, lines of one's own, chance, and what went back into place: none of them is a shift."""
    whole = steps(40)
    padded = [*odd, *[-1] * (len(whole) - len(odd))][: len(whole)]
    assert find_shift(ints(*padded), ints(*whole)) is None


def test_calls_that_all_look_alike_say_nothing() -> None:
    """One call a step from one line: displaced or not, it is the same."""
    assert find_shift(ints(*[1] * 99, -1), ints(*[1] * 100)) is None


def test_a_shift_of_a_moment_is_none() -> None:
    """The last calls of the recording alone are off: that may be over with the next one."""
    whole = steps(40)
    odd = whole[:150] + whole[151:]
    assert find_shift(ints(*odd, -1), ints(*whole)) is None


def test_the_usual_call_is_what_most_have() -> None:
    """A majority wins, an even split is a tie, and one rank alone is nobody to compare with."""
    table = np.asarray([[1, 1, 1, 5], [1, 1, 2, -1], [2, 1, -1, -1]])
    found, tied = usual(table)
    assert found.tolist() == [1, 1, -1, -1]
    assert tied.tolist() == [False, False, True, False]


def test_two_sides_have_the_same_size_and_agree_within() -> None:
    """Two and two are two sides; three and one are a majority; four that all differ are neither."""
    one = [1, 2] * 8
    other = [2, 1] * 8
    ((left, right),) = two_sides(np.asarray([one, other, one, other]))
    assert (left.tolist(), right.tolist()) == ([0, 2], [1, 3])
    assert not list(two_sides(np.asarray([one, one, one, other])))
    assert not list(two_sides(np.asarray([one, other, [3] * 16, [4] * 16])))
