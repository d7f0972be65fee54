"""`hangscope watch` at a size that no test machine has, from status files as agents write them."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import pytest
from rich.console import Console, ConsoleDimensions

from hangscope.cli.main import main
from hangscope.cli.watch_screen import screen
from hangscope.cli.watch_stragglers import Stragglers
from hangscope.cli.watch_terminal import WatchChoice
from hangscope.cli.watch_text import as_text
from hangscope.recorder.rundir.live_view import GroupLine, LiveView, RankLine, assemble, view
from hangscope.recorder.rundir.peer_files import GroupCounter, NodeStatus, RankRow
from kits import status_files

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """1,024 ranks on 128 nodes; rank 77 holds its group up, and through it everybody; rank 500 was killed."""
    status_files.write(tmp_path / "run", held=77, gone=500)
    return tmp_path / "run"


def once(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[str]:
    assert main(["watch", *map(str, words), "--once"]) == 0
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def listed(lines: list[str]) -> list[int]:
    """The ranks that have a line of their own in the table of ranks, in order."""
    return [int(match[1]) for line in lines if (match := re.match(r"(\d+) gpu-\d+ 4\d{4} ", line))]


def test_a_thousand_ranks_fit_a_page_and_who_holds_them_comes_first(
    big: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through two chains of waits the one rank is named; groups, nodes and ranks that are alike share a line."""
    lines = once(capsys, big)
    assert lines[0].startswith("job big, attempt 0: 1024 ranks, 1022 waiting, 1 gone")
    assert lines[3] == "77 gpu-009 S 1022 ranks all_reduce #900 45 s train.py:8 save"
    assert "mesh_dp (nccl) 8 × 128 #900 #899 77 45 s" in lines
    assert "126 other nodes 0-71, 80-495, 504-1023 1008 0 0.0 45 s" in lines
    assert any(re.search(r"^5-69 step 8, .* 127 S 0\.0 all_reduce #900 of mesh_dp 45 s 77", line) for line in lines)
    assert len(lines) < 24


def test_a_job_that_runs_shows_nobody_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No accusation without a wait, and one line for all nodes."""
    status_files.write(tmp_path / "run", held=None)
    lines = once(capsys, tmp_path / "run")
    assert not any("waited for by" in line for line in lines)
    assert "128 nodes 0-1023 0 0 12.0-12.7 -" in lines


def note_capture(root: Path, incident: Path) -> None:
    """As if the first node's agent had captured into that directory."""
    file = root / "nodes" / "gpu-000" / "status.json"
    value = json.loads(file.read_text())
    value["captures"] = [{"incident": str(incident), "reason": "stall", "detail": "rank 5: all_reduce", "at": 1.0}]
    file.write_text(json.dumps(value))


VERDICT = {
    "outcome": "hang",
    "headline": "rank 77 is in save (train.py:8)",
    "confidence": "high",
    "culprits": [{"rank": 77, "where": {"file": "/job/train.py", "line": 8, "function": "save", "code": "write()"}}],
}
NO_VERDICTS = (
    "[]",
    "{",
    '{"headline": 3}',
    '{"headline": "x", "culprits": [3, {"where": []}, {"where": {"file": {}}}]}',
)


