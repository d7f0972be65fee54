"""The indexes and searches that rules look things up in say what a plain walk would say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hangscope.tables.graph import closed_sets, search
from hangscope.tables.index import ids, sort_by

VALUES = st.one_of(st.integers(-1, 5), st.integers(0, 1 << 40))
ROWS = st.integers(1, 3).flatmap(lambda n: st.lists(st.tuples(*[VALUES] * n), min_size=1, max_size=30))
NODES = st.integers(0, 7)
BUNDLES = st.lists(st.tuples(st.frozensets(NODES, min_size=1), st.frozensets(NODES, min_size=1)), max_size=6)
"""Who is in a bundle, and where it leads."""

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
