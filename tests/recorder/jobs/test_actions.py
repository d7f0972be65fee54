"""The parts behind `--on-hang`, announced pauses, metrics and full disks, each with real processes and files."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

import hangscope
from hangscope.errors import SettingsError
from hangscope.recorder.agent import announced_pauses, on_hang
from hangscope.recorder.agent.metrics import Metrics, Numbers, escape, render
from hangscope.recorder.agent.on_hang import OnHang
from hangscope.recorder.agent.recovered_stalls import Sites, Stall, sites_of
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.thread_waits import RankPosition, StackFrame, ThreadWait
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.process.linux_process import ProcessHandle
from hangscope.recorder.rundir.node_dir import NodeDir

VERDICT = {"outcome": "hang", "kind": "absent", "culprits": [{"rank": 3}], "summary": "Rank 3\0 sleeps."}


# ---- commands --------------------------------------------------------------------------------------------------------


def test_a_slip_is_found_before_the_job_starts() -> None:
    """A word that is neither report nor kill nor a program is an error, not a surprise at the hang."""
    assert OnHang.of(("report",)) == OnHang()
    assert OnHang.of(("kill", "true", "curl -d @- http://x"), 3).commands == ("true", "curl -d @- http://x")
    with pytest.raises(SettingsError, match="--on-hang kil: neither report nor kill"):
        OnHang.of(("kil",))
    with pytest.raises(SettingsError, match="--grace"):
        OnHang.of(("kill",), -1)


def test_a_command_gets_the_verdict_in_its_environment_and_on_stdin(tmp_path: Path) -> None:
    """Whatever is in the evidence, also what no environment can hold."""
    out = tmp_path / "out"
    command = (
        f'cat > {out}; echo "$HANGSCOPE_OUTCOME/$HANGSCOPE_CULPRITS/$HANGSCOPE_SUMMARY/$HANGSCOPE_INCIDENT" >> {out}'
    )
    assert on_hang.tell(command, tmp_path, None, VERDICT) == ""
    first, second = out.read_text().splitlines()
    assert json.loads(first) == VERDICT
    assert second == f"hang/3/Rank 3? sleeps./{tmp_path}"


def test_a_command_that_fails_or_hangs_is_said_and_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its last line is quoted; one that does not end is ended, with all that it started."""
    assert (
        on_hang.tell("echo no route to host >&2; exit 7", tmp_path, None, {}) == "ended with status 7: no route to host"
    )
    monkeypatch.setattr(on_hang, "COMMAND_S", 0.5)
    begun = time.monotonic()
    assert on_hang.tell(f"(sleep 30; touch {tmp_path}/late) & wait", tmp_path, None, {}) == "no end within 0.5 s"
    assert time.monotonic() - begun < 5
    sleeping = subprocess.run(["pgrep", "-f", f"touch {tmp_path}/late"], capture_output=True, text=True)
    assert sleeping.stdout == ""


# ---- ending ----------------------------------------------------------------------------------------------------------


