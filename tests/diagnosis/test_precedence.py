"""The order of grounds: a partial one, of layers and of edges, and nothing else passes for one."""

from __future__ import annotations

import pytest

from hangscope.diagnosis.accusation import HIGH, Grounds, Layer
from hangscope.diagnosis.precedence import Precedence


def grounds(name: str, *before: str, layer: Layer = Layer.SIGNS) -> Grounds:
    return Grounds(name, layer, HIGH, "for a test", dict.fromkeys(before, "a test"))


def test_edges_lead_on() -> None:
    """What goes before something goes before all that comes after it; what no edge joins is not ordered."""
    first = grounds("a", "b")
    second = grounds("b", "c")
    third = grounds("c")
    beside = grounds("d")
    order = Precedence([third, beside, first, second])
    assert order.goes_before(first, third)
    assert not order.goes_before(third, first)
    assert not order.goes_before(first, beside)
    assert not order.goes_before(beside, first)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([grounds("a", "b"), grounds("b", "c"), grounds("c", "a")], "a -> b -> c -> a"),
        ([grounds("a", "a")], "a -> a"),
        ([grounds("a", "b")], "no grounds are called so"),
        ([grounds("a", "b"), grounds("b", layer=Layer.NO_HANG)], "another layer"),
        ([grounds("a"), grounds("a")], "two grounds"),
    ],
)
def test_what_is_no_order_is_refused(wrong: list[Grounds], why: str) -> None:
    """A circle, a name that nobody has, one that two have, and an edge between layers, which order those already."""
    with pytest.raises(ValueError, match=why):
        Precedence(wrong)
