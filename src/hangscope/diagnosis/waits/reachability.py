"""Who reaches whom in a graph whose edges are bundled: everybody in a bundle points to everybody that it names.

Thousands of ranks that wait in one operation for thousands of others are one bundle and not millions of edges. Every
bundle is walked over once a search.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

B = TypeVar("B")


def search(
    starts: Iterable[int], bundles: Mapping[int, Sequence[B]], ends: Callable[[B], Collection[int]]
) -> dict[int, int | None]:
    """All that can be reached, the nearest first, each with the one that it was reached from.

    `bundles` are those that a node is in, `ends` where a bundle leads.
    """
    found: dict[int, int | None] = dict.fromkeys(starts)
    queue = deque(found)
    walked: set[int] = set()
    while queue:
        here = queue.popleft()
        new: set[int] = set()
        for bundle in bundles.get(here, ()):
            if id(bundle) not in walked:
                walked.add(id(bundle))
                new.update(ends(bundle))
        for other in sorted(new.difference(found)):
            found[other] = here
            queue.append(other)
    return found


def closed_sets(
    nodes: Iterable[int], bundles: Mapping[int, Sequence[B]], ends: Callable[[B], Collection[int]]
) -> list[list[int]]:
    """Sets of at least two nodes that all reach each other and nothing outside, by their smallest member.

    Tarjan's search for strongly connected components, in which a bundle is a node of its own.
    """
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    leaves: set[int] = set()
    """Nodes with an edge into a component that was closed before."""
    found: list[list[int]] = []
    names: dict[int, B] = {}

    def follow(node: int) -> list[int]:
        if node < 0:
            return sorted(ends(names[node]))
        mine = []
        for bundle in bundles.get(node, ()):
            names[-1 - id(bundle)] = bundle
            mine.append(-1 - id(bundle))
        return mine

    for start in sorted(nodes):
        if start in order:
            continue
        work: list[tuple[int, list[int], int]] = [(start, follow(start), 0)]
        order[start] = low[start] = len(order)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, others, at = work.pop()
            if at < len(others):
                other = others[at]
                work.append((node, others, at + 1))
                if other not in order:
                    order[other] = low[other] = len(order)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, follow(other), 0))
                elif other in on_stack:
                    low[node] = min(low[node], order[other])
                else:
                    leaves.add(node)
                continue
            if low[node] == order[node]:
                component: list[int] = []
                while not component or component[-1] != node:
                    component.append(stack.pop())
                    on_stack.discard(component[-1])
                members = sorted(member for member in component if member >= 0)
                if len(members) > 1 and leaves.isdisjoint(component):
                    found.append(members)
                if work:
                    leaves.add(work[-1][0])
            elif work:
                parent = work[-1][0]
                low[parent] = min(low[parent], low[node])
    return sorted(found)
