"""What verbs print: the answer on stdout, everything else on stderr, progress and colour only on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from hangscope.report.safe_text import safe

if TYPE_CHECKING:
    from hangscope.report.text_layout import Line

PLAIN_WIDTH = 80
"""The width where nobody says one: what survives a mail, a chat and a ticket."""
NARROWEST = 40
WIDEST = 120
"""A terminal of any width is answered within these: longer lines are hard to read. `--width` may ask for more."""
UNCUT = 10_000

_PLAIN = str.maketrans(
    {"·": "|", "→": "->", "…": "...", "–": "-", "—": "-", "“": '"', "”": '"', "’": "'", "×": "x"}
    | {"├": "|", "└": "`", "─": "-", "│": "|", "◀": "<"}
)


def complain(message: str, hint: str | None = None) -> None:
    """What went wrong, and the cure, on stderr."""
    print(f"error: {safe(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {safe(hint)}", file=sys.stderr)


def note(message: str) -> None:
    """Something worth knowing that is not part of the answer, on stderr."""
    print(safe(message), file=sys.stderr)


def finish() -> None:
    """Flush here, where a closed pipe can still be handled."""
    sys.stdout.flush()


def write(text: str) -> None:
    """The answer, in whatever encoding stdout has: characters that it lacks are spelled in ASCII."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise ReaderGone from None


class ReaderGone(BaseException):
    """Nobody reads our output any more. Not the system's own error, at which click ends a verb with 1: an answer of
    `diagnose`."""


def width(asked: int | None = None) -> int:
    """`--width`, else COLUMNS, else the terminal's, else 80."""
    if asked is not None:
        return asked
    columns = shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns
    return min(max(columns, NARROWEST), WIDEST)


def table_width(asked: int | None = None) -> int:
    """`--width`, else the terminal's; a table for a file or a pipe is not cut."""
    if asked is not None:
        return asked
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNCUT


def coloured(stream: TextIO) -> bool:
    """Whether colour is wanted: a terminal that can show it, and no NO_COLOR (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write_lines(lines: Sequence[Line]) -> None:
    """A laid-out report: plain text, or the same text in colour on a terminal."""
    from hangscope.report.text_layout import ROLES, plain

    if not coloured(sys.stdout):
        write(plain(lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    for line in lines:
        console.print(Text.assemble(*((piece.text, ROLES[piece.role]) for piece in line)))


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Say on a terminal's stderr that something takes a while."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(safe(what))):
        yield
