"""What people see. The golden files hold wording and layout only; truth is asserted elsewhere.

`HANGSCOPE_UPDATE_GOLDEN=1 pytest tests/report/test_terminal.py` writes them anew; read the difference
before committing it.
"""

from __future__ import annotations

import json
import os
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import hangscope
from hangscope.diagnosis.evidence.code_lines import user_frame
from hangscope.diagnosis.verdict import CauseKind, Completeness, Culprit, Diagnosis, Link, LinkEnd, Victim
from hangscope.report.contract_schema import schema
from hangscope.report.export import to_json
from hangscope.report.rank_strip import assign
from hangscope.report.safe_text import safe, whole
from hangscope.report.terminal import render, render_text
from hangscope.report.text_layout import cells, cut, shorten, wrap
from hangscope.report.verdict_text import iso
from hangscope.text import duration, ranges, size, spans
from kits import sample_verdicts

VALIDATOR = Draft202012Validator(schema())
STATES = ("not launched", "scheduled", "started", "completed", "unknown")
GOLDEN = Path(__file__).parents[1] / "golden"


def hold(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("HANGSCOPE_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", sample_verdicts.BY_NAME)
def test_every_kind_has_its_wording(name: str, width: int) -> None:
    """Each kind of verdict reads exactly as its golden file at both widths."""
    hold(f"{name}-{width}", render_text(sample_verdicts.BY_NAME[name](), width=width))


@pytest.mark.parametrize("name", ["absent", "slow", "large"])
def test_verbose_wording(name: str) -> None:
    """-v adds the chain of waits, the whole stack, every source and the facts."""
    hold(f"{name}-verbose-80", render_text(sample_verdicts.BY_NAME[name](), width=80, verbose=True))


@pytest.mark.parametrize("width", [40, 41, 57, 80, 100, 120, 200])
@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", sample_verdicts.BY_NAME)
def test_no_line_is_wider_than_asked(name: str, verbose: bool, width: int) -> None:
    """No line of any verdict goes beyond the width, at any width and whatever the evidence contains."""
    text = render_text(sample_verdicts.BY_NAME[name](), width=width, verbose=verbose)
    assert max(map(cells, text.splitlines())) <= width


@pytest.mark.parametrize("verbose", [False, True])
def test_evidence_cannot_reach_the_terminal(verbose: bool) -> None:
    """Escape sequences, control and direction characters in evidence are shown as text, never sent."""
    text = render_text(sample_verdicts.hostile(), width=100, verbose=verbose)
    assert not [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert r"\x1b[31mred" in text
    text.encode("utf-8")


def test_the_first_line_is_the_verdict() -> None:
    """The first line alone says that it hangs, who and in what, and how sure that is."""
    first = render_text(sample_verdicts.absent(), width=97).splitlines()[0]
    assert first.startswith("HANG   rank 14 never launched all_to_all #45265")
    assert first.endswith("confidence: high")
    assert len(first) == 97


def test_who_reported_first_is_not_taken_for_the_culprit() -> None:
    """The rank that reported first is named, with the warning that it is seldom the culprit."""
    text = " ".join(render_text(sample_verdicts.absent()).split())
    assert "first by rank 9 on gpu-a017" in text
    assert "rarely the culprit, including here" in text


def test_one_ranks_log_is_not_taken_for_the_job(tmp_path: Path) -> None:
    """Who else belongs to the group, where the others are and which zone its clock is in: a log says none of it."""
    text = (
        "[rank3]:[E1115 00:56:34.844323936 ProcessGroupNCCL.cpp:689] [Rank 3] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600024 "
        "milliseconds before timing out.\n"
        "[rank3]:[E1115 00:56:34.844523936 ProcessGroupNCCL.cpp:2168] [PG ID 0 PG GUID 0(default_pg) Rank 3]  failure "
        "detected by watchdog at work sequence id: 42 PG status: last enqueued work: 42, last completed work: 41\n"
    )
    (tmp_path / "train.log").write_text(text)
    verdict = hangscope.diagnose(hangscope.load([tmp_path]))
    shown = render_text(verdict, width=200)
    assert "of default_pg (rank 3 seen in it)" in shown
    assert "at 00:56:34.844 local time" in shown
    assert "on every rank" not in shown and "UTC" not in shown
    assert verdict.first_reported is not None and verdict.first_reported.local_time


def test_colour_carries_no_meaning_of_its_own() -> None:
    """The text is whole without roles: joining the pieces gives the plain report, and every role is known."""
    lines = render(sample_verdicts.absent(), width=80)
    from hangscope.report.text_layout import ROLES

    assert {piece.role for line in lines for piece in line} <= set(ROLES)
    joined = "\n".join("".join(piece.text for piece in line).rstrip() for line in lines) + "\n"
    assert joined == render_text(sample_verdicts.absent(), width=80)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("ranks", [2, 64, 65, 1000, 8192, 100_000])
def test_the_strip_stays_readable_at_any_size(ranks: int, named: bool) -> None:
    """From 2 to 100,000 ranks, with or without node names, the report stays within one or two screens."""
    culprit = ranks // 2 + 1 if ranks > 2 else 1
    text = render_text(sample_verdicts.large(ranks, culprits=(culprit,), named=named), width=80)
    assert len(text.splitlines()) < 45
    assert max(map(len, text.splitlines())) <= 80
    assert "X" in text.split("Ranks", 1)[1]


@pytest.mark.parametrize("ranks", [2, 65, 1024])
def test_a_job_whose_ranks_all_look_alike_is_one_row(ranks: int) -> None:
    """Where everybody started and nobody finished, a large job is one folded row and the legend says which ranks."""
    verdict = sample_verdicts.small(
        "network",
        operation=replace(
            sample_verdicts.all_reduce(dict.fromkeys(range(ranks), "started")), members=tuple(range(ranks))
        ),
        nodes={rank: f"node-{rank // 8:03d}" for rank in range(ranks)},
        completeness=Completeness(ranks, ranks, 0, 0, 0),
    )
    drawn = render_text(verdict).split("Ranks", 1)[1].split("\n\n")[0]
    if ranks > 64:
        assert len(drawn.splitlines()) == 2
        assert f"S started all_reduce #16, {ranks} ranks: 0-{ranks - 1}" in drawn
    else:
        assert "S S" in drawn


def test_many_culprits_are_folded_and_none_is_lost() -> None:
    """A whole rack that went missing is named as ranges; with -v each rank has its line."""
    verdict = sample_verdicts.large(1024, culprits=tuple(range(256, 512)))
    assert "256-511" in render_text(verdict)
    loud = render_text(verdict, verbose=True)
    assert all(f"rank {rank}: node node-{rank // 8:04d}" in loud for rank in range(256, 512))


def test_culprits_scattered_over_many_nodes_do_not_flood_the_screen() -> None:
    """Culprits on hundreds of nodes give a bounded report whose legend still names them."""
    text = render_text(sample_verdicts.large(4096, culprits=tuple(range(5, 4096, 24))))
    assert len(text.splitlines()) < 60
    assert "5-4085 step 24" in text


def test_every_rank_has_exactly_one_letter() -> None:
    """Each rank of the job is on the strip once, and each letter on it is in the legend."""
    for make in sample_verdicts.BY_NAME.values():
        verdict = make()
        letters = assign(verdict)
        assert verdict.completeness is not None
        assert set(letters.by_rank) == set(range(verdict.completeness.ranks))
        assert set(letters.by_rank.values()) == set(letters.meaning)


@st.composite
def any_verdict(draw: st.DrawFn) -> Diagnosis:
    """A verdict of any size and mixture: known and unknown nodes, holes in the ranks, states, links, dumps missing."""
    ranks = draw(st.sampled_from([1, 3, 64, 65, 200, 700]))
    some = st.sets(st.integers(0, ranks - 1), max_size=draw(st.sampled_from([0, 1, 3, ranks])))
    culprits = sorted(draw(some))
    victims = sorted(draw(some) - set(culprits))
    states = {rank: draw(st.sampled_from(STATES)) for rank in sorted(draw(some))}
    per_node = draw(st.sampled_from([1, 4, 8, 100]))
    names = st.none() | st.text(max_size=40)
    link = draw(st.booleans()) and ranks > 1
    return sample_verdicts.small(
        draw(st.sampled_from(CauseKind)),
        hang=draw(st.booleans()),
        culprits=tuple(Culprit(rank, draw(names), None, None, None, "") for rank in culprits),
        victims=tuple(Victim(rank, tuple(culprits[:2]) or (0,), "g", draw(names)) for rank in victims),
        operation=replace(sample_verdicts.all_reduce(states), name=draw(st.text(max_size=60))) if states else None,
        link=Link(LinkEnd(0, None, None), LinkEnd(1, "b", "mlx5_0"), None, "") if link else None,
        nodes={rank: f"node-{rank // per_node}" for rank in sorted(draw(some))},
        completeness=draw(st.none() | st.just(Completeness(ranks, 0, 0, 0, 0, tuple(sorted(draw(some)))))),
        headline=draw(st.text(max_size=150)),
    )


@settings(max_examples=150, deadline=None)
@given(any_verdict(), st.sampled_from([40, 60, 80, 133]), st.booleans())
def test_any_verdict_can_be_shown(verdict: Diagnosis, width: int, verbose: bool) -> None:
    """Whatever a verdict holds, its report is drawn within the width, and its JSON follows the schema."""
    text = render_text(verdict, width=width, verbose=verbose)
    assert max(map(cells, text.splitlines())) <= width
    assert list(VALIDATOR.iter_errors(json.loads(to_json(verdict)))) == []


@given(st.sets(st.integers(0, 300)), st.sampled_from([ranges, spans]))
def test_ranges_lose_no_rank(ranks: set[int], fold: object) -> None:
    """Ranges say exactly the ranks that went in."""
    said: set[int] = set()
    text = fold(ranks)  # type: ignore[operator]
    for part in text.split(", ") if text else []:
        bounds, _, step = part.partition(" step ")
        low, _, high = bounds.partition("-")
        said |= set(range(int(low), int(high or low) + 1, int(step or 1)))
    assert said == ranks


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([7], "7"),
        ([4, 5], "4, 5"),
        ([*range(512), 520], "0-511, 520"),
        ([3, 1, 2, 2], "1-3"),
        ([0, 8, 16, 24], "0, 8, 16, 24"),
    ],
)
def test_ranges_read_as_people_write_them(ranks: list[int], text: str) -> None:
    """Runs of three and more become a range; order and repetition of the input do not matter."""
    assert ranges(ranks) == text


