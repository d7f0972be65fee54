# mypy: ignore-errors
"""Runs when a Python of the job starts: arms the companion, then runs the sitecustomize that would have run without it.

It works on any Python 3, needs no package, and leaves `sys.path` as it would be without hangscope.
"""

import os
import sys

# Not imported: that would be looked for along PYTHONPATH, and run, also where the script never asks for it.
_finder = sys.modules["_frozen_importlib_external"].PathFinder


def _load(name, paths):
    """Find module `name` along `paths` and run it as if it had been imported from there."""
    spec = _finder.find_spec(name, paths)
    if spec is None or spec.loader is None:
        return None
    module = type(sys)(name)
    module.__spec__ = spec
    module.__loader__ = spec.loader
    module.__file__ = spec.origin
    module.__package__ = ""
    if spec.submodule_search_locations is not None:
        module.__package__ = name
        module.__path__ = spec.submodule_search_locations
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    return module


def _arm(here):
    try:
        if os.environ.get("HANGSCOPE_SOCKETS"):
            companion = _load("_hangscope_companion", [here])
            if companion is not None:
                companion.arm()
    except Exception:
        pass  # whatever is wrong here, the training must start as it would without hangscope


_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _here]
_arm(_here)
# An exception from the other sitecustomize goes to site.py, which reports it exactly as it always does.
_load("sitecustomize", sys.path)
