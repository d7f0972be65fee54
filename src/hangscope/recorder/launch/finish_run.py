"""The end of a run: the agent saves what is left to save, for as long as that takes; not for ever.

The command has ended: whoever waits for it gets its status, whatever a shared file system or a neighbour does.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hangscope.recorder.agent.node_agent import Agent
from hangscope.safeio.safe_files import Patience, Refused

FINISH_S = 300.0
"""For the last capture, the other nodes and the verdict, which has three minutes of its own."""
AFTER_SIGNAL_S = 5.0
LOOK_S = 4.0
SILENT_S = 15.0
"""What a capture has left once its file system does not answer: it may be saving elsewhere by now."""


def finish(
    agent: Agent,
    status: int | None,
    root: Path,
    interrupted: threading.Event,
    say: Callable[[str], None],
    after_signal_s: Callable[[], float] = lambda: AFTER_SIGNAL_S,
) -> None:
    """Have the agent finish, in bounded time. `interrupted` is set when a signal comes that is to end us; then there is
    `after_signal_s` left."""
    work = threading.Thread(target=agent.finish, args=(status,), name="finish", daemon=True)
    work.start()
    until = time.monotonic() + FINISH_S
    patience = Patience(LOOK_S)
    looked_at = time.monotonic()
    left_because = ""
    while work.is_alive() and time.monotonic() < until:
        work.join(timeout=0.2)
        if not left_because and time.monotonic() - looked_at > LOOK_S:
            looked_at = time.monotonic()
            if not _answers(root, patience):
                left_because = f"the file system of {root} does not answer"
                until = min(until, time.monotonic() + SILENT_S)
        if interrupted.is_set():
            interrupted.clear()
            left_because = "a signal came"
            until = min(until, time.monotonic() + after_signal_s())
    if work.is_alive():
        why = left_because or f"not done within {FINISH_S:g} s"
        say(f"the last part of the capture is left behind: {why}")


def _answers(root: Path, patience: Patience) -> bool:
    """Whether a file system answers: what it has room for is nothing that this machine remembers."""
    try:
        patience.ask(str(root), functools.partial(os.statvfs, root))
    except Refused:
        return False
    except OSError:
        return True
    return True
