"""Pauses that the training code announces, from `hangscope.expect_pause` to what the agent reads."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

import hangscope
from hangscope.recorder.agent import announced_pauses


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
