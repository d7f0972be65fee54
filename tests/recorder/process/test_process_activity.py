"""What a process uses between two looks."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from hangscope.recorder.process.process_activity import ActivitySample

MAIN_SLEEPS = """
import threading, time
def answer():
    while True:
        open('/proc/self/maps').read()
threading.Thread(target=answer, daemon=True).start()
time.sleep(60)
"""
MAIN_WORKS = """
while True:
    sum(range(10000))
"""
CHILD_WORKS = """
import subprocess, sys
subprocess.run([sys.executable, '-c', 'while True: sum(range(10000))'])
"""


@pytest.mark.parametrize(
    ("code", "answering", "works"),
    [
        (MAIN_SLEEPS, False, True),
        (MAIN_SLEEPS, True, False),
        (MAIN_WORKS, True, True),
        (CHILD_WORKS, True, True),
    ],
)
def test_what_a_rank_does_for_us_is_no_work_of_its_own(code: str, answering: bool, works: bool) -> None:
    """While it answers in a thread for that, its main thread and what it started count alone."""
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        try:
            time.sleep(1.0)
            before = ActivitySample.of(process.pid, time.monotonic(), answering=answering)
            time.sleep(1.0)
            used = ActivitySample.of(process.pid, time.monotonic(), answering=answering).since(before)
            assert used.works is works, used
        finally:
            subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
