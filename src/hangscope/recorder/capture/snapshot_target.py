"""What of the process and the run that a snapshot looks at may be believed, followed and written into.

Root looks at everybody's processes: what an environment or a status names is used only where it is the process's own
user's, and what is taken of another user is for whoever took it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path

from hangscope.errors import NotFoundError
from hangscope.incident.layout import safe_name
from hangscope.processes import linux_process, target_rights
from hangscope.processes.target_rights import Rights
from hangscope.recorder.rundir import run_directory
from hangscope.recorder.rundir.job_identity import JobIdentity
from hangscope.safeio.held import status_of
from hangscope.safeio.safe_files import Patience, Refused

LOOK_S = 5.0


def environment_of(pid: int) -> dict[str, str]:
    """A process's own, or where it is `hangscope run` itself, that of the command which it started."""
    environ = linux_process.environment(pid)
    words = {Path(word).name for word in linux_process.command_line(pid)}
    if "HANGSCOPE_DIR" in environ or not {"hangscope", "run"} <= words:
        return environ
    for child, depth in linux_process.descendants(pid):
        started_with = linux_process.environment(child)
        if depth == 1 and "HANGSCOPE_DIR" in started_with:
            return started_with
    return environ


def refuse_unreadable(pid: int, command: str) -> None:
    """Raise the error that says so where a process may not be read, with what helps. Whether it is a rank is not known
    then."""
    if not linux_process.may_be_read(pid):
        raise NotFoundError(
            f"{pid}: a process of {_user(pid)}, which this user may not read",
            hint=f"as that user, or as root: {command}",
        )


def _user(pid: int) -> str:
    uid = target_rights.owner_of(pid)
    if uid is None or uid == os.geteuid():
        return "this user with other rights"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def is_folder(place: Path, say: Callable[[str], None]) -> bool:
    """Whether a directory that an environment names is there. A file system that hangs is nobody's reason to wait."""
    try:
        return Patience(LOOK_S).ask(str(place), place.is_dir)
    except Refused:
        say(f"{place}: its file system does not answer; it is not used")
        return False


def may_follow(place: Path, pid: int) -> bool:
    """Whether a directory that a process's environment names may be used: ours, or that process's own user's.

    Root would otherwise write wherever somebody's environment points.
    """
    try:
        found = os.lstat(place)
    except OSError:
        return False
    # What is ours, and everybody may write into, is nobody's own: /tmp.
    ours = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and (ours or found.st_uid == target_rights.owner_of(pid))


def is_of_its_writer(folder: Path, pid: int | None) -> bool:
    """Whether a status speaks of a process of the user who wrote it; always, where we are not root."""
    if os.geteuid() != 0:
        return True
    try:
        return pid is not None and os.lstat(folder / run_directory.STATUS).st_uid == target_rights.owner_of(pid)
    except OSError:
        return False


def claim_directory(
    directory: Path | None, identity: JobIdentity, theirs: Rights, kept: contextlib.ExitStack, session: str = ""
) -> tuple[Path, JobIdentity]:
    """The incident's directory. Another user's stacks and output are for whoever took them; a directory that was there
    before stays as open as it is, and the incident goes below it. It stays open in `kept`. An earlier snapshot of the
    job, of another `session`, keeps its directory to itself."""
    name = f"snapshot-{safe_name(identity.job)}"
    place = (directory or Path("hangscope") / name).absolute()
    if not theirs.foreign:
        return run_directory.claim(place, identity, kept=kept, own=directory is None, session=session)
    with contextlib.suppress(OSError):
        there = status_of(place, follow=directory is not None)
        named = directory is not None or there.st_uid == os.geteuid()
        if stat.S_ISDIR(there.st_mode) and there.st_mode & 0o077 and named:
            place /= name
    return run_directory.claim(place, identity, kept=kept, private=True, session=session)
