"""Processes as the kernel shows them, also somebody else's children."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hangscope.processes import linux_process


@pytest.mark.parametrize(("ending", "status"), [("exit 3", 3), ("kill -9 $$", -9), ("exit 0", 0)])
def test_how_somebody_elses_child_ended_is_known(tmp_path: Path, ending: str, status: int) -> None:
    """We are not the parent of a rank under torchrun; its end is noticed at once, with its status."""
    os.mkfifo(tmp_path / "order")
    launcher = subprocess.Popen(
        ["sh", "-c", f"sh -c 'read line <order; {ending}' & echo $!; wait $!; sleep 0.3"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert launcher.stdout is not None
        watched = linux_process.ProcessHandle(int(launcher.stdout.readline()))
        assert (watched.ended(), watched.status()) == (False, None)
        (tmp_path / "order").write_text("go\n")
        assert watched.fd is not None
        select.select([watched.fd], [], [], 5)
        assert (watched.ended(), watched.status()) == (True, status)
        watched.close()
    finally:
        launcher.kill()
        launcher.communicate()


def test_a_processs_family_and_state() -> None:
    """Descendants come with their depth, a stopped process shows as T, and a reused pid is not mistaken."""
    parent = subprocess.Popen(["sh", "-c", "sleep 30 & wait"], env={**os.environ, "RANK": "7"}, start_new_session=True)
    try:
        for _ in range(50):
            found = list(linux_process.descendants(parent.pid))
            if found:
                break
            time.sleep(0.05)
        [(child, depth)] = found
        assert depth == 1
        os.kill(child, signal.SIGSTOP)
        time.sleep(0.1)
        found = linux_process.stat(child)
        assert found is not None
        assert (found.state, found.parent) == ("T", parent.pid)
        assert linux_process.environment(parent.pid)["RANK"] == "7"
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def test_the_kernels_call_of_a_process_is_named(tmp_path: Path) -> None:
    """A process that waits for a FIFO to be opened is in openat; one that reads has the file beside it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    opens = subprocess.Popen([sys.executable, "-c", f"open({str(fifo)!r})"])
    reads = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        for child, call, about in ((opens, "openat", None), (reads, "read", "pipe:")):
            end = time.monotonic() + 20
            while (found := linux_process.system_call(child.pid))[0] != call and time.monotonic() < end:
                time.sleep(0.05)
            if found == (None, None):
                pytest.skip("the kernel does not tell here")
            assert found[0] == call
            assert about is None or (found[1] or "").startswith(about)
    finally:
        for child in (opens, reads):
            child.kill()
            child.wait()
