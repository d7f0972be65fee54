"""The indexes and searches that rules look things up in say what a plain walk would say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hangscope.diagnosis.align.op_index import Index, ids, sort_by
from hangscope.diagnosis.align.p2p_calls import Transfers
from hangscope.diagnosis.waits.reachability import closed_sets, search
from hangscope.model import COLUMNS, UNKNOWN, Kind, Operations, Tables

VALUES = st.one_of(st.integers(-1, 5), st.integers(0, 1 << 40))
ROWS = st.integers(1, 3).flatmap(lambda n: st.lists(st.tuples(*[VALUES] * n), min_size=1, max_size=30))
NODES = st.integers(0, 7)
BUNDLES = st.lists(st.tuples(st.frozensets(NODES, min_size=1), st.frozensets(NODES, min_size=1)), max_size=6)
"""Who is in a bundle, and where it leads."""

FEW = st.integers(0, 2)
CALLS = st.lists(st.tuples(FEW, FEW, st.sampled_from(Kind), FEW, FEW, st.integers(-1, 9)), max_size=40)
"""Rank, group, kind, source, destination and number of recorded calls."""

Bundle = tuple[frozenset[int], frozenset[int]]


@given(ROWS)
def test_equal_rows_have_equal_ids_in_the_order_of_their_values(rows: list[tuple[int, ...]]) -> None:
    """A row's id is its place among the distinct rows, however large the values are."""
    found = ids(*np.asarray([*rows, *rows], dtype=np.int64).T, np.zeros(2 * len(rows), dtype=np.int64)).tolist()
    order = {row: number for number, row in enumerate(sorted(set(rows)))}
    assert found == [order[row] for row in (*rows, *rows)]


@given(ROWS)
def test_rows_are_sorted_and_stay_in_order_where_they_are_equal(rows: list[tuple[int, ...]]) -> None:
    """As a stable sort does, by the first column first."""
    found = sort_by(*np.asarray(rows, dtype=np.int64).T).tolist()
    assert found == sorted(range(len(rows)), key=lambda row: rows[row])


def recorded(calls: list[tuple[int, ...]]) -> Operations:
    columns = {name: np.full(len(calls), UNKNOWN, dtype=kind) for name, kind in COLUMNS.items()}
    for place, name in enumerate(("rank", "group", "kind", "source", "destination", "seq")):
        columns[name][:] = [call[place] for call in calls]
    return Operations(columns, Tables(), ())


@given(CALLS)
def test_a_pair_of_rank_and_group_has_what_a_walk_finds(calls: list[tuple[int, ...]]) -> None:
    """Its rows as recorded, and the largest and smallest number among those that are asked for."""
    calls = sorted(calls, key=lambda call: call[0])
    pairs, seq = Index(recorded(calls)).pairs, np.asarray([call[5] for call in calls], dtype=np.int64)
    numbered = zip(pairs.rank, pairs.group, pairs.largest(seq, seq >= 0), pairs.smallest(seq, seq >= 0), strict=True)
    assert list(zip(pairs.rank, pairs.group, strict=True)) == sorted({call[:2] for call in calls})
    for rank, group, largest, smallest in numbered:
        rows = [row for row, call in enumerate(calls) if call[:2] == (rank, group)]
        known = [calls[row][5] for row in rows if calls[row][5] >= 0]
        assert pairs.rows(rank, group).tolist() == rows
        assert (largest, smallest) == (max(known, default=UNKNOWN), min(known, default=(1 << 63) - 1))
    assert not len(pairs.rows(3, 0))


@given(CALLS)
def test_transfers_are_what_a_walk_finds(calls: list[tuple[int, ...]]) -> None:
    """Of two ranks and a group, the sender's sends and the receiver's receives, as recorded."""
    calls = sorted(calls, key=lambda call: call[0])
    found = Transfers(recorded(calls))
    for owner, source, destination, group in np.ndindex(3, 3, 3, 3):
        kind = Kind.SEND if owner == source else Kind.RECV
        wanted = (owner, group, kind, source, destination)
        assert found.of(owner, source, destination, group).tolist() == [
            row for row, call in enumerate(calls) if call[:5] == wanted
        ]


def edges(bundles: list[Bundle]) -> dict[int, set[int]]:
    return {node: {end for inside, ends in bundles if node in inside for end in ends} for node in range(8)}


def reached(start: int, graph: dict[int, set[int]]) -> set[int]:
    found, new = {start}, {start}
    while new:
        new = {other for node in new for other in graph[node]} - found
        found |= new
    return found


def held(bundles: list[Bundle]) -> dict[int, list[Bundle]]:
    return {node: [bundle for bundle in bundles if node in bundle[0]] for node in range(8)}


@given(NODES, BUNDLES)
def test_a_search_over_bundles_finds_what_one_over_edges_finds(start: int, bundles: list[Bundle]) -> None:
    """All that can be reached, each from a node that leads there and was found before it."""
    graph = edges(bundles)
    found = search([start], held(bundles), lambda bundle: bundle[1])
    assert found.keys() == reached(start, graph)
    order = list(found)
    for node, before in found.items():
        assert node == start or (node in graph[before] and order.index(before) < order.index(node))


@given(BUNDLES)
def test_closed_sets_are_those_without_a_way_out(bundles: list[Bundle]) -> None:
    """Nodes that reach each other and, together, nothing else; one alone is no such set."""
    graph = edges(bundles)
    reach = {node: reached(node, graph) for node in graph}
    wanted = {tuple(sorted(reach[node])) for node in graph if all(node in reach[other] for other in reach[node])}
    found = closed_sets(range(8), held(bundles), lambda bundle: bundle[1])
    assert found == sorted(list(members) for members in wanted if len(members) > 1)
