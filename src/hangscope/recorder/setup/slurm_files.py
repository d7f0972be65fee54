"""What a Slurm cluster's administrator installs: TaskProlog, Prolog, Epilog and the source of the SPANK plugin.

The scripts in `slurm_scripts/` are whole but for the values at their tops, which depend on the installation.
They lie on each node's own disk, use no shared one, and end with 0 whatever happens: Slurm drains a node whose Prolog
fails.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from hangscope.__about__ import __version__
from hangscope.errors import SettingsError
from hangscope.recorder.setup.default_settings import SUBSYSTEMS, TIMESTAMP
from hangscope.recorder.setup.variables import FIRST_FR_NAMES, Release
from hangscope.safeio.safe_files import make_folder, read_file, write_below
from hangscope.sources.nccl_ras.settings import FIRST_PORT, PORTS

TEMPLATES = Path(__file__).with_name("slurm_scripts")
SCRIPTS = {"TaskProlog": "task_prolog.sh", "Prolog": "prolog.sh", "Epilog": "epilog.sh"}
"""By the name of Slurm's parameter."""
SPANK = "spank_hangscope.c"
STATE = "/run/hangscope"
LOG = "/var/log/hangscope-agent.log"
LAST_WITHOUT_RING: Release = (2, 10)
"""Up to it, dumps need the ring's older name as well (docs/settings.md)."""
_MOST = 1 << 20
_PLAIN = re.compile(r"/[\w./+@=,-]*", re.ASCII)
_OPTIONS = re.compile(r"[\w./+@=,:% -]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cluster:
    """`directory` is where the agent keeps incidents; None for each job's own working directory. `agent` are more
    options of it. `torch` is the oldest that jobs use, where that is known. `state` and `log` are on the node."""

    entries: int
    nccl_debug: str
    hangscope: Path
    plugin: Path | None = None
    directory: Path | None = None
    agent: str = ""
    torch: Release | None = None
    state: str = STATE
    log: str = LOG


def own_command() -> Path:
    """The command of this installation, as nodes would start it."""
    beside = Path(sys.executable).with_name("hangscope")
    found = beside if beside.is_file() else shutil.which("hangscope")
    if found is None:
        raise SettingsError("the command hangscope is not on PATH", hint="install it where every node has it")
    return Path(os.path.abspath(found))


def write(folder: Path, cluster: Cluster) -> list[str]:
    """Write the files; the lines for slurm.conf."""
    folder = Path(os.path.abspath(folder))
    for path in (folder, cluster.hangscope, cluster.plugin, cluster.directory):
        if path is not None and not _PLAIN.fullmatch(str(path)):
            hint = "choose a path of letters, digits and -_./+@=,"
            raise SettingsError(f"{path}: slurm.conf and Slurm's environment take no such path", hint=hint)
    if not _OPTIONS.fullmatch(cluster.agent):
        raise SettingsError(f"--agent {cluster.agent}: no shell is asked, so nothing can be quoted in it")
    head = _head(cluster)
    try:
        make_folder(folder, wary=False)
        for name in SCRIPTS.values():
            body = read_file(TEMPLATES / name, _MOST).decode()
            write_below(folder, name, f"#!/bin/sh\n{head}\n{body}".encode(), mode=0o755)
        write_below(folder, SPANK, read_file(TEMPLATES / SPANK, _MOST), mode=0o644)
    except OSError as error:
        raise SettingsError(f"{folder}: {error.strerror}", hint="write it as the administrator") from error
    return [f"{parameter}={folder / name}" for parameter, name in SCRIPTS.items()]


def _head(cluster: Cluster) -> str:
    older = ""
    if cluster.torch is not None:
        older = "only" if cluster.torch < FIRST_FR_NAMES else "1" if cluster.torch <= LAST_WITHOUT_RING else ""
    values = {
        "COMMAND": str(cluster.hangscope),
        "OPTIONS": " ".join([*(["--dir", str(cluster.directory)] if cluster.directory else []), cluster.agent]).strip(),
        "STATE": cluster.state,
        "LOG": cluster.log,
        "ENTRIES": str(cluster.entries),
        "OLDER": older,
        "LEVEL": cluster.nccl_debug.upper(),
        "SUBSYSTEMS": SUBSYSTEMS,
        "TIMESTAMP": TIMESTAMP,
        "FIRST_PORT": str(FIRST_PORT),
        "PORTS": str(PORTS),
        "PLUGIN": str(cluster.plugin or ""),
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join([f"# Written by hangscope {__version__}: `hangscope env --slurm-cluster` writes it anew.", *lines])
