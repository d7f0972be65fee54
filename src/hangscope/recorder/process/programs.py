"""Programs that are started beside the job: where they are."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

PY_SPY_S = 6.0
"""For py-spy to read the stacks of one process."""


def find_program(name: str, path: str | None = None) -> str | None:
    """On the PATH, or in the folder of our own interpreter, where pip puts what it installs with us."""
    own = Path(sys.executable).with_name(name)
    return shutil.which(name, path=path) or (str(own) if own.is_file() else None)


def py_spy() -> str | None:
    """py-spy, which reads the Python stacks of a process from outside."""
    return find_program("py-spy")
