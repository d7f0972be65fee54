"""py-spy, which reads the Python stacks of a process from outside: where it is, and how long it may take."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

PY_SPY_S = 6.0


def py_spy() -> str | None:
    """py-spy on the PATH, or in the folder of our own interpreter."""
    own = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or (str(own) if own.exists() else None)
