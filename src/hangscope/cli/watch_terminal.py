"""`watch` on a terminal: drawn anew every second, and at once when a key is pressed. The terminal is left as it was."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.cli.watch_stragglers import Stragglers
from hangscope.errors import NotFoundError
from hangscope.recorder.rundir.live_view import LiveView, view

EVERY_S = 1.0
SORTS = ("wait", "rank", "rate", "node", "silent")
FILTERS = ("all", "waiting", "late", "gone")
KEYS = "s sort  r reverse  f filter  / search  a all  j k scroll  q quit"
_PAGE = 10
_STEPS = {"j": 1, "\x1b[B": 1, "k": -1, "\x1b[A": -1, " ": _PAGE, "\x1b[6~": _PAGE, "b": -_PAGE, "\x1b[5~": -_PAGE}
"""Letters, arrows, the blank and the page keys."""


@dataclass(slots=True)
class WatchChoice:
    """What the reader asked to see."""

    sort: str = "wait"
    filter: str = "all"
    text: str = ""
    everything: bool = False
    reverse: bool = False
    scroll: int = 0
    typing: bool = False
    stragglers: Stragglers = field(default_factory=Stragglers)
    """What was seen so far of who comes last."""

    def press(self, key: str) -> bool:
        """Act on a key; False where it means the end."""
        if self.typing:
            self._type(key)
            return True
        if key in ("q", "Q", "\x03", "\x04"):
            return False
        if key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        elif key == "f":
            self.filter = FILTERS[(FILTERS.index(self.filter) + 1) % len(FILTERS)]
        elif key == "r":
            self.reverse = not self.reverse
        elif key == "a":
            self.everything = not self.everything
        elif key == "/":
            self.typing = True
            self.text = ""
        elif key == "\x1b":
            self.text = ""
            self.filter = "all"
        if key in ("s", "f", "r", "/", "\x1b"):
            self.scroll = 0
        self.scroll = max(0, self.scroll + _STEPS.get(key, 0))
        return True

    def _type(self, key: str) -> None:
        if key in ("\r", "\n", "\x1b", "\x03"):
            self.typing = False
            self.text = "" if key in ("\x1b", "\x03") else self.text
        elif key in ("\x7f", "\b"):
            self.text = self.text[:-1]
        elif key.isprintable() and len(self.text) < 40:
            self.text += key

    @property
    def line(self) -> str:
        """The choice in words, for the last line of the screen."""
        if self.typing:
            return f"search: {self.text}_   (Enter to apply, Esc to cancel)"
        parts = [f"by {self.sort}{' reversed' if self.reverse else ''}", f"showing {self.filter}"]
        parts += [f"with {self.text!r}"] if self.text else []
        return f"{KEYS}   [{', '.join(parts)}]"


def follow(directory: Path, choice: WatchChoice) -> int:
    """Until the job ends or somebody has seen enough."""
    from rich.console import Console
    from rich.live import Live

    from hangscope.cli.watch_screen import screen
    from hangscope.cli.watch_text import as_text

    console = Console(highlight=False, markup=False, emoji=False)
    now: LiveView | None = None
    last = ""
    with keys() as pressed, Live(console=console, auto_refresh=False, screen=True) as live:
        due = 0.0
        while True:
            if time.monotonic() >= due:
                try:
                    now = view(directory)
                except NotFoundError:
                    if now is None:
                        raise
                    last = "the run ended without problems and left nothing behind\n"
                    break
                due = time.monotonic() + EVERY_S
                choice.stragglers.take(now)
                if now.ended:
                    last = as_text(now, choice, console.width)
                    break
            assert now is not None
            live.update(screen(now, choice, console.size), refresh=True)
            key = pressed(max(0.0, due - time.monotonic()))
            if key and not choice.press(key):
                break
    console.print(last, end="", soft_wrap=True)
    return 0


class Pressed:
    """The next key within some seconds, empty where none came. An arrow is one key, although it sends several bytes."""

    def __init__(self, terminal: int | None) -> None:
        self._terminal = terminal

    def __call__(self, seconds: float) -> str:
        if self._terminal is None:
            time.sleep(seconds)
            return ""
        if not select.select([self._terminal], [], [], seconds)[0]:
            return ""
        terminal = self._terminal
        data = os.read(terminal, 1)
        if not data:
            self._terminal = None  # closed: the view goes on by itself
        while data.startswith(b"\x1b") and len(data) < 8 and select.select([terminal], [], [], 0.02)[0]:
            data += os.read(terminal, 1)
            if data[-1:].isalpha() or data[-1:] == b"~":
                break
        return data.decode(errors="ignore")


@contextmanager
def keys() -> Iterator[Pressed]:
    """Keys as they are pressed, without echo; whatever happens, the terminal is as before afterwards."""
    if not sys.stdin.isatty():
        yield Pressed(None)
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield Pressed(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
