"""Numbers and orders of whole columns are what a plain walk would give."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from hangscope.diagnosis.align.column_tools import ids, sort_by

VALUES = st.one_of(st.integers(-1, 5), st.integers(0, 1 << 40), st.integers((1 << 63) - 3, (1 << 63) - 1))
ROWS = st.integers(1, 3).flatmap(lambda n: st.lists(st.tuples(*[VALUES] * n), min_size=1, max_size=30))


LARGEST = [((1 << 63) - 1,), (-1,), (0,), (5,)]


@given(ROWS)
@example(LARGEST)
def test_equal_rows_have_equal_ids_in_the_order_of_their_values(rows: list[tuple[int, ...]]) -> None:
    """A row's id is its place among the distinct rows, however large the values are."""
    found = ids(*np.asarray([*rows, *rows], dtype=np.int64).T).tolist()
    order = {row: number for number, row in enumerate(sorted(set(rows)))}
    assert found == [order[row] for row in (*rows, *rows)]


@given(ROWS)
@example(LARGEST)
def test_rows_are_sorted_and_stay_in_order_where_they_are_equal(rows: list[tuple[int, ...]]) -> None:
    """As a stable sort does, by the first column first."""
    found = sort_by(*np.asarray(rows, dtype=np.int64).T).tolist()
    assert found == sorted(range(len(rows)), key=lambda row: rows[row])
