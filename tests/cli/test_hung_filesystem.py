"""A file system that does not answer, for real: training starts and ends, verbs say so and give up, Ctrl-C works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import hangscope
from hangscope.cli import hung_filesystem
from kits import hung_mount

needs_fuse = pytest.mark.skipif(not hung_mount.possible(), reason="needs root, /dev/fuse and the right to mount")
CASE = Path(__file__).parents[1] / "cases" / "skipped"
_PROGRAM = """
import sys
import hangscope.recorder.launch.run_places as run
from hangscope.cli import hung_filesystem
from hangscope.cli.main import main
hung_filesystem.NOTE_S = 1.0
hung_filesystem.GIVE_UP_S = float(sys.argv[1])
run.CLAIM_S = 2.0
sys.exit(main(sys.argv[2:]))
"""


def _start(*words: str, give_up_s: float = 3.0, **environ: str) -> subprocess.Popen[str]:
    source = str(Path(hangscope.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(give_up_s), *words],
        env={**os.environ, "PYTHONPATH": source, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # a shell has what it starts in the background ignore Ctrl-C, and so these tests too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.fixture
def hung(tmp_path: Path) -> Path:
    place = tmp_path / "hung"
    place.mkdir()
    return place


@needs_fuse
@pytest.mark.parametrize(
    "words",
    [
        ["diagnose", "{}"],
        ["show", "{}/x"],
        ["report", "{case}", "-o", "{}/r.html"],
        ["bundle", "{}", "-o", "{out}"],
        ["bundle", "{case}", "-o", "{}/b.tar.gz"],
        ["collect", "--from", "{}", "-o", "{out}"],
        ["collect", "--from", "{case}", "-o", "{}/c"],
        ["watch", "{}", "--once"],
        ["snapshot", "{}"],
    ],
)
def test_a_verb_names_the_file_system_that_does_not_answer(words: list[str], hung: Path, tmp_path: Path) -> None:
    """Reading from it or writing to it, every verb says which path it waits for and gives up in words."""
    with hung_mount.silent(hung):
        process = _start(*(word.format(hung, case=CASE, out=tmp_path / "out") for word in words))
        said, _ = process.communicate(timeout=60)
    assert process.returncode == hung_filesystem.STATUS, said
    assert f"waiting for {hung}" in said
    assert f"error: {hung}" in said and "its file system does not answer" in said
    assert "Traceback" not in said


@needs_fuse
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_verb_that_waits(number: signal.Signals, hung: Path) -> None:
    """Ctrl-C and SIGTERM end a verb although the call that it is in does not come back."""
    with hung_mount.silent(hung):
        process = _start("diagnose", str(hung), give_up_s=1000)
        assert process.stdout is not None
        assert "waiting for" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(timeout=10) == -number


def _until_it_hangs(pid: int) -> None:
    """Not by a time: a signal while modules are loaded is their affair, and some of them lose it."""
    before = ""
    for _ in range(400):
        now = Path(f"/proc/{pid}/syscall").read_text()
        if now == before and now.split()[0] in ("4", "262", "332", "79", "291"):  # stat, and its kin
            return
        before = now
        time.sleep(0.05)
    raise AssertionError(f"it is in {before}")


@needs_fuse
def test_a_signal_that_comes_early_ends_a_verb_too(hung: Path) -> None:
    """Ctrl-C ends it also before anything was said about the file system."""
    with hung_mount.silent(hung):
        process = _start("diagnose", str(hung), give_up_s=1000)
        _until_it_hangs(process.pid)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=20)
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in said


@needs_fuse
def test_a_silent_part_of_a_tree_is_named(hung: Path, tmp_path: Path) -> None:
    """Where one node's folder hangs, that folder is named, and not the tree."""
    (tmp_path / "rank_0.log").write_text("x\n")
    with hung_mount.silent(hung):
        said, _ = _start("diagnose", str(tmp_path)).communicate(timeout=60)
    assert f"waiting for {hung}:" in said