def rank_of(code: str) -> tuple[WatchedRank, subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return WatchedRank.of(RankProcess(process.pid, 0)), process


def test_ranks_get_time_to_end_by_themselves_and_no_more() -> None:
    """One that listens to SIGTERM ends in its own way; one that does not, or is stopped, is killed after the grace."""
    code = "import signal, sys, time; signal.signal(15, {}); print('up', flush=True); time.sleep(60)"
    polite, first = rank_of(code.format("lambda *_: sys.exit(5)"))
    stubborn, second = rank_of(code.format("signal.SIG_IGN"))
    stopped, third = rank_of(code.format("signal.SIG_DFL"))
    os.kill(third.pid, signal.SIGSTOP)
    begun = time.monotonic()
    assert on_hang.end([polite, stubborn, stopped], 1.0, lambda: True) == []
    assert 1.0 <= time.monotonic() - begun < 5
    assert [first.wait(), second.wait()] == [5, -signal.SIGKILL]
    assert third.wait() in (-signal.SIGKILL, -signal.SIGTERM)  # the kernel takes either of the two that are pending


def test_a_job_that_moves_again_is_not_ended() -> None:
    """The last look decides."""
    rank, process = rank_of("import time; print('up', flush=True); time.sleep(60)")
    assert on_hang.end([rank], 0.1, lambda: False) == []
    assert process.poll() is None
    process.kill()
    process.wait()


# ---- pauses ----------------------------------------------------------------------------------------------------------


def test_a_pause_lasts_until_the_last_block_of_any_thread_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nested, over threads, and after an exception; when it is over, that is known too."""
    monkeypatch.setenv("HANGSCOPE_SOCKETS", str(tmp_path))
    pids = [os.getpid()]
    assert announced_pauses.newest(tmp_path, pids) is None
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with hangscope.expect_pause("checkpoint", at_most_s=100):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with hangscope.expect_pause("evaluation"):
        thread.start()
        inside.wait(10)
        with hangscope.expect_pause("inner", at_most_s=0.001):
            found = announced_pauses.newest(tmp_path, pids)
            assert found == announced_pauses.Pause(0.0, "evaluation")
    time.sleep(0.05)
    assert announced_pauses.newest(tmp_path, pids) == announced_pauses.Pause(0.0, "checkpoint")
    leave.set()
    thread.join()
    over = announced_pauses.newest(tmp_path, pids)
    assert over is not None
    assert 0 <= over.ago_s < 5
    with pytest.raises(ValueError, match="a batch"), hangscope.expect_pause():
        raise ValueError("a batch")
    assert (announced_pauses.newest(tmp_path, pids) or announced_pauses.Pause(-1)).ago_s >= 0


def test_a_pause_that_outlasts_its_bound_no_longer_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its bound on the clock runs as without it."""
    monkeypatch.setenv("HANGSCOPE_SOCKETS", str(tmp_path))
    with hangscope.expect_pause("evaluation", at_most_s=0.05):
        time.sleep(0.2)
        found = announced_pauses.newest(tmp_path, [os.getpid()])
        assert found is not None
        assert found.overdue
        assert 0.1 < found.ago_s < 5


def test_a_forked_child_announces_nothing_of_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DataLoader worker that leaves its parent's block does not end its parent's pause."""
    monkeypatch.setenv("HANGSCOPE_SOCKETS", str(tmp_path))
    pause = hangscope.expect_pause("evaluation")
    pause.__enter__()
    pid = os.fork()
    if pid == 0:
        pause.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(pid, 0)
    assert announced_pauses.newest(tmp_path, [os.getpid()]) == announced_pauses.Pause(0.0, "evaluation")
    pause.__exit__(None, None, None)


def test_a_pause_is_nothing_without_run_and_cheap_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, no error, and microseconds; a directory that is gone troubles nobody; only a wrong bound is an error."""
    monkeypatch.delenv("HANGSCOPE_SOCKETS", raising=False)
    begun = time.perf_counter()
    for _ in range(1000):
        with hangscope.expect_pause("evaluation"):
            pass
    assert time.perf_counter() - begun < 0.5
    monkeypatch.setenv("HANGSCOPE_SOCKETS", str(tmp_path / "gone"))
    with hangscope.expect_pause("evaluation"):
        pass
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="at_most_s"):
        hangscope.expect_pause(at_most_s=0)


def test_a_place_that_recovered_has_a_threshold_of_its_own() -> None:
    """Twice the longest that it took; other places keep theirs; a line is said once a stall."""
    sites = Sites()
    site = ("default_pg", "all_reduce")
    assert sites.threshold([site], 30) == 30
    assert sites.line([site], "rank 1: all_reduce #7 unfinished", 31, 30) is None
    sites.went_on([site], 40)
    sites.went_on([site], 20)
    assert sites.threshold([site], 30) == 80
    assert sites.threshold([("default_pg", "barrier")], 30) == 30
    said = sites.line([site], "rank 1: all_reduce #9 unfinished", 31, 30)
    assert said is not None
    assert said.startswith("rank 1: all_reduce #9 unfinished for 31.0 s; here the job went on by itself before, after")
    assert said.endswith("after 40.0 s, so it is saved in full only after 80.0 s")
    assert sites.line([site], "rank 2: all_reduce #9 unfinished", 32, 30) is None
    assert sites.line([site], "rank 2: all_reduce #9 unfinished", -1, 30) is not None  # began after the line was said


