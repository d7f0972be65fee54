"""Every process that a test has started, directly or not: by a mark in its environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "HANGSCOPE_TEST"


def processes_with(mark: str) -> list[int]:
    """Every process that was started with this mark."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
    return found


def end_all(mark: str) -> None:
    for _ in range(50):
        left = processes_with(mark)
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
