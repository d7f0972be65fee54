"""The black box's library: whether NCCL can load it here, and where its files go.

NCCL takes one profiler plugin a process. Where somebody else's is set, or lies on the library path under the name that
NCCL looks for by itself, ours is set in front of it, loads it, and passes every call on (native/next_profiler.h).

It tells an operation that runs from one that waits, by its transfers over the network, without PyTorch's start events,
which cost 23 µs an operation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hangscope.recorder.setup.variables import Release
from hangscope.sources.black_box.schema import VARIABLE

PLUGIN = "NCCL_PROFILER_PLUGIN"
NEXT = "HANGSCOPE_NEXT_PROFILER"
"""The plugin that ours loads; ``none`` for no other, and beside a plugin that the user set: that one stays alone."""
FOLDER = VARIABLE
FIRST_TORCH: Release = (2, 7)
"""It brings NCCL 2.26, the first whose profiler interface tells which step of a transfer waits for what."""
FIRST_NCCL: Release = (2, 26)
LIBRARY = Path(__file__).with_name("libhangscope_blackbox.so")
_SHM = Path("/dev/shm")
_SHM_FREE = 128 << 20


def library(nccl: Release | None = None) -> Path | None:
    """The plugin, where it was built when hangscope was installed, and this NCCL, if it is known, takes it."""
    return LIBRARY if LIBRARY.is_file() and (nccl is None or nccl >= FIRST_NCCL) else None


def is_set(environ: Mapping[str, str]) -> bool:
    return Path(environ.get(PLUGIN, "")).name == LIBRARY.name


def others_plugin(environ: Mapping[str, str]) -> str | None:
    """Another profiler plugin that NCCL would load: as set, or found by its name on the library path."""
    if environ.get(PLUGIN) and Path(environ[PLUGIN]).name != LIBRARY.name:
        return environ[PLUGIN]
    for folder in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if folder and Path(folder, "libnccl-profiler.so").is_file():
            return str(Path(folder, "libnccl-profiler.so"))
    return None


def stays_alone(environ: Mapping[str, str]) -> bool:
    """Whether the user wants no plugin at all, or the one that is set and no other."""
    set_ = environ.get(PLUGIN, "")
    return set_.lower() == "none" or (bool(set_) and not is_set(environ) and environ.get(NEXT, "").lower() == "none")


def home(environ: Mapping[str, str]) -> Path:
    """Where the files lie: in memory where there is room, for a page on disk may be busy when a rank writes to it."""
    try:
        state = os.statvfs(_SHM)
        if os.access(_SHM, os.W_OK) and state.f_bavail * state.f_frsize >= _SHM_FREE:
            return _SHM
    except OSError:
        pass
    return Path(environ.get("TMPDIR") or "/tmp")
