"""The CUDA driver's variables for a core of the GPU on request, which a process must be started with.

With them the driver makes a pipe for each process that has a CUDA context, and writes a core when a byte comes. The
process's CUDA context is gone afterwards. Without the flags a core would hold the GPU's memory: a hundred gigabytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ENABLE = "CUDA_ENABLE_USER_TRIGGERED_COREDUMP"
PIPE = "CUDA_COREDUMP_PIPE"
FILE = "CUDA_COREDUMP_FILE"
FLAGS = "CUDA_COREDUMP_GENERATION_FLAGS"
ON_EXCEPTION = "CUDA_ENABLE_COREDUMP_ON_EXCEPTION"
LIGHTWEIGHT = "CUDA_ENABLE_LIGHTWEIGHT_COREDUMP"
NAMES = (ENABLE, PIPE, FILE, FLAGS)
ON = "1"
SKIPPED = (
    "skip_nonrelocated_elf_images",
    "skip_global_memory",
    "skip_shared_memory",
    "skip_local_memory",
    "skip_constbank_memory",
    "skip_abort",
)
_MEMORY = "skip_global_memory"
WITH_KILL = False
"""Whether `--on-hang kill` alone asks for them. Not before a measurement shows that they cost nothing: the launch of a
tiny kernel took 1.6 to 4.4 % longer with them on an H200, with noise of the same size."""

_DEFAULT_PIPE = "corepipe.cuda.%h.%p"
_DEFAULT_FILE = "core_%t_%h_%p.nvcudmp"
"""What the driver takes where nothing is set, in the process's working directory."""


def wanted(asked: bool | None, *, kill: bool) -> bool:
    """Whether a run sets them: as the user says, else by what happens to a hung job."""
    return asked if asked is not None else WITH_KILL and kill


def variables(environ: Mapping[str, str], folder: Path) -> tuple[dict[str, str], str]:
    """What to add to a job's environment, with pipes and cores in `folder`; and why nothing is added."""
    if is_on(environ, ON_EXCEPTION):
        return {}, (
            f"{ON_EXCEPTION} is set, and its cores would go elsewhere and hold less: no GPU core is asked for at a hang"
        )
    if ENABLE in environ and not is_on(environ, ENABLE):
        return {}, f"{ENABLE}={environ[ENABLE]} is set: no GPU core is asked for at a hang"
    ours = {
        ENABLE: ON,
        PIPE: f"{folder}/%p.pipe",
        FILE: f"{folder}/%p.core",
        FLAGS: ",".join(SKIPPED),
    }
    return {name: value for name, value in ours.items() if name not in environ}, ""


def is_on(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "0").strip().lower() not in ("", "0", "false", "off", "no")


def why_not(environ: Mapping[str, str]) -> str:
    """Why a process that was started with this environment cannot be asked; empty where it can."""
    if not environ:
        return "its environment cannot be read"
    if not is_on(environ, ENABLE):
        return f"it was started without {ENABLE}=1, which cannot be set later; `hangscope run --gpu-core` sets it"
    if _MEMORY not in environ.get(FLAGS, "") and not is_on(environ, LIGHTWEIGHT):
        return f"its core would hold the GPU's memory: {FLAGS} has no {_MEMORY}"
    return ""


def pipe_of(environ: Mapping[str, str], pid: int, host: str, folder: Path) -> Path:
    """The pipe of a process whose working directory is `folder`."""
    return folder / _expanded(environ.get(PIPE) or _DEFAULT_PIPE, pid, host)


def core_of(environ: Mapping[str, str], pid: int, host: str, folder: Path) -> tuple[Path, bool]:
    """Where its core will be; and whether the name holds the time, which nobody knows before: `*` stands for it."""
    name = environ.get(FILE) or _DEFAULT_FILE
    timed = "%t" in name.replace("%%", "")
    return folder / _expanded(name, pid, host), timed


def _expanded(name: str, pid: int, host: str) -> str:
    parts = [part.replace("%p", str(pid)).replace("%h", host).replace("%t", "*") for part in name.split("%%")]
    return "%".join(parts)
