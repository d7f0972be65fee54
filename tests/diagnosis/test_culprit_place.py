"""The line at which a culprit is, as data of the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hangscope import load
from hangscope.diagnosis import diagnose
from hangscope.diagnosis.evidence.code_lines import user_frame
from hangscope.diagnosis.verdict import Diagnosis, Place, SeenIn
from hangscope.model import FATAL_ERROR, CodeLines, Facts, Frame, Process, PythonError, Source, ThreadStack
from hangscope.report.terminal import render_text
from kits.small_jobs import Op, job

D = "default_pg"
SAVE = Frame("save", "/job/train.py", 8)
MODULE = Frame("<module>", "/job/train.py", 90)
WRITE = Frame("_write", "/usr/lib/python3.12/zipfile.py", 700)
SOURCE = Source("nodes/n1/source/lines.json", "files[0]")
LINES = {7: "def save(state):", 8: "    torch.save(state, PATH)", 9: ""}


def stack(*frames: Frame, rank: int = 2, sample: int = 1) -> ThreadStack:
    return ThreadStack(rank, 4700 + rank, "t", frames, Source(f"rank_{rank}.{sample}.txt"), main=True, sample=sample)


def absent(facts: Facts, **more: Any) -> Diagnosis:
    """Rank 2 never comes to the second all_reduce."""
    ops = {0: [Op(D), Op(D, state="started")], 1: [Op(D), Op(D, state="started")], 2: [Op(D)]}
    return diagnose(job({D: [0, 1, 2]}, ops, facts=facts, **more))


def place(verdict: Diagnosis) -> Place:
    (culprit,) = verdict.culprits
    assert culprit.where is not None
    return culprit.where


def test_a_stack_shows_the_line_and_the_whole_way_there() -> None:
    """File, line and function are of the user's innermost line, the frames begin inside of it."""
    found = place(absent(Facts(stacks=(stack(WRITE, SAVE, MODULE),))))
    assert (found.file, found.line, found.function) == ("/job/train.py", 8, "save")
    assert found.frames == (WRITE, SAVE, MODULE)
    assert (found.seen_in, found.code, found.around, found.moves) == (SeenIn.STACK, None, (), False)


def test_what_was_saved_of_the_source_stands_beside_it() -> None:
    """The line's text is that which this rank had, with the lines around it, in the first lines of the report."""
    other = CodeLines((0, 1), "/job/train.py", {8: "    something_else()"}, SOURCE)
    saved = CodeLines((2,), "/job/train.py", LINES, SOURCE)
    verdict = absent(Facts(stacks=(stack(SAVE, MODULE),), code=(other, saved)))
    assert place(verdict).code == "torch.save(state, PATH)"
    assert place(verdict).around == tuple(LINES.items())
    assert "at train.py:8 in save: torch.save(state, PATH)" in render_text(verdict, width=100)
    assert ">    8      torch.save(state, PATH)" in render_text(verdict, width=100, verbose=True)


@pytest.mark.parametrize(
    "saved",
    [
        CodeLines((0,), "/job/train.py", LINES, SOURCE),
        CodeLines((2,), "/job/other.py", LINES, SOURCE),
        CodeLines((2,), "/job/train.py", {80: "x = 1"}, SOURCE),
    ],
)
def test_no_other_source_is_taken_for_it(saved: CodeLines) -> None:
    """Another rank's file, another file and other lines say nothing about this line."""
    assert place(absent(Facts(stacks=(stack(SAVE, MODULE),), code=(saved,)))).code is None


def test_no_file_is_opened_by_a_name_in_the_evidence() -> None:
    """A stack that names a file of this machine does not bring its text into a verdict."""
    here = Frame("test", __file__, 1)
    assert place(absent(Facts(stacks=(stack(here, MODULE),)))).code is None


def test_a_rank_that_raised_is_where_it_raised() -> None:
    """The traceback is the place, with the line of source that Python printed, and no older stack."""
    frames = (MODULE, Frame("load", "/job/data.py", 12))
    error = PythonError(2, "ValueError", "bad", frames, Source("rank_2.log", "line 3"), code=("main()", "raise bad"))
    found = place(
        absent(Facts(errors=(error,), stacks=(stack(SAVE, MODULE),)), processes={2: Process(2, exit_status=1)})
    )
    assert (found.file, found.line, found.code) == ("/job/data.py", 12, "raise bad")
    assert found.seen_in is SeenIn.TRACEBACK
    assert found.frames == frames[::-1]


@pytest.mark.parametrize("message", ["Segmentation fault", "Aborted"])
def test_a_rank_that_a_fatal_signal_ended_is_where_that_came(message: str) -> None:
    """What faulthandler printed is the place of a crash, also of an abort, which may have come from elsewhere."""
    frames = (MODULE, SAVE)
    aborted = message == "Aborted"
    error = PythonError(2, FATAL_ERROR, message, frames, Source("rank_2.log", "line 3"), consequence=aborted)
    found = place(absent(Facts(errors=(error,)), processes={2: Process(2, exit_status=-6 if aborted else -11)}))
    assert (found.line, found.function, found.seen_in) == (8, "save", SeenIn.CRASH)


def test_nothing_known_is_null() -> None:
    """Without a stack of the culprit nobody says where it is, and the report does not either."""
    verdict = absent(Facts(stacks=(stack(SAVE, MODULE, rank=0),)))
    assert verdict.culprits[0].where is None
    assert "at train.py:8" not in render_text(verdict)


def test_two_looks_say_whether_it_moves() -> None:
    """A function in which the line changes between two samples is one that works."""
    later = stack(replace(SAVE, line=9), MODULE, sample=2)
    assert place(absent(Facts(stacks=(stack(SAVE, MODULE), later)))).moves


def test_another_call_is_the_place_of_a_mismatch() -> None:
    """A rank that called something else is accused at the line of that call."""
    ops = {
        0: [Op(D), Op(D, state="started")],
        1: [Op(D), Op(D, state="started")],
        2: [Op(D), Op(D, name="broadcast", state="started", line=33)],
    }
    found = place(diagnose(job({D: [0, 1, 2]}, ops)))
    assert (found.line, found.seen_in) == (33, SeenIn.CALL)


def test_a_saved_crash_stack_is_the_line(tmp_path: Path) -> None:
    """What faulthandler wrote when a signal ended a rank, and `run` saved with a head of its own, gives the line."""
    stacks = tmp_path / "nodes" / "a" / "stacks"
    stacks.mkdir(parents=True)
    (stacks / "rank_1.crash.txt").write_text(
        "# hangscope stacks rank=1 pid=7 sample=0 by=crash at=2026-11-18T21:45:33.345Z\n"
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007fe2602abb80 (most recent call first):\n"
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/job/train.py", line 239 in read_header\n  File "/job/train.py", line 248 in <module>\n'
    )
    (error,) = load(tmp_path).facts.errors
    assert user_frame(error.frames[::-1]) == Frame("read_header", "/job/train.py", 239)
