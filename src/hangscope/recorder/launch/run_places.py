"""Where a run keeps what it saves, and what it needs for a time: directories that can be written and that answer.

None of them is a reason to keep the training from starting: where one does not do, another is taken, and that is said.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from hangscope.errors import SettingsError
from hangscope.incident.layout import safe_name
from hangscope.recorder.rundir import run_directory
from hangscope.recorder.rundir.job_identity import JobIdentity
from hangscope.recorder.rundir.run_directory import RunFolders
from hangscope.safeio.beneath import open_folder
from hangscope.safeio.safe_files import Patience, folder_below, make_folder, make_private

CLAIM_S = 30.0
SILENT_CLAIM_S = 8.0
"""A directory may be slow to take a run, by many small calls; one call that does not come back is enough."""
LOOK_S = 4.0
_TEMPORARY = ("TMPDIR", "TEMP", "TMP", "XDG_RUNTIME_DIR")


def temporary_directories(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that name directories for temporary files."""
    return {name: environ[name] for name in _TEMPORARY if name in environ}


def answering(environ: Mapping[str, str], say: Callable[[str], None]) -> Mapping[str, str]:
    """The environment by which we choose places of our own: without directories for temporary files that do not answer.
    The command keeps what it was given."""
    left = dict(environ)
    patience = Patience(LOOK_S)  # one that does not answer is not waited for twice
    for name, path in temporary_directories(environ).items():
        try:
            patience.ask(path, functools.partial(os.access, path, os.W_OK))
        except (OSError, ValueError):
            say(f"warning: {name}={path}: its file system does not answer; what we need for a time goes elsewhere")
            del left[name]
            tempfile.tempdir = "/tmp"
    return left


def claim(
    directory: Path | None,
    identity: JobIdentity,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    kept: ExitStack | None = None,
) -> tuple[RunFolders, JobIdentity]:
    """The run's directory, by default below the working directory, and the identity that it has there. It stays open
    in `kept`."""
    stack = kept if kept is not None else ExitStack()
    own = directory is None  # a place that nobody named must at least be nobody else's
    name = Path(safe_name(identity.job)) / safe_name(identity.attempt)
    wanted = (directory or Path("hangscope") / name).absolute()
    try:
        return Patience(CLAIM_S, SILENT_CLAIM_S).ask(
            str(wanted), functools.partial(_claim, wanted, identity, stack, own=own)
        )
    except (OSError, SettingsError, ValueError) as error:
        other = private_directory(environ) / name
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        say(f"warning: {why}; what this node saves goes to {other} instead")
        return _claim(other, identity, stack)


def _claim(
    directory: Path, identity: JobIdentity, kept: ExitStack, *, own: bool = False
) -> tuple[RunFolders, JobIdentity]:
    if directory.is_symlink():
        os.close(open_folder(directory))  # a link of somebody else's is not followed
        directory = Path(os.path.realpath(directory))  # by the user's own word, and from here on by nobody else's
    root, identity = run_directory.claim(directory, identity, kept=kept, own=own)
    return RunFolders(root, run_directory.claim_node(root, identity.node)), identity


def private_directory(environ: Mapping[str, str]) -> Path:
    """A directory of this user alone below TMPDIR. Where somebody has put something in its place, a new one."""
    base = Path(environ.get("TMPDIR") or "/tmp")
    top = base / f"hangscope-{os.getuid()}"
    try:
        make_private(top)
    except OSError:
        top = Path(tempfile.mkdtemp(prefix=f"hangscope-{os.getuid()}-", dir=base))
    return top / "incidents"


def make_spare(environ: Mapping[str, str], name: str) -> Path:
    """A new directory for what the run's own takes no more, because it is full or has become read-only."""
    top = private_directory(environ)
    for number in range(1, 1000):
        place = top / (name if number == 1 else f"{name}.{number}")
        try:
            make_folder(place.parent)
            with folder_below(place.parent, [], wary=True) as above:
                os.mkdir(place.name, dir_fd=above)
            return place
        except FileExistsError:
            continue
    raise FileExistsError(f"{top}: no free name")
