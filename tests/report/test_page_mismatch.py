"""The matrix and the engine agree on who made another call: they read one alignment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hangscope
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Job
from hangscope.report.page.render_page import render_page
from kits.page_data import data_of
from kits.small_jobs import SECOND, Op, job, recv, send

CASES = Path(__file__).parents[1] / "cases"
RANKS = range(4)
ODD = 2
OTHER_CALL = set("DTt")
"""The cells that are marked: another call than most of the group, completed, started or scheduled."""
NOT_LAUNCHED = set("-?")

ROUNDS = 8
COLLECTIVES = (
    *("all_reduce", "all_gather", "_all_gather_base", "reduce_scatter", "_reduce_scatter_base", "all_to_all"),
    *("broadcast", "reduce", "gather", "scatter", "barrier"),
)
"""As NCCL's recorder names them; all_gather_into_tensor and reduce_scatter_tensor are the two with `_base`."""
FREE_IN_SIZE = {
    "all_to_all": "what all send must be what all expect, and here it is",
    "scatter": "only the root has a list, and the recorder has its two sides the other way round",
}
"""Where another size on one rank is no mismatch, and why."""

Calls = list[Op]


def before() -> Calls:
    """What all ranks did alike, round after round."""
    return [op for _ in range(ROUNDS) for op in (Op("dp", elements=64, line=20), Op("dp", "broadcast", line=30))]


def started(*calls: Op) -> Calls:
    """Calls of which the last is the one that hangs."""
    return [*calls[:-1], replace(calls[-1], state="started")]


def hung(usual: Calls, odd: Calls, **more: Any) -> Job:
    """A job in which one rank went on otherwise than the rest, and nobody comes further."""
    return job({"dp": list(RANKS)}, {rank: [*before(), *(odd if rank == ODD else usual)] for rank in RANKS}, **more)


# ---- shapes of a mismatch: what all others call, and what the odd rank calls there -----------------------------------


def other_operation(call: Op) -> tuple[Calls, Calls]:
    other = "reduce" if call.name != "reduce" else "gather"
    return started(call), started(replace(call, name=other, line=99))


def other_size(call: Op) -> tuple[Calls, Calls]:
    return started(call), started(replace(call, elements=call.elements + 1, out=call.elements + 1))


def other_type(call: Op) -> tuple[Calls, Calls]:
    return started(call), started(replace(call, dtype="BFloat16"))


def skipped(call: Op) -> tuple[Calls, Calls]:
    follow = [Op("dp", elements=size, line=50 + size) for size in (3, 5)]
    return [call, *started(*follow)], started(*follow)


def added(call: Op) -> tuple[Calls, Calls]:
    usual, odd = skipped(call)
    return odd, usual


SHAPES: dict[str, Callable[[Op], tuple[Calls, Calls]]] = {
    "operation": other_operation,
    "size": other_size,
    "type": other_type,
    "skipped": skipped,
    "added": added,
}


# ---- what the page draws ---------------------------------------------------------------------------------------------


def rows_of(verdict: Diagnosis, found: Job) -> dict[int, str]:
    """Each rank's cells in the matrix."""
    return {row["ranks"][0][0]: row["cells"] for row in data_of(render_page(verdict, found))["matrix"]["rows"]}


def marked(verdict: Diagnosis, found: Job) -> set[int]:
    """The ranks with a call that the matrix marks as another one."""
    return {rank for rank, cells in rows_of(verdict, found).items() if OTHER_CALL & set(cells)}


def accused(verdict: Diagnosis) -> set[int]:
    assert verdict.kind == "mismatch", verdict.headline
    return {culprit.rank for culprit in verdict.culprits}


