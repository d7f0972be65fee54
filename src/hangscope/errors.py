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
"""

from __future__ import annotations

from typing import Any


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
