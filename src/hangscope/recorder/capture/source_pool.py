"""Threads for the sources of one capture, which nobody waits for at exit: a source may hang for good."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any

from hangscope.incident.node_dir import NodeDir


class SourcePool:
    """At most `size` sources are asked at once."""

    def __init__(self, size: int) -> None:
        self._slots = threading.Semaphore(size)
        self._names: dict[Future[None], str] = {}

    def start(self, name: str, function: Callable[..., None], *arguments: Any) -> Future[None]:
        job: Future[None] = Future()
        self._names[job] = name

        def work() -> None:
            with self._slots:
                try:
                    function(*arguments)
                except BaseException as error:
                    job.set_exception(error)
                else:
                    job.set_result(None)

        threading.Thread(target=work, name=name, daemon=True).start()
        return job

    def wait(self, jobs: Iterable[Future[None]], until: float, node_dir: NodeDir, *, late: str = "") -> None:
        """Until these are done, or until then. What failed is a gap; with `late`, so is what is not done."""
        done, unfinished = wait(list(jobs), timeout=max(0.1, until - time.monotonic()))
        for job in done:
            error = job.exception()
            if error is not None:
                node_dir.gap(self._names[job], f"{type(error).__name__}: {error}")
        if late:
            for job in unfinished:
                node_dir.gap(self._names[job], late)
