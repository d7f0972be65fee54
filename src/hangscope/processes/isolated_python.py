"""Pythons of our own beside the job: none of them runs a module that somebody left in the working directory.

`python -c` and `python -m` put the working directory in front of the standard library, and PYTHONPATH, PYTHONSTARTUP
and a sitecustomize may do as much. Whoever can write there would run code with the rights of whoever calls hangscope.
So a helper of ours starts with `-I`, finds the standard library first and then what this process has found, by
absolute paths, and gets none of the variables that Python reads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PACKAGES = str(Path(__file__).parents[2])
"""Where hangscope itself lies: a helper is of the same version as who starts it."""
_RUN_VERB = "import runpy; runpy.run_module('hangscope', None, '__main__')"


def hangscope_command(*words: str) -> list[str]:
    """As `hangscope WORDS…`, by the interpreter that runs this one."""
    start = f"import sys; sys.path += {_places()!r}; {_RUN_VERB}"
    return [sys.executable, "-I", "-S", "-c", start, *words]


def helper_command(module: str) -> list[str]:
    """A process of ours that runs `main` of a module."""
    start = f"import sys; sys.path += {_places()!r}; import importlib; importlib.import_module({module!r}).main()"
    return [sys.executable, "-I", "-S", "-c", start]


def _places() -> list[str]:
    """Where modules are found that are not of the standard library. Relative ones depend on the working directory."""
    here = os.getcwd()
    found = [place for place in sys.path if os.path.isabs(place) and place != here]
    return list(dict.fromkeys([_PACKAGES, *found]))


def isolated(python: str | Path, words: Sequence[str]) -> list[str]:
    """A Python that takes nothing from the working directory, from variables, or from the user's own packages."""
    return [str(python), "-I", *words]


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what Python reads: the job's settings are for the job's Pythons."""
    return {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