@needs_fuse
@pytest.mark.parametrize("below", ["", "x/y"])
def test_training_starts_although_its_directory_does_not_answer(below: str, hung: Path, tmp_path: Path) -> None:
    """`run` says where it saves instead, starts the command and returns its status."""
    with hung_mount.silent(hung):
        process = _start("run", "--dir", str(hung / below), "--", "sh", "-c", "exit 7", TMPDIR=str(tmp_path))
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 7, said
    assert f"{hung / below}: no answer within" in said and f"goes to {tmp_path}" in said


@needs_fuse
def test_training_starts_although_temporary_files_have_no_place(hung: Path, tmp_path: Path) -> None:
    """A TMPDIR that does not answer is passed over, said, and left to the command as it is."""
    words = ["run", "--dir", str(tmp_path / "run"), "--", "sh", "-c", "echo TMPDIR is $TMPDIR; exit 7"]
    with hung_mount.silent(hung):
        process = _start(*words, TMPDIR=str(hung))
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 7, said
    assert f"TMPDIR={hung}: its file system does not answer" in said and f"TMPDIR is {hung}\n" in said


@needs_fuse
def test_a_neighbours_folder_that_hangs_does_not_keep_run(tmp_path: Path) -> None:
    """`run` returns when its command has ended, whatever a neighbour's folder does."""
    neighbour = tmp_path / "run" / "nodes" / "neighbour"
    neighbour.mkdir(parents=True)
    with hung_mount.silent(neighbour):
        begun = time.monotonic()
        process = _start("run", "--dir", str(tmp_path / "run"), "--", "sh", "-c", "sleep 1; exit 7")
        said, _ = process.communicate(timeout=90)
    assert process.returncode == 7, said
    assert time.monotonic() - begun < 60


@needs_fuse
def test_a_directory_that_falls_silent_does_not_keep_run(tmp_path: Path) -> None:
    """A server that goes while the training runs costs the copy and the capture, and never the command's status."""
    root = tmp_path / "run"
    root.mkdir()
    process = _start("run", "--dir", str(root), "--", "sh", "-c", "sleep 4; echo done; exit 7", TMPDIR=str(tmp_path))
    time.sleep(2)
    ended = threading.Event()

    def signal_after() -> None:  # a job's owner does not wait for ever either
        if not ended.wait(60):
            process.send_signal(signal.SIGTERM)

    threading.Thread(target=signal_after, daemon=True).start()
    with hung_mount.silent(root):
        said, _ = process.communicate(timeout=120)
        ended.set()
    assert process.returncode == 7, said


_OPEN = """
import signal, sys, time
from hangscope.cli import hung_filesystem
hung_filesystem.NOTE_S, hung_filesystem.GIVE_UP_S = 0.5, float(sys.argv[2])
with hung_filesystem.watch_for_hung_calls():
    open(sys.argv[1]).close()
    time.sleep(1.5)
    signal.raise_signal(signal.SIGINT)
"""


def _open_pipe(pipe: Path, give_up_s: float) -> subprocess.Popen[str]:
    os.mkfifo(pipe)
    return subprocess.Popen(
        [sys.executable, "-c", _OPEN, str(pipe), str(give_up_s)],
        env={**os.environ, "PYTHONPATH": str(Path(hangscope.__file__).parents[1])},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_a_call_that_does_not_come_back_is_noted_and_given_up(tmp_path: Path) -> None:
    """The kernel's own word on what a thread is in is enough, as for a pipe that nobody opens at its other end."""
    process = _open_pipe(tmp_path / "pipe", 2.0)
    _, said = process.communicate(timeout=60)
    assert process.returncode == hung_filesystem.STATUS
    assert f"waiting for {tmp_path}/pipe: its file system has not answered" in said
    assert f"error: {tmp_path}/pipe: its file system does not answer" in said


def test_a_call_that_comes_back_after_all_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """After a late answer the work goes on, and Ctrl-C is Python's again."""
    process = _open_pipe(tmp_path / "pipe", 60.0)
    assert process.stderr is not None
    assert "waiting for" in process.stderr.readline()
    (tmp_path / "pipe").write_text("")
    said = process.stderr.read()
    process.wait(timeout=60)
    assert "KeyboardInterrupt" in said