def test_a_wait_without_an_operation_is_a_place_too() -> None:
    """A rank that stands in a store has the raised threshold of that line, and the pause counts from when it came."""
    wait = ThreadWait("store.wait", StackFrame("/job/train.py", 3, "main"), None)
    position = RankPosition(since=time.monotonic() - 40, samples=2, wait=wait)
    rank = WatchedRank(RankProcess(os.getpid(), 0), ProcessHandle(os.getpid()), position=position)
    stall = Stall.of([rank])
    assert stall.sites == sites_of(rank) == {("store.wait", "train.py:3")}
    assert 40 <= stall.seconds() < 45
    sites = Sites()
    sites.went_on(stall.sites, stall.seconds())
    assert sites.threshold(sites_of(rank), 30) >= 80


# ---- metrics ---------------------------------------------------------------------------------------------------------

LINE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)')


def parsed(text: str) -> dict[str, float]:
    """By the rules of the format: every line a comment or a sample, every family announced before its samples."""
    found, announced = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            announced.add(line.split()[2])
        elif not line.startswith("# HELP "):
            match = LINE.fullmatch(line)
            assert match is not None, line
            assert match[1] in announced
            found[match[1]] = float(match[3])
    return found


def test_the_metrics_are_what_prometheus_reads_whatever_the_names_are() -> None:
    """A job's name may hold quotes, backslashes, line feeds and bytes that are no UTF-8."""
    labels = {"job": 'a"b\\c\nd\udcff', "attempt": "0", "node": "n"}
    numbers = Numbers(8, 7, 1, 3, 1794753517.5, 12.25, 30.0, {"stall": 2}, {("hang", "absent"): 1}, 1, False)
    text = render(numbers, labels)
    found = parsed(text)
    assert found["hangscope_ranks_watched"] == 7
    assert found["hangscope_last_progress_timestamp_seconds"] == 1794753517.5
    assert (found["hangscope_stalls_total"], found["hangscope_pauses_total"]) == (2, 1)
    assert 'job="a\\"b\\\\c\\nd?"' in text
    assert escape("plain") == "plain"
    assert parsed(render(Numbers(), labels))["hangscope_ranks_watched"] == 0


def test_the_metrics_can_be_had_from_a_port_and_a_folder(tmp_path: Path) -> None:
    """The port is this machine's own; the file has its name from the job and goes with it."""
    metrics = Metrics({"job": "j/1", "attempt": "0", "node": "n"}, file=tmp_path, port="0")
    metrics.publish(Numbers(watched=4))
    host, port = metrics.address or ("", 0)
    assert host == "127.0.0.1"
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
        assert parsed(answer.read().decode())["hangscope_ranks_watched"] == 4
    assert (tmp_path / "hangscope-j-1-0-n.prom").read_text().startswith("# HELP hangscope_info")
    with socket.create_connection((host, port)):  # a client that asks for nothing keeps nobody
        metrics.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SettingsError, match="--metrics-port http: no port"):
        Metrics({}, port="http")


# ---- places that are full --------------------------------------------------------------------------------------------


def test_a_part_goes_on_elsewhere_once_its_place_is_full(tmp_path: Path) -> None:
    """With what was saved before; a place that has become read-only counts the same."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a file system")
    try:
        spare = tmp_path / "spare"
        node_dir = NodeDir(place / "i", place / "i" / "nodes" / "n", lambda: spare)
        spare.mkdir()
        assert node_dir.write("dumps/first", b"1")
        assert node_dir.write("dumps/large", b"2" * (1 << 20))
        assert node_dir.moved == "No space left on device"
        assert (node_dir.incident, node_dir.directory) == (spare, spare / "nodes" / "n")
        assert node_dir.write("node.json", b"{}")
        assert sorted(path.name for path in spare.rglob("*") if path.is_file()) == ["first", "large", "node.json"]
        assert node_dir.gaps == []
        alone = NodeDir(place / "j", place / "j" / "nodes" / "n")
        assert not alone.write("large", b"2" * (1 << 20))
        assert alone.gaps[0]["why"] == "cannot be written: No space left on device"
    finally:
        subprocess.run(["umount", "-l", place], check=True)
