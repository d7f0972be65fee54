"""Whose a file or directory is, and who else may write it; and whether this process has more rights than its user.

What decides what runs, and where evidence goes, is taken only from where nobody but the user, or root, can have put it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from hangscope.safeio.safe_files import Refused, open_file


def why_not_ours_alone(found: os.stat_result) -> str:
    """Why somebody else than this user, or root, can have written this; empty where nobody can."""
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (user {found.st_uid})"
    if found.st_mode & stat.S_IWOTH:
        return "others may write it"
    if found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid, found.st_uid):
        return f"group {found.st_gid} may write it"
    return ""


def is_ours_alone(folder: Path) -> bool:
    """Whether only this user, or root, can have put something into a directory."""
    try:
        return not why_not_ours_alone(os.stat(folder))
    except OSError:
        return False


def _is_private_group(gid: int, uid: int) -> bool:
    """Many systems give each user a group of the same name with nobody else in it, and let it write by default."""
    import grp  # where there are no users to ask for (a bare container), nothing else here needs them
    import pwd

    try:
        user = pwd.getpwuid(uid)
        group = grp.getgrgid(gid)
    except (KeyError, OSError):
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def open_ours_alone(path: Path) -> BinaryIO:
    """A regular file for reading that nobody but this user, or root, can have written or put there.

    Looked at are the file behind the handle, the directory it is named in and, where a link leads on, the one that it
    really lies in. Raises Refused where one of them is not ours alone, and what opening raises."""
    stream = open_file(path)
    try:
        reasons = [("", os.fstat(stream.fileno()))]
        reasons += [(f"its directory {folder} ", os.stat(folder)) for folder in _folders_of(path)]
        for what, found in reasons:
            why = why_not_ours_alone(found)
            if why:
                raise Refused(f"{what}{why}", path)
    except BaseException:
        stream.close()
        raise
    return stream


def _folders_of(path: Path) -> list[Path]:
    named = path.absolute().parent
    real = Path(os.path.realpath(path)).parent
    return list(dict.fromkeys([named, real]))
