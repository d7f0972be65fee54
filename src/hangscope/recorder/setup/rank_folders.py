"""Where a job's ranks write: the names, and making the folders so that nothing in them can end the job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hangscope.errors import SettingsError
from hangscope.incident.layout import safe_name
from hangscope.recorder.setup import blackbox_library
from hangscope.recorder.setup.setting_problems import folder_for
from hangscope.recorder.setup.variables import BY_NAME
from hangscope.safeio import safe_files
from hangscope.safeio.safe_files import Refused, make_folder

_PATH_MAX = 4096
_ROOM = 96  # what PyTorch and NCCL add: a rank, ".pipe", a host name, a process id


@dataclass(frozen=True, slots=True)
class Places:
    """The paths of one node of one attempt. Other nodes may see those below the job's directory."""

    dump_prefix: str
    pipe_stem: str
    nccl_log: str
    blackbox: str
    """A folder, with a slash at its end."""

    @property
    def folders(self) -> tuple[Path, ...]:
        log = folder_for("NCCL_DEBUG_FILE", self.nccl_log)
        return tuple(
            dict.fromkeys((Path(self.dump_prefix).parent, log, Path(self.pipe_stem).parent, Path(self.blackbox)))
        )


def places(
    *, directory: Path, job: str, attempt: str, host: str, environ: Mapping[str, str], own: bool = False
) -> Places:
    """Job, attempt and host are in every path, so that no rank and no restart overwrites another's evidence.

    `own` says that the directory is this node's and this attempt's alone.

    Pipes lie on the node's own disk: not every shared file system has them, and PyTorch ends a process that cannot
    make its pipe.
    """
    node = safe_name(host)
    run = (safe_name(job), safe_name(attempt))
    base = Path(os.path.abspath(directory))
    # An incident's own directory names job and attempt already, and a node's part of it the node.
    named = any(base.parts[at : at + 2] == run for at in range(len(base.parts) - 1))
    below = Path() if named or own else Path(".".join(run))
    if base.name != node and not own:
        below /= node
    local = Path(environ.get("TMPDIR") or "/tmp") / _private_name() / ".".join(run) / node
    found = Places(
        dump_prefix=str(base / "dumps" / below / "nccl_trace_rank_"),
        pipe_stem=str(local / "rank_"),
        blackbox=f"{blackbox_library.home(environ) / _private_name() / '.'.join(run) / node}/",
        nccl_log=str(base / "logs" / below / "nccl.").replace("%", "%%") + "%h.%p.log",
    )
    if max(len(os.fsencode(text)) for text in (found.dump_prefix, found.pipe_stem, found.nccl_log)) + _ROOM > _PATH_MAX:
        raise SettingsError(f"{base}: the path is too long to write dumps below it", hint="choose a shorter one")
    return found


def private_top(folder: Path) -> Path:
    """The outermost folder of ours above a pipe: the one that must belong to this user."""
    return next((parent for parent in reversed(folder.parents) if parent.name == _private_name()), folder)


def _private_name() -> str:
    return f"hangscope-{os.getuid()}"


def needed_folders(variables: Mapping[str, str], where: Places) -> tuple[Path, ...]:
    """Those of our folders that these variables point into."""
    used = {folder_for(name, value) for name, value in variables.items() if BY_NAME[name].kind == "path"}
    return tuple(folder for folder in where.folders if folder in used)


def make(folder: Path) -> str:
    """Make a folder; the reason where that does not work."""
    try:
        make_folder(folder, wary=False)
    except OSError as error:
        return f"the folder {folder} cannot be made: {error.strerror}"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"the folder {folder} is not writable"


def make_private(folder: Path) -> str:
    """Make a folder for pipes below a place like /tmp where anyone may write, and try a pipe in it.

    A folder that somebody else put there first is refused, so that they cannot lead our ranks elsewhere.
    """
    top = private_top(folder)
    try:
        make_folder(top.parent, wary=False)
        safe_files.make_private(top)
        make_folder(folder)
        trial = folder / f".trial-{os.getpid()}"
        os.mkfifo(trial)
        trial.unlink()
    except Refused:
        return f"{top} belongs to another user"
    except OSError as error:
        return f"no pipe can be made in {folder}: {error.strerror}"
    return ""
