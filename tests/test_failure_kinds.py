"""The catalogue of kinds of failure: one row each, and no kind named by its text anywhere else."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import hangscope
from hangscope.diagnosis import diagnose
from hangscope.failure_kinds import Trait
from hangscope.model import Facts, Failure, FailureKind, Source
from hangscope.verdict_words import CauseKind
from kits.small_jobs import job

PACKAGE = Path(hangscope.__file__).parent
OTHER_MEANINGS = {
    "cuda_error": "what PyTorch's watchdog and NCCL's warnings call it",
    "xid": "a message of the kernel",
    "exit": "a group of a pattern, and a key of rosters",
    "signal": "a group of a pattern, and Python's module",
    "other": "a group of a pattern, and a kind of much else",
    "mismatch": "a kind of cause",
    "missing_ranks": "a key of RAS",
    "port_errors": "grounds of a cause",
}
SAID_OTHERWISE = {
    *(FailureKind.LAUNCHER_SIGNAL, FailureKind.LAUNCHER_KILL),  # by the signal
    *(FailureKind.NODE_FAILED, FailureKind.NODE_SILENT),  # of the node, with all of its ranks
}
MAKERS = {"Failure", "make_failure", "_failure", "_add", "_add_failure"}
FIELDS = {"code", "joined", "store", "detail", "sender", "gpu", "node", "ranks"}


def literals(path: Path) -> Iterator[ast.Constant]:
    kinds = {str(kind) for kind in FailureKind}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        name = node.func if isinstance(node, ast.Call) else None
        makes = getattr(name, "id", getattr(name, "attr", "")) in MAKERS
        for child in ast.iter_child_nodes(node):
            if (
                isinstance(child, ast.Constant)
                and child.value in kinds
                and (makes or child.value not in OTHER_MEANINGS)
            ):
                yield child


@pytest.mark.parametrize("room", ["reader", "wordings", "sources", "diagnosis", "cluster", "report", "server"])
def test_no_kind_is_named_by_its_text(room: str) -> None:
    """Whoever means a kind says `FailureKind.X`: a kind is renamed, and found, in one place."""
    found = {
        f"{path.relative_to(PACKAGE)}: {node.value}"
        for path in (PACKAGE / room).rglob("*.py")
        for node in literals(path)
    }
    assert not found


@pytest.mark.parametrize("kind", FailureKind, ids=str)
def test_every_row_can_be_said(kind: FailureKind) -> None:
    """Its sentence has only what a line can fill in, and its step is no sentence with blanks."""
    assert {field for _, field, _, _ in string.Formatter().parse(kind.says) if field} <= FIELDS
    assert kind.says and not kind.says.endswith(".")
    assert "{" not in kind.step


def test_traits_do_not_contradict_each_other() -> None:
    """What ends a process is no warning that a job outlives, and who took what two need is accused of a mismatch."""
    for kind in FailureKind:
        assert not (kind.is_of(Trait.TAKEN_AWAY) and kind.is_of(Trait.WARNING))
        if kind.is_of(Trait.TAKEN_TWICE):
            assert kind.accuses is CauseKind.MISMATCH
        if kind.is_of(Trait.MISSING):
            assert kind.accuses is CauseKind.ABSENT and kind.is_of(Trait.WAITED)


def test_a_kind_is_its_text() -> None:
    """In JSON, and for whoever compares it."""
    assert Failure.__annotations__["kind"] == "FailureKind"
    assert FailureKind("gpu_oom") is FailureKind.GPU_OOM == "gpu_oom"
    assert f"{FailureKind.GPU_OOM}" == "gpu_oom"


@pytest.mark.parametrize("kind", FailureKind, ids=str)
def test_a_row_is_all_that_a_kind_needs_to_be_said(kind: FailureKind) -> None:
    """A line of any kind leads to a verdict in the words of its row, with its step, and accuses whom the row says."""
    line = Failure(kind, "a line of it", Source("job.log", "line 7"), 1, "n1", ranks=(2,), code=-9, detail="mlx5_0")
    verdict = diagnose(job({"g": [0, 1, 2]}, {}, facts=Facts(failures=(line,))))
    said = max(re.split(r"\{[^}]*\}", kind.says), key=len).strip(" ()")
    if kind not in SAID_OTHERWISE:
        assert said in f"{verdict.headline} {verdict.summary}"
    if kind.step and kind is not FailureKind.CANCELLED:
        assert any(kind.step in step for step in verdict.next_steps)
    assert verdict.kind == kind.accuses
