"""Every error that hangscope raises on purpose.

    HangscopeError                  exit status 2
    ├── InputError                  the input cannot be used
    │   ├── NotFoundError           there is no such path, or nothing in it that hangscope knows
    │   ├── SeveralJobsError        evidence of several jobs, and nobody said which is meant
    │   └── DamagedError            a file is broken, hostile or of an unknown format
    ├── SettingsError               an option or an environment variable has a value that cannot work
    ├── LaunchError                 the command to run could not be started        (exit status 127)
    └── CollectError                a node or a store could not be reached

Each class carries the exit status of the command line, and each instance may carry a hint: the cure, in one sentence.

What is raised by mistake costs the part at which it is caught, and never the verdict: `contained` says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")


class HangscopeError(Exception):
    """The root of the tree. `str(error)` says what happened to what; `hint` says the cure."""

    exit_status = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class InputError(HangscopeError):
    """The input cannot be used."""


class NotFoundError(InputError):
    """There is no such path, or nothing in it that hangscope knows."""


class SeveralJobsError(InputError):
    """The input holds evidence of several jobs, which are never diagnosed as one. `jobs` are those that were found:
    each has a `name`, which `load(…, job=name)` and ``--job`` take."""

    def __init__(self, message: str, jobs: tuple[Any, ...], *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.jobs = jobs


class DamagedError(InputError):
    """A file is broken, hostile or of an unknown format. Says the file and the place in it."""

    def __init__(self, message: str, *, file: str = "", offset: int | None = None, hint: str | None = None) -> None:
        place = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{file}: {message}{place}" if file else f"{message}{place}", hint=hint)
        self.file = file
        self.offset = offset
        self.reason = message


class SettingsError(HangscopeError):
    """An option or an environment variable has a value that cannot work."""


class LaunchError(HangscopeError):
    """The command to run could not be started."""

    exit_status = 127


class CollectError(HangscopeError):
    """A node or a store could not be reached."""


# ---- what is raised by mistake ---------------------------------------------------------------------------------------

RAISE = "HANGSCOPE_RAISE_BUGS"
"""Set (as in hangscope's own tests), nothing is contained: a mistake of ours ends the command with its traceback."""


def contained(error: Exception) -> str:
    """Why a part (a line, a file, a cause, a block of a report) is left out at which hangscope itself raised.

    Raises the error again where it was raised on purpose, where memory has run out, and where `RAISE` is set. The
    error's own words are not repeated: they quote what was read.
    """
    if isinstance(error, HangscopeError | MemoryError) or os.environ.get(RAISE):
        raise error
    return f"{type(error).__name__} at {_place(error.__traceback__)}, a bug in hangscope: please report it"


class LeftOut:
    """Makes parts one by one: one that raises is left out, with the reason."""

    def __init__(self) -> None:
        self.reasons: list[tuple[str, str]] = []
        """(what is left out, why)."""

    def part(self, what: str, otherwise: T, make: Callable[[], T]) -> T:
        """What `make` makes, or else `otherwise`."""
        try:
            return make()
        except Exception as error:
            self.reasons.append((what, contained(error)))
            return otherwise

    def several(self, what: str, make: Callable[[], Iterable[T]]) -> tuple[T, ...]:
        """All that `make` makes, or else nothing."""
        return self.part(what, (), lambda: tuple(make()))

    def one(self, what: str, make: Callable[[], T | None]) -> T | None:
        """What `make` makes, or else None."""
        return self.part(what, None, make)


def _place(trace: TracebackType | None) -> str:
    """The innermost line of hangscope's own, as ``model/times.py:31``."""
    place = "an unknown line"
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename.replace("\\", "/")
        if "/hangscope/" in file:
            place = f"{file.rpartition('/hangscope/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
