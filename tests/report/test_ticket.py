"""ticket.md: everything that a support form asks for, safe to paste."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hangscope
from hangscope.diagnosis.verdict import Culprit, Finding, RuledOut
from hangscope.model import Gap, Source
from hangscope.report.ticket import render_ticket, text
from kits import sample_verdicts
from kits.recorded import job_of, verdict_of

CASES = Path(__file__).parents[1] / "cases"


def _rows(ticket: str) -> dict[str, str]:
    return {
        name.strip(): value.strip() for name, value in re.findall(r"^\| ([^|]+?) \| (.*) \|$", ticket, re.MULTILINE)
    }


def _ticket(case: str) -> str:
    files = {"nodes/a/x.log": {"size": 12, "sha256": "ab" * 32}}
    return render_ticket(verdict_of(CASES / case), job_of(CASES / case), files=files)


def test_a_ticket_answers_what_support_asks() -> None:
    """First reporter, culprit with node, GPU and NIC, operation in flight, last good one and versions are named."""
    ticket = _ticket("sigkill")
    rows = _rows(ticket)
    assert ticket.startswith("# Rank 3 ")
    assert rows["Failure first reported"].startswith("rank 2, node gpu-worker-7, 2026-11-15T01:23:34")
    culprit = rows["Culprit"]
    assert culprit.startswith("rank 3, node gpu-worker-7, local rank 1, GPU 0000:00:06.0, NIC lo, pid 751")
    assert "SIGKILL" in culprit
    assert rows["Operation in flight"].startswith("all_reduce #16 on default_pg (4 ranks); 256.0 KiB of Float")
    assert "called at train.py:17 in train_step" in rows["Operation in flight"]
    assert rows["Last good operation"].startswith("_all_gather_base #15")
    assert rows["PyTorch"].startswith("2.11")
    assert (rows["NCCL"], rows["CUDA"], rows["GPU driver"]) == ("2.28.9", "13.0", "unknown")
    assert "NCCL WARN socketProgress: Connection closed by remote peer" in ticket
    assert "nccl.gpu-worker-7.748.log line 80" in ticket
    for heading in ("Why", "Ruled out", "Next steps", "Missing evidence", "Attached files"):
        assert f"\n## {heading}\n" in ticket
    assert f"| nodes/a/x.log | 12 | {'ab' * 32} |" in ticket


def test_a_link_is_named_with_both_ends() -> None:
    """A network verdict names both ranks, nodes and NICs of the link, and its channel."""
    assert _rows(_ticket("broadcast_link"))["Link"] == (
        "from rank 2 (node gpu-worker-7, NIC lo) to rank 3 (node gpu-worker-7, NIC lo), channel 0"
    )


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir() if path.is_dir()))
def test_every_case_has_a_ticket(case: str) -> None:
    """Whatever the verdict, the ticket has its summary, its facts and no path of the machine that made it."""
    verdict = verdict_of(CASES / case)
    ticket = render_ticket(verdict, job_of(CASES / case))
    rows = _rows(ticket)
    assert verdict.summary.split()[0] in ticket
    assert {"Verdict", "Operation in flight", "Last good operation", "NCCL"} <= set(rows)
    assert rows.keys() & {"Timeout first reported", "Failure first reported"}
    assert sum(name.startswith("Culprit") for name in rows) == max(1, len(verdict.culprits))
    assert str(CASES) not in ticket


@pytest.mark.parametrize("make", [sample_verdicts.absent, sample_verdicts.dead, sample_verdicts.frozen])
def test_a_verdict_alone_is_enough(make: object) -> None:
    """Without the job and the files the ticket leaves their parts out and says what is not known."""
    verdict = make()  # type: ignore[operator]
    ticket = render_ticket(verdict)
    assert "Attached files" not in ticket
    assert "Relevant NCCL lines" not in ticket
    assert "NIC unknown" in ticket


def test_nobody_to_accuse_is_said() -> None:
    """A hang without a culprit, and a job without a hang, say so in words."""
    assert _rows(render_ticket(sample_verdicts.small("unknown")))["Culprit"].startswith("this evidence does not point")
    healthy = _rows(render_ticket(sample_verdicts.small("none", hang=False)))
    assert (healthy["Culprit"], healthy["Operation in flight"]) == ("none", "none")


def test_evidence_cannot_become_markup() -> None:
    """Names and lines with links, images, HTML, table bars, fences and control characters stay plain text."""
    evil = "![x](http://evil/p.png) <script>alert(1)</script> | a | b |\n# heading ```\n\x1b[31m"
    ticket = render_ticket(
        sample_verdicts.small(
            "dead",
            culprits=(Culprit(1, evil, 0, evil, 7, evil),),
            summary=evil,
            headline=evil,
            why=(Finding(evil, (Source(evil, evil),), (evil, "```", "plain")),),
            ruled_out=(RuledOut(evil, evil),),
            next_steps=(evil,),
            gaps=(Gap(evil, evil),),
            versions={"nccl": evil},
        ),
        files={evil: {"size": 1, "sha256": evil}},
    )
    outside = re.sub(r"```text.*?```", "", ticket, flags=re.DOTALL)
    outside = re.sub(r"(?<!\\)`[^`\n]*`", "", outside)  # code, which does nothing
    assert not re.search(r"(?<!\\)!?\[[^\]]*(?<!\\)\]\(", outside)
    assert not re.search(r"(?<!\\)<script", outside)
    assert "\x1b" not in ticket
    assert ticket.count("```text") * 2 == ticket.count("```")
    headings = [line for line in ticket.splitlines() if line.startswith("#")]
    assert headings[1:] == [
        "## Why",
        "## Ruled out",
        "## Next steps",
        "## Missing evidence",
        "## Attached files",
    ]
    for line in outside.splitlines():
        if line.startswith("| "):
            assert len(re.findall(r"(?<!\\)\|", line)) in (3, 4)


@pytest.mark.parametrize("said", ["1. # x", "1) # x", "12. - # x", "1. 2. > # x", "# x", "- # x", "+ # x", "> # x"])
def test_no_item_of_a_list_is_a_heading(said: str) -> None:
    """What would begin another list, or a quotation, in the item begins nothing, and so no heading in it either."""
    shown = text(said)
    assert re.match(r"(?:\d+\\[.)]|\\[#+>-])", shown)
    assert shown.replace("\\", "") == said


def test_long_lists_are_cut() -> None:
    """Thousands of files and gaps do not make a ticket that nobody can paste."""
    verdict = sample_verdicts.small("dead", gaps=tuple(Gap(f"dump of rank {r}", "gone") for r in range(5000)))
    files = {f"nodes/n{i}/dump": {"size": 1, "sha256": "0" * 64} for i in range(5000)}
    ticket = render_ticket(verdict, files=files)
    assert len(ticket) < 20_000
    assert "5000 files" in ticket
    assert "and 4880 more" in ticket


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("see http://evil.example/x now", "see `http://evil.example/x` now"),
        ("ask @root and a@b.example", "ask `@root` and `a@b.example`"),
        ("www.evil.example|x", "`www.evil.example|x`"),
        ("@x`<img>", "`@x'<img>`"),
        ("# Owned", "\\# Owned"),
        ("- x", "\\- x"),
        ("&#64;root &lt;", "\\&#64;root \\&lt;"),
        ("~~gone~~", "\\~~gone\\~~"),
        ("a ~ b & c # d - e all_reduce #3", "a ~ b & c # d - e all_reduce #3"),
    ],
)
def test_evidence_calls_nobody_and_leads_nowhere(said: str, shown: str) -> None:
    """An address or a name that a ticket system would act upon by itself stands as code, and what would begin a heading
    or a list is escaped; what does nothing stays as it was."""
    assert text(said) == shown


def test_the_name_of_a_log_does_not_end_the_block_that_quotes_it(tmp_path: Path) -> None:
    """A file whose name holds line ends, a fence, a link or a character that turns writing stays inside its block."""
    line = "n1:1:1 [0] NCCL WARN Net : Call to recv from 10.0.0.2<5> failed : Broken pipe\n"
    (tmp_path / "a\n```\n# Owned [x](http:) \u202e.log").write_text(f"{line}[rank0]: RuntimeError: x\n")
    job = hangscope.load(tmp_path)
    ticket = render_ticket(hangscope.diagnose(job), job)
    assert "Relevant NCCL lines" in ticket and "```text\nrank" in ticket
    assert "\n# Owned" not in ticket and "\u202e" not in ticket
    assert ticket.count("\n```") % 2 == 0
