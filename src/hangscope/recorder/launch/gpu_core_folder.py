"""Where the GPUs' pipes and cores of a run lie: a directory for the user alone, on a disk and not in memory.

A core has a hundred megabytes and more. It is read and deleted at once; whatever is left goes with the directory, at
the end of the run, or, should that be killed, at the start of the next one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from hangscope.recorder.launch import rank_sockets
from hangscope.safeio.safe_files import Patience
from hangscope.sources.gpu_core import settings as gpu_core_settings

LOOK_S = 4.0


def variables(
    job: Mapping[str, str], environ: Mapping[str, str], kept: contextlib.ExitStack, say: Callable[[str], None]
) -> dict[str, str]:
    """What to add to the `job`'s environment so that its GPUs can be asked. The directory is chosen by `environ`, and
    taken away with `kept`. That there is none is no reason to keep the training from starting."""
    _, why = gpu_core_settings.variables(job, Path())
    if not why:
        for base in dict.fromkeys((environ.get("TMPDIR") or "/tmp", "/tmp", "/var/tmp")):
            try:
                folder = Patience(LOOK_S).ask(base, functools.partial(rank_sockets.make_in, base))
            except OSError as error:
                why = f"{base}: {error.strerror or error}; GPU cores have no place"
                continue
            kept.callback(_remove, folder)
            return gpu_core_settings.variables(job, folder)[0]
    say(f"warning: --gpu-core: {why}")
    return {}


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        Patience(LOOK_S).ask(str(folder), lambda: rank_sockets.remove(folder))
