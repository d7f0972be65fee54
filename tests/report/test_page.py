"""The web page: what it says and draws, decided in Python. What the browser makes of it is in test_page_browser.py."""

from __future__ import annotations

import base64
import gzip
import re
import shutil
import time
import zlib
from dataclasses import dataclass, fields, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import hangscope
from hangscope.diagnosis.verdict import Completeness, Diagnosis
from hangscope.model import Facts, Job, Operations
from hangscope.report.op_times import op_times
from hangscope.report.page.packed_numbers import pack
from hangscope.report.page.page_text import rank_runs, shown
from hangscope.report.page.render_page import render_page
from hangscope.report.perfetto import render_perfetto
from hangscope.report.text_layout import shorten
from hostile.inputs import files as hostile_files
from kits import perfetto_reader, sample_verdicts
from kits.big_jobs import big_job, its_verdict
from kits.page_data import data_of
from kits.recorded import job_of, verdict_of
from kits.small_dumps import entry, group, packed, top

CASES = Path(__file__).parents[1] / "cases"
NAMES = sorted(path.parent.name for path in CASES.glob("*/truth.json"))
MILLISECOND = 1_000_000


def judged(name: str) -> tuple[Diagnosis, Job]:
    return verdict_of(CASES / name), job_of(CASES / name)


def unpacked(text: str) -> list[int]:
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text), -15), dtype=np.uint8)
    return planes.reshape(4, -1).T.copy().view("<i4").reshape(-1).tolist()


def without_dumps() -> Job:
    return Job(Operations.empty(), (), (0, 1, 2, 3), {}, {}, {}, {}, Facts(), ())


class Reader(HTMLParser):
    """The page's elements and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


# ---- the whole page --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_case_has_a_page_that_marks_the_accused(name: str) -> None:
    """The page of each case is one file without a reference to another, and the rows of the accused come first."""
    verdict, job = judged(name)
    page = render_page(verdict, job)
    reader = parsed(page)
    assert (verdict.headline or verdict.summary) in reader.text
    for tag, attributes in reader.tags:
        assert tag not in ("iframe", "object", "embed", "base", "a", "form")
        assert not {"src", "srcset", "action", "background", "style"} & set(attributes)
        assert tag != "link" or attributes["href"] == "data:,"
    drawn = data_of(page)
    accused = [culprit.rank for culprit in verdict.culprits]
    assert [row["ranks"][0][0] for row in drawn["matrix"]["rows"] if row["role"] == "X"] == accused
    assert [row[0] for row in drawn["timeline"]["rows"][: len(accused)]] == accused
    assert sorted(row[0] for row in drawn["timeline"]["rows"]) == sorted(job.ranks)


@pytest.mark.parametrize("name", sample_verdicts.BY_NAME)
def test_a_verdict_without_any_dump_has_a_page_too(name: str) -> None:
    """Every kind of verdict can be drawn when nothing but logs was read, and what is unknown is said."""
    reader = parsed(render_page(sample_verdicts.BY_NAME[name](), without_dumps()))
    assert "No dump has launch times" in reader.text


def test_a_job_of_nobody_has_a_page_too() -> None:
    """Where not even a rank is known, the page says the verdict and draws nothing."""
    nobody = Job(Operations.empty(), (), (), {}, {}, {}, {}, Facts(), ())
    verdict = replace(sample_verdicts.small("unknown"), headline="nothing to go by", completeness=None, nodes={})
    assert "nothing to go by" in parsed(render_page(verdict, nobody)).text


@dataclass(frozen=True)
class Other:
    """Something that fits nearly as well."""

    kind: str
    culprits: tuple[int, ...]
    why: str


@dataclass(frozen=True)
class Later(Diagnosis):
    """A verdict that also says what people saw, and what else is possible."""

    outcome: str = "ok"
    also_possible: tuple[Other, ...] = ()


@pytest.mark.parametrize(("outcome", "word"), [("crash", "CRASH"), ("pause", "PAUSE"), ("slow", "SLOW"), ("ok", "OK")])
def test_the_first_word_is_the_outcome(outcome: str, word: str) -> None:
    """The page begins with what people saw, and names what else is possible."""
    plain = sample_verdicts.small("dead")
    values = {f.name: getattr(plain, f.name) for f in fields(plain)}
    other = Other("network", (1, 2), "NCCL warned of a peer")
    verdict = Later(**{**values, "outcome": outcome, "also_possible": (other,)})
    text = parsed(render_page(verdict, without_dumps())).text
    assert f"{word}: " in text
    assert "ranks 1, 2: NCCL warned of a peer" in text


def test_the_head_says_what_people_ask_first() -> None:
    """Node, GPU, operation, the line of the call, the culprit's own line and the confidence are in the head."""
    verdict, job = judged("mesh_absent")
    head = render_page(verdict, job).split("<nav")[0]
    for needed in ("gpu-worker-13", "00:06.0", "all_reduce #7", "train.py:59", "train.py:72", "confidence", "high"):
        assert needed in head