@pytest.mark.parametrize("name", ["run", "run.hang-2", "run/job/0/hang-1"])
def test_the_verdict_is_shown_once_there_is_one(big: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its headline and the culprit's line with its text are above the tables, wherever the run keeps that incident."""
    incident = big.parent / name
    incident.mkdir(parents=True, exist_ok=True)
    note_capture(big, incident)
    assert not any("HANG" in line for line in once(capsys, big))
    (incident / "verdict.json").write_text(json.dumps(VERDICT))
    headline, place = once(capsys, big)[2:4]
    assert headline == "HANG: rank 77 is in save (train.py:8) (confidence: high)"
    assert place == "rank 77 at train.py:8 save: write()"


def test_no_other_directory_speaks_for_the_run(big: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A status names where evidence went: a verdict elsewhere, or one that is no verdict, is not shown."""
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    (elsewhere / "verdict.json").write_text(json.dumps(VERDICT))
    note_capture(big, elsewhere)
    assert not any("HANG" in line for line in once(capsys, big))
    note_capture(big, big)
    for text in NO_VERDICTS:
        (big / "verdict.json").write_text(text)
        assert not any("rank 77 at" in line for line in once(capsys, big))


def looked_at(*last: int, ranks: int = 8) -> Stragglers:
    """What is known after looks at which these ranks were waited for by all others."""
    found = Stragglers()
    for look, rank in enumerate(last):
        lines = tuple(RankLine(each, f"n{each}", each, "R", code="load.py:4 load") for each in range(ranks))
        group = GroupLine("default_pg", "nccl", look, look, ranks, (rank,), 1.0)
        found.take(LiveView("j", "0", ranks, lines, (group,), (), (), False, threshold_s=30.0, late=(rank,)))
    return found


def test_the_straggler_of_a_slow_job_is_named() -> None:
    """A rank that is last far more often than its share is named with its line; taking turns names nobody."""
    (found,) = looked_at(*[3] * 9, 1, 2, 5).found()
    assert (found.rank, found.node, found.times, found.looks, found.code) == (3, "n3", 9, 12, "load.py:4 load")
    assert looked_at(*list(range(8)) * 4).found() == []
    assert looked_at(*[3] * 5).found() == []
    assert looked_at(0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 0, ranks=2).found() == []


def node_status(*enqueued: int, still_s: float = 3.0, asked_at: float = 99.0) -> NodeStatus:
    """A node whose ranks have launched so many operations, written at 100."""
    rows = tuple(
        RankRow(rank, last_poll_at=asked_at, groups=(GroupCounter("nccl", "default_pg", count, count, still_s),))
        for rank, count in enumerate(enqueued)
    )
    return NodeStatus("n", "j", "0", live=rows, at=100.0)


def test_only_a_wait_that_was_seen_makes_a_rank_late() -> None:
    """Others that stayed in an operation over two looks wait; ranks that move, or were asked at other times, do not."""
    assert assemble([node_status(8, 7, 8, 8)], (), 100.0).late == (1,)
    assert assemble([node_status(8, 7, 8, 8, still_s=1.2)], (), 100.0).late == ()
    assert assemble([node_status(8, 7, 7, 8)], (), 100.0).late == ()
    assert assemble([node_status(8, 8), node_status(7, 7)], (), 100.0).late == ()


def test_a_straggler_has_its_row() -> None:
    """The view shows it with how often the others waited for it, as far as it was watched."""
    choice = WatchChoice(stragglers=looked_at(*[3] * 10))
    now = LiveView("j", "0", 1, (RankLine(0, "n", 7, "R"),), (), (), (), False)
    rows = [" ".join(line.split()) for line in as_text(now, choice, 100).splitlines()]
    assert "3 n3 10 of 10 looks load.py:4 load" in rows


def test_scripts_choose_what_they_see(big: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By state, by text and unfolded, in the order asked for."""
    gone = once(capsys, big, "--filter", "gone")
    assert listed(gone) == [500]
    assert "(ranks: 1023 hidden by the filter)" in gone
    assert listed(once(capsys, big, "--filter", "gpu-009", "--sort", "rank")) == list(range(72, 80))
    assert listed(once(capsys, big, "--filter", "gpu-009")) == [77, 72, 73, 74, 75, 76, 78, 79]
    assert sorted(listed(once(capsys, big, "--all"))) == list(range(1024))
    assert main(["watch", str(big), "--once", "--sort", "colour"]) == 2


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 50)])
@pytest.mark.parametrize("everything", [False, True])
def test_a_screen_is_never_taller_or_wider_than_the_terminal(
    big: Path, width: int, height: int, everything: bool
) -> None:
    """Also with every rank listed: the rest can be scrolled to."""
    choice = WatchChoice(everything=everything)
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    drawn = console.render_lines(screen(view(big), choice, ConsoleDimensions(width, height)), pad=False)
    text = ["".join(segment.text for segment in line) for line in drawn]
    assert len(text) <= height
    assert all(len(line) <= width for line in text)
    assert "77" in text[3]
    assert "q quit" in text[-1]
    if everything:
        choice.sort, choice.scroll = "rank", 1000
        drawn = console.render_lines(screen(view(big), choice, ConsoleDimensions(width, height)), pad=False)
        assert any("gpu-125" in segment.text for line in drawn for segment in line)


