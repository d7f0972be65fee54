"""Searches in a graph whose edges are bundled find what a search over single edges finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hangscope.diagnosis.waits.reachability import closed_sets, search

NODES = st.integers(0, 7)
BUNDLES = st.lists(st.tuples(st.frozensets(NODES, min_size=1), st.frozensets(NODES, min_size=1)), max_size=6)
"""Who is in a bundle, and where it leads."""

Bundle = tuple[frozenset[int], frozenset[int]]


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
