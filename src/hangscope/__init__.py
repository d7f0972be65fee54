"""hangscope names the rank, node, operation, code line and link that hung a distributed training job.

    import hangscope

    print(hangscope.diagnose("hangs/job-48121"))

Everything public is in `__all__`. The names are loaded when they are first used: this package is also imported inside
training jobs, where it must cost nothing and need nothing but the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangscope.__about__ import __version__
from hangscope.errors import (
    CollectError,
    DamagedError,
    HangscopeError,
    InputError,
    LaunchError,
    NotFoundError,
    SettingsError,
    SeveralJobsError,
)

if TYPE_CHECKING:
    from hangscope.announce_pause import expect_pause
    from hangscope.model import Job
    from hangscope.reader.load import load
    from hangscope.report.diagnosed import Diagnosis, diagnose
    from hangscope.watch_process import watch

__all__ = [
    "CollectError",
    "DamagedError",
    "Diagnosis",
    "HangscopeError",
    "InputError",
    "Job",
    "LaunchError",
    "NotFoundError",
    "SettingsError",
    "SeveralJobsError",
    "__version__",
    "diagnose",
    "expect_pause",
    "load",
    "watch",
]

_HOMES = {
    "Diagnosis": "hangscope.report.diagnosed",
    "Job": "hangscope.model",
    "diagnose": "hangscope.report.diagnosed",
    "expect_pause": "hangscope.announce_pause",
    "load": "hangscope.reader.load",
    "watch": "hangscope.watch_process",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
