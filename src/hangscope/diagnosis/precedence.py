"""Which grounds go before which: layers, and within a layer the edges that causes declare.

A partial order: most grounds never meet, and of those that do, few need an edge. What neither a layer nor an edge
orders, `weigh.py` decides by the accusations themselves.
"""

from collections.abc import Iterable

from hangscope.diagnosis.accusation import Grounds


class Precedence:
    """The order of some grounds. Raises ValueError where it is none."""

    def __init__(self, grounds: Iterable[Grounds]) -> None:
        self._grounds: dict[str, Grounds] = {}
        for one in grounds:
            if one.name in self._grounds:
                raise ValueError(f"two grounds are called {one.name}")
            self._grounds[one.name] = one
        for one in self._grounds.values():
            self._check(one)
        self._after: dict[str, frozenset[str]] = {}
        for name in self._grounds:
            self._all_after(name, ())

    def goes_before(self, one: Grounds, other: Grounds) -> bool:
        """Whether an edge, or several one after the other, lead from one to the other."""
        return other.name in self._after[one.name]

    def _check(self, one: Grounds) -> None:
        for name in one.before:
            if name not in self._grounds:
                raise ValueError(f"{one.name} goes before {name}, and no grounds are called so")
            if self._grounds[name].layer is not one.layer:
                raise ValueError(f"{one.name} goes before {name}, which is of another layer: layers order those")

    def _all_after(self, name: str, path: tuple[str, ...]) -> frozenset[str]:
        """All grounds that come after some, directly or through others."""
        if name in path:
            raise ValueError(f"grounds go before each other: {' -> '.join((*path, name))}")
        if name not in self._after:
            following = self._grounds[name].before
            beyond = (self._all_after(other, (*path, name)) for other in following)
            self._after[name] = frozenset(following).union(*beyond)
        return self._after[name]
