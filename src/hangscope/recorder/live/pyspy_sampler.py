"""Samples of ranks that cannot be asked, from outside, one process at a time, on a thread of its own: by our own reader
of frames, which takes milliseconds, or where that does not know the Python that runs there, by py-spy.

A sample by py-spy costs some tenths of a second, and none anything of the rank's, which is not stopped. So it is
taken only of a rank that the kernel shows idle, and never more often than its cost allows.
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from typing import Any

from hangscope.processes.programs import PY_SPY_S, py_spy, run_bounded
from hangscope.safeio import bounded_json
from hangscope.safeio.safe_files import Patience
from hangscope.sources import stacks
from hangscope.sources.cannot_read import CannotRead
from hangscope.sources.distributed_state import DistributedState

DUTY = 0.05
"""The share of one core that the samples of one rank may take."""
MOST_BYTES = 16 << 20
"""Of one sample in JSON, which has some 300 bytes a frame; a longer one is not taken."""


class PySpySampler:
    def __init__(self) -> None:
        self._requested: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, int, Any]] = queue.SimpleQueue()
        self._open: set[int] = set()
        self._rest_until: dict[int, float] = {}
        self._thread: threading.Thread | None = None
        self.refused = ""
        """Why they could not be read, where they could not."""

    def request(self, rank: int, pid: int, *, eagerly: bool = False) -> None:
        """Ask for a sample, unless one is under way, or the last ones were dear and nobody is waiting for it."""
        if rank in self._open or (not eagerly and time.monotonic() < self._rest_until.get(pid, 0.0)):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="py-spy", daemon=True)
            self._thread.start()
        self._open.add(rank)
        self._requested.put((rank, pid))

    def finished(self) -> list[tuple[int, int, Any]]:
        """(rank, pid, what py-spy's JSON has) of the samples that are done."""
        found = []
        while True:
            try:
                found.append(self._done.get_nowait())
            except queue.Empty:
                break
        self._open -= {rank for rank, _, _ in found}
        return [each for each in found if each[2] is not None]

    def close(self) -> None:
        self._requested.put(None)

    def _work(self) -> None:
        while (requested := self._requested.get()) is not None:
            rank, pid = requested
            begun = time.monotonic()
            value = self._sample(pid)
            self._rest_until[pid] = time.monotonic() + (time.monotonic() - begun) / DUTY
            self._done.put((rank, pid, value))

    def _sample(self, pid: int) -> Any:
        try:
            return Patience(PY_SPY_S).ask(str(pid), lambda: _by_ourselves(pid))
        except (CannotRead, OSError) as error:
            self.refused = str(error)
        program = py_spy()
        return None if program is None else self._by_py_spy(program, pid)

    def _by_py_spy(self, program: str, pid: int) -> Any:
        words = [program, "dump", "--json", "--nonblocking", "--pid", str(pid)]
        try:
            done = run_bounded(words, PY_SPY_S, MOST_BYTES)
            if done.cut:
                self.refused = f"its stacks are longer than {MOST_BYTES >> 20} MiB"
                return None
            if not done.ok:
                self.refused = (done.error.strip().splitlines() or ["no stack"])[0]
                return None
            self.refused = ""
            return bounded_json.loads(done.out)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None


def _by_ourselves(pid: int) -> list[dict[str, Any]]:
    """The stacks of a process, and of each thread whether it has a store of PyTorch's in hand."""
    rows = stacks.as_json(pid)
    try:
        with DistributedState(pid) as state:
            threads = state.open_stores()
    except CannotRead:
        threads = []
    return [{**row, "store": True} if row["os_thread_id"] in threads else row for row in rows]
