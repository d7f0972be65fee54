"""Who reaches which others in a graph whose edges are bundled: all in a bundle point to all that it names.

Thousands of ranks that wait in one operation for thousands of others are one bundle and not millions of edges. Every
bundle is walked over once a search.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

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
    """Sets of at least two nodes that all reach each other and nothing outside, by their smallest member."""
    components = _Components(bundles, ends)
    for start in sorted(nodes):
        components.walk_from(start)
    return sorted(components.closed)


class _Components(Generic[B]):
    """Tarjan's search for strongly connected components, in which a bundle is a node of its own, numbered below 0."""

    def __init__(self, bundles: Mapping[int, Sequence[B]], ends: Callable[[B], Collection[int]]) -> None:
        self.closed: list[list[int]] = []
        """The members of each component of several that nothing leads out of."""
        self._bundles = bundles
        self._ends = ends
        self._bundle_of: dict[int, B] = {}
        self._order: dict[int, int] = {}
        self._low: dict[int, int] = {}
        """Per node its place in the order of the walk, and the earliest that it is known to reach."""
        self._path: list[int] = []
        self._on_path: set[int] = set()
        """Nodes whose component is not complete yet."""
        self._leaves: set[int] = set()
        """Nodes with an edge into a component that was completed before."""

    def walk_from(self, start: int) -> None:
        if start in self._order:
            return
        work = [(start, iter(self._enter(start)))]
        while work:
            node, others = work[-1]
            new = self._follow(node, others)
            if new is not None:
                work.append((new, iter(self._enter(new))))
                continue
            work.pop()
            parent = work[-1][0] if work else None
            if self._low[node] == self._order[node]:
                self._complete(node)
                if parent is not None:
                    self._leaves.add(parent)
            elif parent is not None:
                self._low[parent] = min(self._low[parent], self._low[node])

    def _enter(self, node: int) -> list[int]:
        """Give a node its place in the walk; where it leads."""
        self._order[node] = self._low[node] = len(self._order)
        self._path.append(node)
        self._on_path.add(node)
        if node < 0:
            return sorted(self._ends(self._bundle_of[node]))
        mine = []
        for bundle in self._bundles.get(node, ()):
            self._bundle_of[-1 - id(bundle)] = bundle
            mine.append(-1 - id(bundle))
        return mine

    def _follow(self, node: int, others: Iterator[int]) -> int | None:
        """The next node that was not walked over; None where all that `node` leads to was."""
        for other in others:
            if other not in self._order:
                return other
            if other in self._on_path:
                self._low[node] = min(self._low[node], self._order[other])
            else:
                self._leaves.add(node)
        return None

    def _complete(self, node: int) -> None:
        """Take the component off the path that this node was the first of."""
        component: list[int] = []
        while not component or component[-1] != node:
            component.append(self._path.pop())
        self._on_path.difference_update(component)
        members = sorted(member for member in component if member >= 0)
        if len(members) > 1 and self._leaves.isdisjoint(component):
            self.closed.append(members)
