"""`-`, /dev/stdin and `<(…)` among the paths: what comes through a pipe is kept in a file while it is read."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hangscope.cli.given_paths import resolved
from hangscope.errors import InputError

STANDARD_INPUT = "-"
STANDARD_INPUT_NAME = "standard-input"
MOST_BYTES = 1 << 30
"""Of one pipe that are read."""
_HANDLE = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,6})")
_PREFIX = "hangscope-standard-input-"
_CHUNK = 1 << 20


@contextmanager
def with_pasted(paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The paths, with the newest incident for `latest`, and a folder in the place of each pipe, whose one file holds
    what the pipe gives. Other pipes, with a name on a disk, are never opened: a dump pipe would wait for ever."""
    paths = resolved(paths)
    handles = {path: handle for path in paths if (handle := _handle(path)) is not None}
    if not handles:
        yield tuple(dict.fromkeys(paths))
        return
    with ExitStack() as stack:
        kept: dict[str, str] = {}
        for path, handle in handles.items():
            kept[path] = stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX))
            _copy(path, handle, Path(kept[path]))
        yield tuple(kept.get(path, path) for path in dict.fromkeys(paths))


def as_given(text: str, kept: Sequence[str], paths: Sequence[str]) -> str:
    """A text without the folders in which pipes were kept: they are gone."""
    for folder, path in zip(kept, dict.fromkeys(paths), strict=True):
        if Path(folder).name.startswith(_PREFIX):
            text = text.replace(f"{folder}/", "").replace(folder, path)
    return text


def _handle(path: str) -> int | None:
    """The open handle that a path means; None where it is a path like any other."""
    match = _HANDLE.fullmatch(path)
    if path != STANDARD_INPUT and path != "/dev/stdin" and match is None:
        return None
    handle = int(match[1]) if match else 0
    try:
        return None if stat.S_ISDIR(os.fstat(handle).st_mode) else handle
    except OSError:
        raise InputError(f"{path}: nothing is open there") from None


def _copy(path: str, handle: int, folder: Path) -> None:
    """What a handle gives, as a file in the folder."""
    size = 0
    name = STANDARD_INPUT_NAME if handle == 0 else f"pipe-{handle}"
    with (folder / f"{name}.log").open("wb") as copy:
        while size < MOST_BYTES and (chunk := os.read(handle, _CHUNK)):
            copy.write(chunk)
            size += len(chunk)
    if not size and handle == 0:
        raise InputError("standard input is empty", hint="paste the log, and end it with Ctrl-D")
    if not size:
        raise InputError(f"{path} is empty", hint="the command in <(…) printed nothing")
