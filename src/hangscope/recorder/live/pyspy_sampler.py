"""Looks from outside at ranks that cannot be asked: py-spy, one process at a time, on a thread of its own.

A look costs some tenths of a second of ours and nothing of the rank's, which is not stopped. So it is taken only of a
rank that the kernel shows idle, and never more often than its cost allows.
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from typing import Any

from hangscope.recorder.process.pyspy_program import PY_SPY_S, py_spy
from hangscope.safeio import bounded_json

DUTY = 0.05
"""The share of one core that the looks at one rank may take."""


class PySpySampler:
    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, int, Any]] = queue.SimpleQueue()
        self._open: set[int] = set()
        self._rest_until: dict[int, float] = {}
        self._thread: threading.Thread | None = None
        self.refused = ""
        """Why py-spy may not look, where it said so."""

    def want(self, rank: int, pid: int) -> None:
        """Ask for a look, unless one is under way or the last ones were dear."""
        if rank in self._open or time.monotonic() < self._rest_until.get(pid, 0.0) or py_spy() is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="beside", daemon=True)
            self._thread.start()
        self._open.add(rank)
        self._wanted.put((rank, pid))

    def ready(self) -> list[tuple[int, int, Any]]:
        """(rank, pid, py-spy's JSON) of the looks that are done."""
        found = []
        while True:
            try:
                found.append(self._done.get_nowait())
            except queue.Empty:
                break
        self._open -= {rank for rank, _, _ in found}
        return [each for each in found if each[2] is not None]

    def close(self) -> None:
        self._wanted.put(None)

    def _work(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            begun = time.monotonic()
            value = self._look(wanted[1])
            self._rest_until[wanted[1]] = time.monotonic() + (time.monotonic() - begun) / DUTY
            self._done.put((*wanted, value))

    def _look(self, pid: int) -> Any:
        program = py_spy()
        if program is None:
            return None
        words = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
        try:
            done = subprocess.run(words, capture_output=True, timeout=PY_SPY_S, start_new_session=True)
            if done.returncode != 0:
                self.refused = (done.stderr.decode(errors="replace").strip().splitlines() or ["no stack"])[0]
                return None
            return bounded_json.loads(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None
