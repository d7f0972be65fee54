"""What is wrong with a setting, and the settings that a rank would see: the words that all checks share."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hangscope.recorder.setup import variables as table
from hangscope.recorder.setup.variables import BY_NAME, DEFAULT_ENTRIES, Release, as_bool, as_int

FATAL = "fatal"
"""The job does not start, or its process ends instead of dumping."""
LOSES_DUMPS = "loses_dumps"
"""A hang leaves no dump, an empty one or one that nobody can read."""
LOSES_EVIDENCE = "loses_evidence"
"""The dump is there; something else that tells the cause is not."""
COST = "cost"
"""It works, for more memory or time than anyone would want."""
NOTE = "note"
"""Good to know; nothing is lost by it."""

SEVERITIES = (FATAL, LOSES_DUMPS, LOSES_EVIDENCE, COST, NOTE)


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """One setting that does harm. `value` is None where nothing is set; `sets` is the cure as variables."""

    variable: str
    value: str | None
    severity: str
    what: str
    cure: str
    sets: Mapping[str, str] = field(default_factory=dict)
    fixed: bool = False

    def __str__(self) -> str:
        subject = self.variable if self.value is None else f"{self.variable}={self.value}"
        return f"{subject}: {self.what}"


@dataclass(frozen=True, slots=True)
class Setting:
    """What every rank of a job would see, and what the cures may use."""

    environ: Mapping[str, str]
    release: Release | None
    families: frozenset[str]
    entries: int = DEFAULT_ENTRIES
    dump_prefix: str | None = None  # the cure for a dump path that cannot work
    pipe_stem: str | None = None
    nccl_log: str | None = None
    ras_address: str | None = None
    world_size: int | None = None
    to_be_made: frozenset[Path] = frozenset()  # folders that will be there before the first rank starts
    look_at_files: bool = True

    @property
    def torch(self) -> str:
        return "torch of an unknown release" if self.release is None else f"torch {self.release[0]}.{self.release[1]}"

    def since(self, release: Release) -> bool:
        """Whether this torch is `release` or later; an unknown one may be."""
        return self.release is None or self.release >= release

    def before(self, release: Release) -> bool:
        """Whether this torch may be older than `release`."""
        return self.release is None or self.release < release

    def uses(self, *families: str) -> bool:
        return not self.families.isdisjoint(families)

    def set(self, *names: str) -> str | None:
        """The first of `names` that is set and that this torch reads. As in PyTorch, the first listed wins."""
        for name in names:
            variable = BY_NAME.get(name)
            if name in self.environ and (variable is None or variable.exists_in(self.release)):
                return name
        return None

    def integer(self, *names: str, default: int) -> int | None:
        """The value in force, as PyTorch reads it; None where it throws."""
        name = self.set(*names)
        return default if name is None else as_int(self.environ[name])

    def boolean(self, *names: str, default: bool) -> bool | None:
        name = self.set(*names)
        return default if name is None else as_bool(self.environ[name])

    @property
    def ring(self) -> int | None:
        """The recorder's ring, in entries. Before 2.8 only the older name is read."""
        if self.families == {"hccl"}:
            return self.integer("TORCH_HCCL_TRACE_BUFFER_SIZE", default=0)
        family = "xccl" if self.families == {"xccl"} else "nccl"
        return self.integer(
            "TORCH_FR_BUFFER_SIZE",
            "TORCH_NCCL_TRACE_BUFFER_SIZE",
            default=table.default_entries(self.release, family),
        )

    @property
    def gate(self) -> int | None:
        """ProcessGroupNCCL writes a dump only where this is above 0. It never reads the newer name."""
        return self.integer("TORCH_NCCL_TRACE_BUFFER_SIZE", default=table.default_gate(self.release))

    @property
    def wait_ms(self) -> int | None:
        """How long writing a dump may take before PyTorch gives up on it."""
        names = ["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"]
        if self.uses("nccl2") and not self.uses("nccl"):
            names.insert(0, "TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC")
        return self.integer(*names, default=table.default_wait_ms(self.release))

    @property
    def dumps_on_timeout(self) -> bool | None:
        """ProcessGroupNCCL's own switch."""
        return self.boolean("TORCH_NCCL_DUMP_ON_TIMEOUT", default=table.default_dump_on_timeout(self.release))

    @property
    def prefix(self) -> str:
        """The dump file's path without the rank."""
        name = self.set(*table.DUMP_NAMES)
        if self.families == {"hccl"}:
            return self.environ.get("TORCH_HCCL_DEBUG_INFO_TEMP_FILE", "/tmp/hccl_trace_rank_")
        return table.default_dump_prefix(self.release, self.environ) if name is None else self.environ[name]


def folder_of(prefix: str) -> Path:
    """The folder that a dump prefix, pipe stem or log file lies in. ``a/`` lies in a: the rank becomes the name."""
    return Path(prefix.rpartition("/")[0] or ("/" if prefix.startswith("/") else "."))


def folder_for(name: str, value: str) -> Path:
    """The folder that a path variable's value lies in. NCCL fills in %h and %p, and takes %% for a percent sign."""
    if name != "NCCL_DEBUG_FILE":
        return folder_of(value)
    host = socket.gethostname().partition(".")[0]
    known = {"%%": "%", "%h": host, "%p": str(os.getpid())}
    return folder_of(re.sub("%[%hp]", lambda hit: known[hit[0]], value))


def free_bytes(prefix: str) -> int | None:
    """Room on the file system that a prefix lies on, or will lie on once its folders are made."""
    folder = folder_of(prefix).absolute()
    for candidate in (folder, *folder.parents):
        try:
            state = os.statvfs(candidate)
        except OSError:
            continue
        return state.f_bavail * state.f_frsize
    return None
