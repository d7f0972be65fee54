"""Different operations at one number, by the watchdog's lines alone."""

from __future__ import annotations

from kits.pasted_logs import short, timeout, verdict_on

DEFAULT = "PG ID 0 PG GUID 0(default_pg) "


def test_the_odd_operation_is_found_by_majority() -> None:
    """Two ranks reduce, one gathers."""
    text = timeout(0, "REDUCE", 3742816) + timeout(1, "REDUCE", 3742816) + timeout(5, "_ALLGATHER_BASE", 3742816)
    found = verdict_on(text)
    assert short(found) == ("hang", "mismatch", [5])
    assert found.confidence == "low"  # no line names the group, so it may be another one's number


def test_a_named_group_makes_it_surer() -> None:
    """All lines speak of one group."""
    text = "".join(timeout(rank, group=DEFAULT) for rank in range(3)) + timeout(3, "BROADCAST", group=DEFAULT)
    found = verdict_on(text)
    assert short(found) == ("hang", "mismatch", [3])
    assert found.confidence == "medium"


def test_two_sides_accuse_nobody() -> None:
    """One rank each: they took different ways, and nobody can say which is wrong."""
    found = verdict_on(timeout(0, "ALLREDUCE") + timeout(4, "BROADCAST"))
    assert short(found) == ("hang", "mismatch", [])
    assert "rank 0 runs all_reduce" in found.headline and "rank 4 runs broadcast" in found.headline


def test_two_sizes_of_one_named_operation_are_two_sides() -> None:
    """A broadcast has one size on all ranks; with two of them nobody can say whose is wrong."""
    text = timeout(2, "BROADCAST", group=DEFAULT)
    other = text.replace("[rank2]", "[rank3]").replace("Rank 2]", "Rank 3]").replace("NumelIn=", "NumelIn=9")
    found = verdict_on(text + other)
    assert short(found) == ("hang", "mismatch", [])
    assert "elements" in found.headline
    gathered = (text + other).replace("BROADCAST", "GATHER")
    assert short(verdict_on(gathered))[1] != "mismatch"


def test_different_numbers_are_not_compared() -> None:
    """Who is at another number is ahead or behind."""
    assert short(verdict_on(timeout(0, "ALLREDUCE", 16) + timeout(4, "BROADCAST", 17)))[1] != "mismatch"
    assert short(verdict_on(timeout(0, "SEND", 16) + timeout(1, "RECV", 16)))[1] != "mismatch"