def test_what_would_raise_the_confidence_is_said_where_it_is_not_high() -> None:
    """A verdict that is not sure names the evidence that is missing; one that is sure names none."""
    unsure = replace(
        sample_verdicts.small("absent"), confidence="medium", completeness=Completeness(4, 3, 0, 4, 4, (2,))
    )
    page = render_page(unsure, without_dumps())
    assert "Python stacks (0 of 4 ranks have one)" in page
    assert "flight recorder dumps of rank 2 (3 of 4 ranks have one)" in page
    assert "would raise it" not in render_page(replace(unsure, confidence="high"), without_dumps())


def test_the_policy_allows_the_pages_own_script_alone() -> None:
    """The content policy names the checksums of the page's two blocks, and nothing else may be loaded or run."""
    import hashlib

    page = render_page(*judged("skipped"))
    policy = next(
        a["content"] or "" for tag, a in parsed(page).tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    style = page.split("<style>")[1].split("</style>")[0]
    script = page.split("<script>")[1].split("</script>")[0]
    for block in (style, script):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_page_of_1024_ranks_is_small_and_quick() -> None:
    """1,024 ranks with 200 operations each: under 2 MB, and written in seconds."""
    job = big_job(1024, 100, culprit=700)
    verdict = its_verdict(job, 100, culprit=700)
    began = time.process_time()
    page = render_page(verdict, job)
    assert time.process_time() - began < 5
    assert len(page.encode()) < 2_000_000


def test_a_page_of_16384_ranks_folds_and_says_so() -> None:
    """16,384 ranks become a handful of rows, the timeline has a thousand of them, and both say what they left out."""
    job = big_job(16_384, 4, culprit=281)
    page = render_page(its_verdict(job, 4, culprit=281), job)
    drawn = data_of(page)
    rows = drawn["matrix"]["rows"]
    assert len(rows) < 12
    assert sum(row["count"] for row in rows) == 16_384
    assert rows[0]["ranks"] == [[281, 281, 1]]
    assert len(drawn["timeline"]["rows"]) == 1024
    assert drawn["timeline"]["rows"][0][0] == 281
    assert "1,024 of 16,384 ranks have a row" in parsed(page).text
    assert "rows for 16,384 ranks" in parsed(page).text
    assert len(page.encode()) < 3_000_000


# ---- the matrix ------------------------------------------------------------------------------------------------------


def frontier(name: str) -> dict[int, str]:
    """Each rank's cell in the column of the hung operation."""
    drawn = data_of(render_page(*judged(name)))["matrix"]
    at = 0
    for block in drawn["blocks"]:
        for column in block["columns"]:
            if block["hung"] and column["frontier"]:
                return {row["ranks"][0][0]: row["cells"][at] for row in drawn["rows"]}
            at += 1
    raise AssertionError("no column of the hung operation")


def test_the_absent_rank_is_the_only_one_that_has_not_launched() -> None:
    """In a mesh, the column of the hung operation shows the absent rank alone as not launched."""
    assert frontier("mesh_absent") == {6: "-", 0: "C", 1: "C", 2: "C", 3: "C", 4: "S", 5: "S", 7: "S"}


def test_a_rank_without_a_dump_is_not_known_rather_than_absent() -> None:
    """Ignorance looks like ignorance: the killed rank wrote no dump, and its cells say not known."""
    cells = frontier("sigkill")
    assert cells[3] == "?"
    assert "-" not in cells.values()


def test_another_call_than_the_rest_stands_out() -> None:
    """Where rank 0 ran broadcast and the rest all_reduce, its cell alone is marked as another call."""
    cells = frontier("type_mismatch")
    assert cells[0] in "DTt"
    assert not set("DTt") & {cells[1], cells[2], cells[3]}


def test_an_operation_that_only_logs_tell_of_has_its_column() -> None:
    """Without any entry in any dump the hung operation is drawn as the verdict tells it."""
    assert frontier("log_only")[4] == "-"


def test_a_send_that_hangs_is_drawn_among_sends() -> None:
    """In a pipeline the culprit lacks a call among sends and receives, while the others are inside one."""
    assert frontier("pipeline") == {2: "-", 0: "S", 1: "S", 3: "S"}


# ---- the timeline ----------------------------------------------------------------------------------------------------


def test_the_timeline_holds_every_operation_of_a_small_job() -> None:
    """Of a small job each recorded call outside batches is a bar, and the bars of the hung operation are marked."""
    verdict, job = judged("mesh_absent")
    drawn = data_of(render_page(verdict, job))["timeline"]
    assert sum(drawn["counts"]) == len(job.ops) == len(unpacked(drawn["begin"]))
    bits = unpacked(drawn["bits"])
    ranks = np.repeat([row[0] for row in drawn["rows"]], drawn["counts"])
    assert sorted(ranks[i] for i, bit in enumerate(bits) if bit & 2) == [4, 5, 7]
    assert drawn["deviation_text"] == "last sign of life of rank 6"
    assert drawn["deviation"] <= 0


def test_the_page_does_not_depend_on_the_order_of_reading(tmp_path: Path) -> None:
    """The same evidence in files of other names, read in another order, gives the same bars and colours."""
    verdict, job = judged("straggler8")
    first = data_of(render_page(verdict, job))["timeline"]
    for node, name in (("gpu-worker-72", "z"), ("gpu-worker-73", "a")):
        shutil.copytree(CASES / "straggler8" / node, tmp_path / name / node)
    shutil.copy(CASES / "straggler8" / "roster.json", tmp_path / "roster.json")
    other = hangscope.load(tmp_path)
    second = data_of(render_page(hangscope.diagnose(other), other))["timeline"]
    assert second == first
    assert first["names"][0] == "all_reduce"


def test_clocks_of_nodes_are_brought_together() -> None:
    """A node whose clock is 3 s ahead is told by the collectives it finishes with others, and moved back."""
    job = big_job(64, 30, culprit=5, ahead_ns={"gpu-node-0002": 3_000 * MILLISECOND})
    found = op_times(job)
    assert abs(found.clocks.ahead_ns["gpu-node-0002"] - 3_000 * MILLISECOND) < MILLISECOND
    assert {ns for node, ns in found.clocks.ahead_ns.items() if node != "gpu-node-0002"} == {0}
    rank = job.ops.column("rank")
    first = found.begin_ns[rank // 8 == 2].min() - found.begin_ns[rank // 8 == 1].min()
    assert abs(first) < MILLISECOND
    page = render_page(its_verdict(job, 30, culprit=5), job)
    assert "clocks of 1 node moved by up to 3,000 ms" in page


def test_what_the_recorder_cannot_tell_apart_is_left_alone() -> None:
    """A clock that is 30 ms ahead is not moved: ends are noticed in sweeps of 100 ms."""
    found = op_times(big_job(64, 30, culprit=5, ahead_ns={"gpu-node-0002": 30 * MILLISECOND}))
    assert set(found.clocks.ahead_ns.values()) == {0}


@pytest.mark.parametrize("name", ["mesh_absent", "pipeline", "straggler8", "async_late", "coalesced"])
def test_operations_of_one_track_follow_each_other(name: str) -> None:
    """No operation begins before the one before it in its track has ended, and none ends before it began."""
    _, job = judged(name)
    found = op_times(job)
    for track in np.unique(found.track):
        rows = np.flatnonzero((found.track == track) & found.known)
        assert (found.end_ns[rows] >= found.begin_ns[rows]).all()
        ended = rows[~found.unfinished[rows]]
        assert (found.begin_ns[ended][1:] >= found.end_ns[ended][:-1]).all()


# ---- the other views -------------------------------------------------------------------------------------------------


def test_the_waits_lead_to_the_culprit() -> None:
    """Victims are boxes by operation and group, those that wait for the culprit next to it; its box is first."""
    page = render_page(*judged("mesh_absent"))
    boxes = re.findall(
        r'<g class="box (\w+)".*?<text class="name"[^>]*>([^<]*)<.*?<text class="says"[^>]*>([^<]*)<', page, re.DOTALL
    )
    assert boxes[0][:2] == ("culprit", "rank 6")
    assert ("waiting", "ranks 4, 5, 7", "in all_reduce #7") in boxes
    assert len(boxes) == 6


def test_a_deadlock_shows_the_arrow_that_closes_the_circle() -> None:
    """In a deadlock the culprit's own wait is drawn back to those that wait for it."""
    assert 'class="arrow culprit"' in render_page(*judged("deadlock3"))


def test_a_link_shows_both_ends_with_their_ports() -> None:
    """A link verdict draws sender and receiver with node and port, and a broken arrow between them."""
    verdict = sample_verdicts.BY_NAME["network"]()
    assert verdict.link is not None
    page = render_page(verdict, without_dumps())
    assert 'class="arrow broken"' in page
    for end in (verdict.link.sender, verdict.link.receiver):
        assert f"rank {end.rank}" in page
        assert end.nic is None or end.nic in page


def test_the_stacks_part_where_the_code_does() -> None:
    """The culprit's and a victim's stack stand side by side, and the marked frame is the first that differs."""
    page = render_page(*judged("mesh_absent"))
    parts = re.findall(r'<li class=" parts[^"]*"><b>([^<]*)</b> <code>([^<]*)</code>', page)
    assert parts == [("mesh_absent", "/workspace/train.py:57"), ("mesh_absent", "/workspace/train.py:61")]


def test_a_slow_job_has_its_chart() -> None:
    """For "slow" every rank has a bar of its own work; the accused works most, and nobody else has a chart."""
    page = render_page(*judged("straggler8"))
    bars = re.findall(r'data-rank="(\d+)".*?class="own" x="0" y="1" width="(\d+)"', page, re.DOTALL)
    assert bars[0][0] == "5"
    assert int(bars[0][1]) > 2 * max(int(width) for rank, width in bars if rank != "5")
    assert len(bars) == 8
    assert 'id="lateness"' not in render_page(*judged("mesh_absent"))


@pytest.mark.parametrize("seed", range(2))
def test_no_damaged_dump_breaks_the_page_or_the_trace(seed: int, tmp_path: Path) -> None:
    """Whatever the reader makes of mutated, cut and crafted dumps can be drawn."""
    for number in range(40):
        _, data = hostile_files.make(seed, number)
        folder = tmp_path / str(number)
        shutil.copytree(CASES / "multi_pg", folder)
        (folder / "gpu-worker-7" / "nccl_trace_rank_3").write_bytes(data)
        try:
            job = hangscope.load(folder)
        except hangscope.HangscopeError:
            continue
        verdict = hangscope.diagnose(job)
        drawn = data_of(render_page(verdict, job))
        assert sum(row["count"] for row in drawn["matrix"]["rows"]) == len(job.ranks)
        assert len(unpacked(drawn["timeline"]["begin"])) == sum(drawn["timeline"]["counts"])
        trace = render_perfetto(verdict, job)
        found = perfetto_reader.load(gzip.decompress(trace.data))
        assert len(found.slices) == trace.slices + 1


# ---- small parts -----------------------------------------------------------------------------------------------------


def test_columns_survive_packing() -> None:
    """A packed column is read back as it was; what int32 cannot hold is cut to its ends."""
    values = np.array([0, 1, -1, 255, 256, -70_000, 2**31 - 1, -(2**31), 2**40], dtype=np.int64)
    assert unpacked(pack(values)) == [0, 1, -1, 255, 256, -70_000, 2**31 - 1, -(2**31), 2**31 - 1]


def test_names_are_cut_in_the_middle() -> None:
    """A long name keeps both ends and never exceeds the limit; marks that turn the writing become visible."""
    assert shorten("gpu-worker-0123456789-rack-7", 11) == "gpu-w…ack-7"
    assert len(shown("x" * 10_000, 48)) == 48
    assert shown("a\u202eb") == "a\\u202eb"


def test_ranks_are_written_as_runs() -> None:
    """Runs name exactly the given ranks, evenly spaced ones in one piece."""
    assert rank_runs([0, 1, 2, 3]) == [[0, 3, 1]]
    assert rank_runs([1, 9, 17]) == [[1, 17, 8]]
    ranks = [0, 5, 6, 7, 20, 40, 60, 61]
    assert sorted({r for a, b, step in rank_runs(ranks) for r in range(a, b + 1, step)}) == ranks


def test_numbers_beyond_all_bounds_draw_a_page(tmp_path: Path) -> None:
    """A dump whose counters stand at the end of what 63 bits hold is drawn and traced like any other."""
    for rank in range(2):
        ends = [entry(n, 2**63 - 1 - n * (rank + 1), op_id=2**63 - 1, pg_id=n) for n in range(3)]
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(packed(top(ends, group("0", "default_pg", 0, 1))))
    job = hangscope.load(tmp_path)
    verdict = hangscope.diagnose(job)
    assert "<h1>" in render_page(verdict, job)
    assert render_perfetto(verdict, job, op_times(job)).data
