"""`-` among the paths: a paste that comes by standard input, kept in a file while it is read."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hangscope.errors import InputError

STANDARD_INPUT = "-"
MOST_BYTES = 1 << 30
"""Of standard input that are read."""
_NAME = "standard-input.log"
_PREFIX = "hangscope-standard-input-"
_CHUNK = 1 << 20


@contextmanager
def with_standard_input(paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The paths, with a folder in the place of `-`, whose one file holds what standard input gives."""
    if STANDARD_INPUT not in paths:
        yield tuple(paths)
        return
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        file = Path(folder) / _NAME
        _copy_to(file)
        yield tuple(folder if path == STANDARD_INPUT else path for path in dict.fromkeys(paths))


def as_given(text: str, paths: Sequence[str]) -> str:
    """A text without the folder in which standard input was kept: it is gone."""
    for path in paths:
        if Path(path).name.startswith(_PREFIX):
            text = text.replace(f"{path}/", "")
    return text


def _copy_to(file: Path) -> None:
    size = 0
    with file.open("wb") as copy:
        while size < MOST_BYTES and (chunk := sys.stdin.buffer.read(_CHUNK)):
            copy.write(chunk)
            size += len(chunk)
    if not size:
        raise InputError("standard input is empty", hint="paste the log, and end it with Ctrl-D")
