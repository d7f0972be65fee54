"""What happens to the command, as other threads see it: a watchdog's alarm, a signal that is handed on, the end.

They leave it here and wake the agent's loop, which sleeps here as well.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterable

from hangscope.recorder.rundir.peer_files import DETACHED, NOT_KNOWN

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class JobEvents:
    def __init__(self) -> None:
        self.alarms: list[str] = []
        self.asked_to_end = False
        """A signal that ends processes was handed on: ranks that end now were asked to."""
        self.asked_at: float | None = None
        """When the first such signal came."""
        self.save_wanted = threading.Event()
        """The command is about to be ended: what its ranks do now is to be saved before, where they stand still."""
        self.saved = threading.Event()
        """That was done, or there was nothing to save."""
        self.exit_status: int | None = None
        """The command's own; None while it runs, and where it is not known: somebody else is its parent."""
        self.detached = False
        """The watch is over, and the job goes on."""
        self.ended = threading.Event()
        """The command has ended, and all of its output is there."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)

    def alarm(self, text: str) -> None:
        """A watchdog of PyTorch has printed that it gives up."""
        self.alarms.append(text)
        self._wake()

    def signalled(self, number: int) -> None:
        """A signal is being handed on to the command."""
        if number in _ENDING:
            self.asked_to_end = True
            self.asked_at = self.asked_at or time.time()

    def save_first(self, seconds: float) -> None:
        """Have the agent save what a job that stands still is doing, and wait for that, at most so long."""
        self.save_wanted.set()
        self._wake()
        self.saved.wait(seconds)

    @property
    def end_as_said(self) -> int | str | None:
        """For the status file: the exit status, or in words how else the watch ended; None while it lasts."""
        if not self.ended.is_set():
            return None
        if self.exit_status is None:
            return DETACHED if self.detached else NOT_KNOWN
        return self.exit_status

    def end(self, status: int | None) -> None:
        self.exit_status = status
        self.ended.set()
        self._wake()

    def take_alarm(self) -> str | None:
        """The first alarm since this was last asked; those after it say the same."""
        first = next(iter(self.alarms), None)
        self.alarms.clear()
        return first

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    def sleep(self, seconds: float, handles: Iterable[int]) -> None:
        """Until something happens here, one of `handles` (of processes) turns readable, or the time is over."""
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        for handle in handles:
            poller.register(handle, select.POLLIN)
        for handle, _ in poller.poll(max(0.0, seconds) * 1000):
            if handle == self._wake_read:
                os.read(self._wake_read, 64)
