"""A progress bar for verbs that move many bytes: on a terminal's stderr, and nowhere else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hangscope.report.safe_text import safe

_PAUSE_S = 0.05


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int, str], None] | None]:
    """Gives `progress(done, total, what)`, or None where nobody watches."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[what]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(title, total=None, what="")

        due = 0.0

        def update(done: int, total: int, what: str) -> None:
            nonlocal due
            now = time.monotonic()
            if now < due and done < total:  # a hundred thousand small files would be drawn for longer than read
                return
            due = now + _PAUSE_S
            shown.update(task, completed=done, total=total or None, what=Text(safe(what)[-40:]).plain)

        yield update
