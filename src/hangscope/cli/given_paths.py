"""`latest` as a path: the newest incident here, or below a directory. Where a directory of several runs is given, the
newest of them is meant, and stderr says so."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hangscope.cli.output import note
from hangscope.errors import SeveralJobsError
from hangscope.incident import inventory
from hangscope.safeio.walk import entries
from hangscope.text import plural

if TYPE_CHECKING:
    from hangscope.model import Job

LATEST = "latest"


def here() -> Path:
    """Where this user's incidents are: HANGSCOPE_DIR, else ./hangscope, else the working directory."""
    named = os.environ.get("HANGSCOPE_DIR")
    if named and Path(named).is_dir():
        return Path(named)
    return Path("hangscope") if Path("hangscope").is_dir() else Path()


def resolved(paths: Sequence[str]) -> tuple[str, ...]:
    """The paths, with the newest incident in the place of `latest` and of DIR/latest. A file of that name wins."""
    return tuple(str(one_resolved(Path(path))) if Path(path).name == LATEST else path for path in paths)


def one_resolved(path: Path) -> Path:
    if path.name != LATEST or os.path.lexists(path):
        return path
    newest = inventory.newest(here() if path == Path(LATEST) else path.parent)
    note(f"latest: {newest}")
    return newest


# ---- directories of several runs -------------------------------------------------------------------------------------


def load_given(paths: Sequence[str | Path], *, job: str | None = None, **options: Any) -> Job:
    """What `load` reads; of a directory of several runs, the newest."""
    from hangscope.reader.load import load

    try:
        return load(tuple(paths), job=job, **options)
    except SeveralJobsError as error:
        newest = newest_of(error, paths) if job is None else None
        if newest is None:
            raise
        return load([newest], **options)


def newest_of(error: SeveralJobsError, paths: Sequence[str | Path]) -> Path | None:
    """The newest incident of a directory that holds those of several jobs and nothing else; None where it is none."""
    directory = Path(paths[0])
    if len(paths) != 1 or not directory.is_dir():
        return None
    found = inventory.incidents(directory)
    known = {incident.path for incident in found}
    files = (file for job in error.jobs for file in job.files)
    if not found or any(known.isdisjoint(Path(file).parents) for file in files):
        return None
    newest = found[-1].path
    note(
        f"the newest of {plural(len(error.jobs), 'job')}: {newest}; `--job NAME` or its path for another,"
        f" `hangscope ls {directory}` lists them"
    )
    return newest


_MOST_FOLDERS = 2000
_DEEPEST = 4
"""hangscope/JOB/ATTEMPT/run-2 is three below."""


def run_of(path: Path) -> Path:
    """The directory of a run: the path itself, or the newest run below it, of those that go on where any does."""
    from hangscope.recorder.rundir import run_directory

    if run_directory.statuses(path):
        return path
    found: list[tuple[bool, float, Path]] = []
    now = time.time()
    for folder in _folders(path):
        states = run_directory.statuses(folder)
        written = [_changed(node / run_directory.STATUS) for node, _ in states]
        going = any(not state.ended for _, state in states) and now - max(written, default=0.0) < run_directory.FRESH_S
        found += [(going, max(written), folder)] if written else []
    if not found:
        return path
    newest = max(found)[2]
    note(f"the newest of {plural(len(found), 'run')}: {newest}" + ("; its path for another" if len(found) > 1 else ""))
    return newest


def _folders(path: Path) -> Iterator[Path]:
    """Directories below that may be a run's own: those with a folder of nodes."""
    waiting = [(path, 0)]
    looked = 0
    while waiting and looked < _MOST_FOLDERS:
        folder, depth = waiting.pop()
        looked += 1
        try:
            names = entries(folder)
        except OSError:
            continue
        if "nodes" in names:
            yield folder
        elif depth < _DEEPEST:
            below = (folder / name for name in names)
            waiting += [(each, depth + 1) for each in below if each.is_dir() and not each.is_symlink()]


def _changed(path: Path) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0
