"""Which paths an assistant may have read: those below the directories that were given when the server was started.

A path is checked twice: here by where it leads, before anything is opened, and by `safeio.held` while it is read, which
reaches everything from the open root with no link followed, whatever is exchanged meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hangscope.errors import NotFoundError, SettingsError

LONGEST_PATH = 4096


class OutsideError(SettingsError):
    """A path that leads out of the directories that may be read."""


def real_roots(given: Sequence[str | Path]) -> tuple[str, ...]:
    """The directories that may be read, by their real names. Raises where one is none, or is all of the machine."""
    roots = []
    for each in given:
        real = os.path.realpath(each)
        if not os.path.isdir(real):
            raise NotFoundError(f"--root {each}: no directory", hint="name the directory that your incidents lie in")
        if real == os.sep:
            raise SettingsError("--root / would show the whole machine", hint="name the directory of your incidents")
        roots.append(real)
    return tuple(dict.fromkeys(roots))


def confined(path: str, roots: Sequence[str]) -> tuple[str, str]:
    """The real path that is meant, and the root that it lies below. A relative one is looked for below each root.

    What lies outside is refused in the same words whether it is there or not."""
    if not path or "\0" in path or len(path) > LONGEST_PATH:
        raise SettingsError("that is not a path", hint=f"the roots are {', '.join(roots)}")
    for root in roots:
        real = os.path.realpath(os.path.join(root, path))
        if is_below(real, root) and os.path.lexists(real):
            return real, root
    if any(is_below(os.path.realpath(os.path.join(root, path)), root) for root in roots):
        raise NotFoundError(f"{path}: there is no such file or directory", hint="list_incidents shows what is there")
    raise OutsideError(f"{path} is outside the directories that may be read", hint=f"they are {', '.join(roots)}")


def is_below(real: str, root: str) -> bool:
    return real == root or real.startswith(root.rstrip(os.sep) + os.sep)
