"""What hangscope does wrong costs a line, a file, a cause or a block, with the reason, and never the verdict.

The mistakes are planted: a reader, a cause or a block is replaced by one that raises.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

import hangscope.diagnosis
from hangscope.diagnosis import diagnose
from hangscope.diagnosis.causes import CAUSES
from hangscope.errors import RAISE, LeftOut, NotFoundError, contained
from hangscope.reader import load as loading
from hangscope.reader import recognise_file
from hangscope.reader.load import load
from hangscope.reader.logs.nccl_logs import NcclLog
from hangscope.report import terminal, ticket
from hangscope.report.export import to_json
from hangscope.report.op_times import op_times
from hangscope.report.page import render_page as page
from hangscope.sources.nccl_ras.read import Answer as RasAnswer
from hostile import fuzz_lines
from kits.pasted_logs import verdict_on

CASE = Path(__file__).parent / "cases" / "ddp_shift"
CRASH = "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: too long\n"


@pytest.fixture
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistakes are contained, as outside our own tests."""
    monkeypatch.delenv(RAISE)


def fail(*_: Any, **__: Any) -> NoReturn:
    """A mistake."""
    raise ZeroDivisionError("secret words of the input")


# ---- lines -----------------------------------------------------------------------------------------------------------

MOMENTS = ("9999-12-31T23:59:59-08:00", "0001-01-01T00:00:00+08:00", "2026-13-01T00:00:00Z")
TIMES = (
    *("token expires {}", "[{}] INFO start", "{} [rank0]: step 3", "n1:7:7 [0] {} NCCL WARN x", "  time      : {}"),
    "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT {} ***",
)
LINES = (
    "srun: error: cn601: task 7: Exited with exit code 2",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got signal: ²",
    f"srun: error: n1: task {'9' * 5000}: Exited with exit code 2",
    f"[rank{'9' * 5000}]: RuntimeError: x",
    "[rank٣]:[E١١١٥ ٠٦:٠١:٥٧.٥ ProcessGroupNCCL.cpp:٦٨٩] [Rank ٣] Watchdog caught collective operation timeout: x",
    *(shape.format(moment) for shape in TIMES for moment in MOMENTS),
)


@pytest.mark.parametrize("line", LINES)
def test_a_line_with_values_that_no_line_has_costs_itself_alone(line: str) -> None:
    """What else the log says is read, and the rank that raised is named."""
    verdict = verdict_on(f"{line}\nsome other line\n{CRASH}")
    assert 1 in [culprit.rank for culprit in verdict.culprits] or "rank 1" in verdict.summary


def test_the_line_that_took_slurm_s_verdict_is_a_verdict() -> None:
    """An end by status 2 in the first lines of a log is an end, and no program that was not found."""
    verdict = verdict_on("srun: error: cn601: task 1: Exited with exit code 2\n")
    assert (str(verdict.outcome), [culprit.rank for culprit in verdict.culprits]) == ("crash", [1])


def test_no_value_in_any_known_line_takes_a_verdict_away() -> None:
    """Numbers, times, scripts, lengths and bytes that no line has, in every wording that is known; ten seconds of them,
    and a minute or an hour by hand."""
    done = fuzz_lines.fuzz("ci", seconds=8)
    assert not done.failures, "\n".join(done.failures)
    assert done.lines > 500


# ---- readers ---------------------------------------------------------------------------------------------------------


