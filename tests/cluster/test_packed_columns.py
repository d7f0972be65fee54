"""What travels between machines is what was read, in fewer bytes."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hangscope.cluster.packed_columns import pack, pack_dump, unpack, unpack_dump
from hangscope.reader.dumps import dump_file
from hangscope.simulate import Spec, simulate

ANY = st.integers(-1, (1 << 63) - 1)


@given(st.lists(st.one_of(st.integers(-1, 300), ANY), max_size=40), st.sampled_from(["<i8", "<i4", "|i1"]))
def test_every_column_comes_back_as_it_was(values: list[int], kind: str) -> None:
    """Values and type, whatever a hostile file put into them."""
    top = np.iinfo(kind).max
    column = np.asarray([min(value, top) for value in values], dtype=kind)
    back = unpack(pickle.loads(pickle.dumps(pack(column))))
    assert back.dtype == column.dtype
    assert np.array_equal(back, column)


def test_a_summary_is_a_fraction_of_the_dump() -> None:
    """A rank's dump travels in less than a quarter of its bytes, and nothing of it is lost."""
    data = simulate(Spec(ranks=8, entries=2000, fault="absent", seed=1)).dump(0)
    assert data is not None
    read, sent = (dump_file.read(data, file="rank_0") for _ in range(2))
    pack_dump(sent)
    assert len(pickle.dumps(sent)) * 4 < len(data)
    unpack_dump(sent)
    assert all(np.array_equal(read.columns[n], c, equal_nan=n == "duration_ms") for n, c in sent.columns.items())