@pytest.mark.parametrize("stacks", [True, False], ids=["lines", "no-lines"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_the_engine_accuses_the_matrix_marks(name: str, shape: str, stacks: bool) -> None:
    """Whatever the operation and the shape of the mismatch: the matrix marks the accused rank's call, and no other."""
    found = hung(*SHAPES[shape](Op("dp", name, line=40)), stacks=stacks)
    verdict = hangscope.diagnose(found)
    if shape == "size" and name in FREE_IN_SIZE:
        assert verdict.kind != "mismatch"
        assert not marked(verdict, found)
        return
    assert accused(verdict) == {ODD}
    assert marked(verdict, found) == {ODD}


def test_other_splits_are_marked() -> None:
    """An all_to_all in which one rank sends another number of elements than is expected of it."""
    call = Op("dp", "all_to_all", line=40)
    found = hung(started(call), started(replace(call, elements=12, out=16)))
    verdict = hangscope.diagnose(found)
    assert "split sizes" in verdict.headline
    assert accused(verdict) == marked(verdict, found) == {ODD}


def batch(number: int, *calls: Op, closed_by: str) -> Calls:
    """Several calls as one: only the closing entry tells them from single ones."""
    inside = [replace(call, batch=number) for call in calls]
    return [*inside, Op("dp", closed_by, elements=0, line=40, batch=number, closes=True)]


@pytest.mark.parametrize("shape", ["size", "type"])
def test_another_call_inside_a_coalesced_batch_is_marked(shape: str) -> None:
    """Coalesced collectives are one position: a rank whose batch holds another call is accused and marked."""
    call = Op("dp", "all_reduce", line=40, state="started")
    odd = SHAPES[shape](call)[1][0]
    closing = "allreduce_coalesced"
    found = hung(started(*batch(7, call, call, closed_by=closing)), started(*batch(7, call, odd, closed_by=closing)))
    verdict = hangscope.diagnose(found)
    assert accused(verdict) == marked(verdict, found) == {ODD}


def ring(rank: int, step: int, to: int | None = None) -> Calls:
    """One exchange around the ring, as one batch."""
    onward = (rank + 1) % len(RANKS) if to is None else to
    calls = (send("dp", onward, line=60), recv("dp", (rank - 1) % len(RANKS), line=60))
    return batch(step, *calls, closed_by="coalesced")


def exchanged(*, batched: bool) -> Job:
    """Six exchanges around a ring, and a seventh in which the odd rank sends to another peer.

    A batch is recorded before it is launched: one that is stuck connecting to the wrong peer reads as completed.
    """
    ranks: dict[int, Calls] = {}
    for rank in RANKS:
        last = ring(rank, 6, to=0 if rank == ODD else None)
        if rank != ODD or not batched:
            last = [replace(op, state="started") for op in last]
        calls = [op for step in range(6) for op in ring(rank, step)] + last
        singles = [replace(op, batch=None) for op in calls if not op.closes]
        ranks[rank] = [Op("dp", line=10), *(calls if batched else singles)]
    return job({"dp": list(RANKS)}, ranks)


@pytest.mark.parametrize("batched", [True, False], ids=["batch", "single"])
def test_a_send_to_another_peer_is_marked(batched: bool) -> None:
    """Of a rank that sends to another peer than the one that waits for it, the send is marked, among the sends."""
    found = exchanged(batched=batched)
    verdict = hangscope.diagnose(found)
    assert accused(verdict) == marked(verdict, found) == {ODD}
    drawn = data_of(render_page(verdict, found))["matrix"]
    assert [block["label"] for block in drawn["blocks"] if block["hung"]] == ["send and recv"]


@pytest.mark.parametrize("name", sorted(path.parent.name for path in CASES.glob("*/truth.json")))
def test_recorded_mismatches_are_marked(name: str) -> None:
    """Of every recorded mismatch the accused rank's call is marked, or missing where nothing of it was recorded."""
    found = hangscope.load(CASES / name)
    verdict = hangscope.diagnose(found)
    if verdict.kind != "mismatch":
        return
    cells = rows_of(verdict, found)
    for rank in accused(verdict):
        assert OTHER_CALL & set(cells[rank]) or NOT_LAUNCHED & set(cells[rank]), cells


def test_a_hung_batch_of_sends_is_drawn_among_sends() -> None:
    """A batch of sends and receives counts on a scale of its own: it is never drawn at a collective's number."""
    found = hangscope.load(CASES / "coalesced")
    verdict = hangscope.diagnose(found)
    assert verdict.operation is not None and verdict.operation.name == "coalesced"
    drawn = data_of(render_page(verdict, found))["matrix"]
    assert [block["label"] for block in drawn["blocks"] if block["hung"]] == ["send and recv"]
    assert rows_of(verdict, found)[3][len(drawn["blocks"][0]["columns"]) - 1] == "-"


def test_a_call_from_a_line_of_its_own_is_marked() -> None:
    """A broadcast that one rank called from another line, after which members fall apart, is marked on that rank."""
    call = Op("dp", "broadcast", line=30)
    after = Op("dp", "all_reduce", line=70)
    found = hung([call, after], [replace(call, line=31), replace(after, state="started")])
    verdict = hangscope.diagnose(found)
    assert "possibly with a different root" in verdict.headline
    assert accused(verdict) == marked(verdict, found) == {ODD}


def test_equal_sides_are_both_marked() -> None:
    """Of two ranks that disagree nobody can say who is wrong: both are accused, and both are marked."""
    first, second = other_size(Op("dp", line=40))
    found = job({"dp": [0, 1]}, {0: [*before(), *first], 1: [*before(), *second]})
    verdict = hangscope.diagnose(found)
    assert accused(verdict) == marked(verdict, found) == {0, 1}


def test_a_dump_that_was_set_aside_makes_nobody_look_absent() -> None:
    """A dump of an older attempt that reaches further is not drawn: its rank is not known, the others wait."""
    usual = started(Op("dp", line=40))
    found = hung(usual, [Op("dp", line=40) for _ in range(20)])
    for name in ("created_ns", "started_ns", "completed_ns"):
        column = found.ops.column(name)
        column[found.ops.span(ODD)] -= 3600 * SECOND
    verdict = hangscope.diagnose(found)
    assert any("not of this attempt" in gap.what for gap in verdict.gaps)
    cells = rows_of(verdict, found)
    assert set(cells[ODD]) == {"?"}
    assert all("-" not in cells[rank] for rank in RANKS if rank != ODD)