def test_keys_choose_and_a_search_is_typed() -> None:
    """Each key does what the last line says; while a search is typed, keys are its letters."""
    choice = WatchChoice()
    for key in ("s", "r", "f", "j", "\x1b[B"):
        assert choice.press(key)
    assert (choice.sort, choice.reverse, choice.filter, choice.scroll) == ("rank", True, "waiting", 2)
    for key in ("/", "q", "x", "\x7f", "\r"):
        assert choice.press(key)
    assert (choice.text, choice.typing, choice.scroll) == ("q", False, 0)
    assert choice.press("\x1b")
    assert (choice.text, choice.filter) == ("", "all")
    assert not choice.press("q")


def test_a_strangers_status_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names with escapes, rates that are no numbers and rows of nonsense are shown safely or not at all."""
    status_files.write(tmp_path / "run", nodes=1, held=3)
    path = next((tmp_path / "run").glob("nodes/*/status.json"))
    value = json.loads(path.read_text())
    value["node"] = "gpu\x1b[2J"
    value["live"][0]["rate"] = "fast"
    value["live"][1]["groups"] = [{"group": "x\x1b]0;", "recorder": 3, "enqueued": 1, "completed": 1, "still_s": 1e300}]
    value["live"][2]["waiting"] = {"group": ["a"], "operation": {}, "seq": -5, "for_s": "long"}
    value["live"].append("nonsense")
    path.write_text(json.dumps(value))
    assert main(["watch", str(tmp_path / "run"), "--once", "--all"]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal of 40 lines."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    yield master, slave
    os.close(master)
    os.close(slave)


def watch(directory: Path, slave: int) -> subprocess.Popen[bytes]:
    # What the terminal itself says counts, not the size of the one that the tests run in.
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return subprocess.Popen(
        [sys.executable, "-m", "hangscope", "watch", str(directory)],
        stdin=slave,
        stdout=slave,
        env={**environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm"},
    )


def test_a_terminal_is_drawn_on_and_left_as_it_was(big: Path, terminal: tuple[int, int]) -> None:
    """In a real terminal: the view comes, a search narrows it, q ends it, and the terminal echoes again."""
    master, slave = terminal
    before = termios.tcgetattr(slave)
    process = watch(big, slave)
    try:
        assert b"waited for by" in until(master, b"q quit")
        os.write(master, b"/gpu-062\r")
        assert b"1016 hidden by the filter" in until(master, b"with 'gpu-062'")
        os.write(master, b"q")
        until(master, b"\x1b[?1049l")
        assert process.wait(10) == 0
        assert termios.tcgetattr(slave) == before
    finally:
        process.kill()
        process.wait()


def test_a_run_that_leaves_nothing_behind_ends_the_view(big: Path, terminal: tuple[int, int]) -> None:
    """A directory that was never a run is an error; one that goes away because all went well is the end."""
    master, slave = terminal
    process = watch(big, slave)
    try:
        until(master, b"q quit")
        shutil.rmtree(big)
        until(master, b"left nothing behind")
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
    assert main(["watch", str(big), "--once"]) == 2


def until(master: int, mark: bytes) -> bytes:
    seen = b""
    end = time.monotonic() + 15
    while mark not in seen and time.monotonic() < end:
        if select.select([master], [], [], 0.2)[0]:
            seen += os.read(master, 1 << 16)
    assert mark in seen
    return seen