def test_ranges_say_how_many_are_left_out() -> None:
    """A limited list of ranks says how many it does not name."""
    assert ranges([0, 2, 4, 10, 11, 12], limit=2) == "0, 2, and 4 more"
    assert spans(range(3, 8188, 8)) == "3-8187 step 8"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.4s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m 00s"),
        (1802, "30m 02s"),
        (11100, "3h 05m"),
        (187200, "2d 04h"),
        (float("nan"), "an unknown time"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    """Durations are rounded to what matters at their size."""
    assert duration(seconds) == text


def test_sizes() -> None:
    """Sizes are in binary units, as tensors are."""
    assert [size(n) for n in (0, 1023, 1024, 4 << 20, 3 << 50)] == ["0 B", "1023 B", "1.0 KiB", "4.0 MiB", "3.0 PiB"]


def test_times_from_damaged_dumps_are_unknown() -> None:
    """A number that is no time becomes unknown, not an exception."""
    assert iso(1_794_709_330_991_999_999) == "2026-11-15T02:22:10.991Z"
    assert iso(1 << 62) is not None
    assert iso(10**30) is None
    assert iso(-(10**30)) is None


def test_text_from_evidence_is_made_safe_once_and_for_all() -> None:
    """Making text safe is idempotent, keeps letters of any script, and shows raw bytes by their value."""
    nasty = "naïve 日本 \x1b]0;title\x07 \udcff\u202eabc\t|"
    assert safe(nasty) == "naïve 日本 \\x1b]0;title\\x07 \\xff\\u202eabc    |"
    assert safe(safe(nasty)) == safe(nasty)
    assert whole("a\udc80\ud800\n") == "a\\x80\\ud800\n"


@given(st.text(max_size=200), st.integers(10, 60))
def test_wrapping_keeps_every_word(text: str, width: int) -> None:
    """Wrapped lines hold every character of every word, in order, and none is too wide."""
    lines = wrap(text, width)
    assert "".join("".join(lines).split()) == "".join(safe(text).split())
    assert all(cells(line) <= width for line in lines)


@given(st.text(max_size=60), st.integers(1, 30))
def test_shortened_text_fits(text: str, width: int) -> None:
    """Shortened and cut text never takes more columns than asked."""
    assert cells(shorten(text, width)) <= width
    assert cells(cut(text, width)) <= width


def test_the_line_to_look_at_is_the_users_own() -> None:
    """Of a stack, the innermost frame outside PyTorch and installed packages is named."""
    frame = user_frame(sample_verdicts.STACK)
    assert frame is not None
    assert (frame.filename, frame.line) == ("/workspace/moe/layers.py", 204)
