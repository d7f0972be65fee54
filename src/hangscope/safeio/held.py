"""Directories that are kept open while a verb works in them: what lies below is reached from the handle alone.

A path is looked up anew each time that it is used, and whoever can write beside may exchange a folder for a link in
between: what was listed is then not what is opened. So a tree that is read, and a run's own directory, is opened once,
and every path below it that `safeio` is given is gone from that handle, with no link followed.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hangscope.safeio.beneath import FOLDER, NOFOLLOW, ONLY_PLACE, open_beneath, open_folder

Name = tuple[str, int]


@dataclass
class _Held:
    names: tuple[Name, ...]
    """How paths begin that lie below it, and how much of that is its own name."""
    handle: int
    users: int = 1


_lock = threading.Lock()
_all: list[_Held] = []
"""The newest first: of two that a path lies below, the inner one was opened later."""


@contextmanager
def held(path: str | Path, *, make: bool = False, to_read: bool = True, only: str = "") -> Iterator[int]:
    """Keep the directory at `path` open. `make`: made where it is missing. `only`: for what begins with that in it.

    Links on the way are followed as `beneath.open_folder` says. One that is held already stays the same."""
    text = os.fspath(path)
    called = _name(text, only)
    with _lock:
        same = (each for each in _all if called in each.names and os.fstat(each.handle).st_nlink)
        known = next(same, None)
        if known is not None:
            known.users += 1
    entry = known or _open(text, make=make, to_read=to_read, only=only)
    try:
        yield entry.handle
    finally:
        with _lock:
            entry.users -= 1
            if entry.users == 0:
                _all.remove(entry)
                os.close(entry.handle)


@contextmanager
def held_trees(paths: Iterable[str | Path]) -> Iterator[None]:
    """Keep those of `paths` open that are directories."""
    with ExitStack() as stack:
        for path in paths:
            if os.path.isdir(path):
                stack.enter_context(held(path))
        yield


def _open(text: str, *, make: bool, to_read: bool, only: str) -> _Held:
    led = way(text)
    handle = open_beneath(*led, FOLDER) if led is not None else open_folder(text, make=make, to_read=to_read)
    # By its real name too: where a link of the tree leads is known by that.
    names = dict.fromkeys(_name(each, only) for each in (text, os.path.abspath(text), os.path.realpath(text)))
    return adopt(names, handle)


def adopt(names: Iterable[Name], handle: int) -> _Held:
    """Hold a directory that is open already, such as one that another process handed over."""
    entry = _Held(tuple(names), handle)
    with _lock:
        _all.insert(0, entry)
    return entry


def handed_over() -> list[tuple[tuple[Name, ...], int]]:
    """All that is held, by names and handle, for a process of ours to `adopt`: the outermost first."""
    return [(entry.names, entry.handle) for entry in reversed(_all)]


def _name(path: str, only: str) -> Name:
    slashed = "" if path in ("", ".") else path.rstrip("/") + "/"
    return slashed + only, len(slashed)


def way(path: str | os.PathLike[str]) -> tuple[int, str] | None:
    """The handle that a path is to be reached from, and the rest of the path; None where no directory is held."""
    if not _all:
        return None
    text = os.fspath(path)
    for entry in list(_all):
        for name, own in entry.names:
            if text + "/" == name:
                return entry.handle, "."
            if text.startswith(name) and (name or not text.startswith("/")):
                rest = text[own:]
                if ".." not in rest.split("/"):
                    return entry.handle, rest or "."
    return None


def open_at(path: str | os.PathLike[str], flags: int, mode: int = 0o777, *, folder: int | None = None) -> int:
    """`os.open`, but from the handle where the path lies below a directory that is held: no link is followed then."""
    led = way(path) if folder is None else None
    if led is None:
        return os.open(path, flags, mode, dir_fd=folder)
    if not flags & os.O_PATH:
        sys.audit("open", os.fspath(path), None, flags)  # as `os.open` does: whoever watches what Python opens sees it
    try:
        return open_beneath(*led, flags, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def status_of(path: str | os.PathLike[str], *, follow: bool = True, folder: int | None = None) -> os.stat_result:
    """`os.stat`, likewise: of a link below a directory that is held, the link's own."""
    led = way(path) if folder is None else None
    if led is None:
        return os.stat(path, dir_fd=folder, follow_symlinks=follow)
    handle = open_at(path, ONLY_PLACE | NOFOLLOW)
    try:
        return os.fstat(handle)
    finally:
        os.close(handle)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether there is a directory."""
    try:
        return stat.S_ISDIR(status_of(path).st_mode)
    except OSError:
        return False
