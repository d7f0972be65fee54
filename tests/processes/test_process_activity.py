"""What a process uses between two looks."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from hangscope.processes.process_activity import ActivitySample

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
SENDS = """
import socket, threading, time
listener = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(listener.getsockname())
reader, _ = listener.accept()
threading.Thread(target=lambda: [reader.recv(1 << 20) for _ in iter(int, 1)], daemon=True).start()
while True:
    sender.send(b"x" * 100_000)
    time.sleep(0.1)
"""
POLLS = """
import os, time
while not os.path.exists("/nowhere"):
    time.sleep(0.5)
"""
SLEEPS = "import time; time.sleep(60)"
LOADER_WAITS = """
import multiprocessing
queue = multiprocessing.Queue()
try:
    queue.get(timeout=60)
except Exception:
    pass
"""


@pytest.mark.parametrize(
    ("code", "works", "polls"),
    [(SENDS, True, True), (POLLS, False, True), (SLEEPS, False, False), (LOADER_WAITS, False, False)],
)
def test_bytes_that_are_sent_are_work_and_a_loop_that_polls_is_not_known(code: str, works: bool, polls: bool) -> None:
    """What goes through send() counts, which /proc/PID/io does not show; one sleep or wait is neither."""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            time.sleep(0.7)
            before = ActivitySample.of(process.pid, time.monotonic())
            time.sleep(1.2)
            used = ActivitySample.of(process.pid, time.monotonic()).since(before)
            assert (used.works, used.polls) == (works, polls), used
        finally:
            process.kill()


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