def test_a_reader_that_raises_costs_its_own_line(
    tmp_path: Path, as_for_users: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason, and without the words of what was read; the lines of other readers count."""
    monkeypatch.setattr(NcclLog, "feed", lambda self, line: fail() if "boom" in line.text else False)
    (tmp_path / "job.log").write_text(f"[rank0]: RuntimeError: boom\n{CRASH}")
    job = load(tmp_path)
    [gap] = [gap for gap in job.gaps if "not read" in gap.why]
    assert gap.what.startswith("line 1 of ") and gap.why.startswith("not read: ZeroDivisionError at ")
    assert "secret words" not in gap.why
    assert [culprit.rank for culprit in diagnose(job).culprits] == [1]


def test_a_reader_that_raises_costs_its_own_file(
    tmp_path: Path, as_for_users: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are judged. Where there is no other, the error says why nothing could be read."""
    read = recognise_file._is_text
    monkeypatch.setattr(
        recognise_file,
        "_FORMATS",
        (lambda item, head, evidence: fail() if b"boom" in head else read(item, head, evidence),),
    )
    (tmp_path / "bad.log").write_text("[rank0]: RuntimeError: boom\n")
    with pytest.raises(Exception, match="ZeroDivisionError at "):
        load(tmp_path)
    (tmp_path / "job.log").write_text(CRASH)
    job = load(tmp_path)
    assert [gap.what for gap in job.gaps if "ZeroDivisionError" in gap.why] == [f"file {tmp_path / 'bad.log'}"]
    assert [culprit.rank for culprit in diagnose(job).culprits] == [1]


@pytest.mark.parametrize("bad", ["rank_3.log", "ras.txt"])
def test_a_file_that_cannot_be_joined_with_the_others_is_left_out(
    tmp_path: Path, as_for_users: None, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    """The one file, found by halves; the verdict is that of the rest."""
    shutil.copytree(CASE, tmp_path / "job")
    [marked] = list((tmp_path / "job").rglob(bad))
    identify = loading._identify

    def joined(evidence: Any, *more: Any) -> Any:
        files = [text.file for text in evidence.texts] + [
            report.source.file for answer in evidence.reported_by(RasAnswer) for report in answer.reports
        ]
        return fail() if str(marked) in files else identify(evidence, *more)

    monkeypatch.setattr(loading, "_identify", joined)
    job = load(tmp_path / "job")
    [gap] = [gap for gap in job.gaps if "ZeroDivisionError" in gap.why]
    assert gap.what == f"file {marked}"
    assert len(job.dumps) > 8 and diagnose(job).culprits == diagnose(load(CASE)).culprits


def test_what_is_raised_on_purpose_is_not_contained(as_for_users: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of ours for users, no memory, an interrupt; and all of it in our own tests, by the variable."""
    for error in (NotFoundError("x"), MemoryError()):
        with pytest.raises(type(error)):
            contained(error)
    with pytest.raises(KeyboardInterrupt):
        LeftOut().one("a part", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert "a bug in hangscope" in contained(ValueError("x"))
    monkeypatch.setenv(RAISE, "1")
    with pytest.raises(ValueError, match="x"):
        contained(ValueError("x"))


# ---- causes ----------------------------------------------------------------------------------------------------------


def test_a_cause_that_raises_costs_itself_and_all_certainty(
    as_for_users: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever it is: the verdict goes on, a gap names the cause, and as it may have been the right one nobody is
    accused but at low."""
    job = load(CASE)
    sure = diagnose(job)
    assert sure.confidence == "high"
    for at in range(len(CAUSES)):
        broken = replace(CAUSES[at], propose=fail)
        monkeypatch.setattr(hangscope.diagnosis, "CAUSES", (*CAUSES[:at], broken, *CAUSES[at + 1 :]))
        verdict = diagnose(job)
        asked = any("ZeroDivisionError" in gap.why for gap in verdict.gaps)
        assert verdict.confidence == "low" if asked else verdict == sure


def test_words_that_raise_cost_the_words(as_for_users: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who it was, what kind and how sure stay."""
    job = load(CASE)
    sure = diagnose(job)
    monkeypatch.setattr(sys.modules["hangscope.diagnosis.conclude"], "say", fail)
    verdict = diagnose(job)
    assert [c.rank for c in verdict.culprits] == [c.rank for c in sure.culprits]
    assert (verdict.kind, verdict.confidence, verdict.hang) == (sure.kind, sure.confidence, sure.hang)
    assert any(gap.what == "the verdict's words" for gap in verdict.gaps)


def test_evidence_that_cannot_be_judged_is_not_determined(as_for_users: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback and no accusation: unknown, with the reason."""
    job = load(CASE)
    monkeypatch.setattr(hangscope.diagnosis, "Case", fail)
    verdict = diagnose(job)
    assert (str(verdict.outcome), verdict.culprits, verdict.exit_status) == ("unknown", (), 3)
    assert any("ZeroDivisionError" in gap.why for gap in verdict.gaps)
    assert "not determined" in terminal.render_text(verdict) and to_json(verdict)


# ---- renderers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", ["_head", "_why", "_ranks", "_next", "_gaps"])
def test_a_block_of_the_text_that_raises_costs_itself(
    as_for_users: None, monkeypatch: pytest.MonkeyPatch, block: str
) -> None:
    """The answer and the other blocks are shown, and what is missing is named."""
    verdict = diagnose(load(CASE))
    monkeypatch.setattr(terminal, block, fail)
    text = terminal.render_text(verdict, width=200)
    assert "Left out" in text and "ZeroDivisionError" in text and verdict.headline[:30] in text
    assert ("Evidence " in text) and ("Next  " in text) is (block != "_next")


def test_a_part_of_page_and_ticket_that_raises_costs_itself(
    as_for_users: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page without its stacks, the text where the page has no frame, the ticket without its facts."""
    job = load(CASE)
    verdict = diagnose(job)
    monkeypatch.setattr(page, "all_stacks", fail)
    drawn = page.render_page(verdict, job, op_times(job))
    assert "left out: all stacks (ZeroDivisionError" in drawn and "<h2>Timeline" in drawn
    monkeypatch.setattr(page, "matrix", fail)
    drawn = page.render_page(verdict, job)
    assert (
        "could not be drawn (ZeroDivisionError" in drawn and verdict.headline[:20] in drawn and "<script" not in drawn
    )
    monkeypatch.setattr(ticket, "_facts", fail)
    written = ticket.render_ticket(verdict, job)
    assert "## Left out" in written and "## Why" in written
