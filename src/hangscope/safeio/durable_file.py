"""Files that must still be there after a power cut: synced before they get their name, and the name synced too."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from hangscope.safeio.safe_files import Refused, folder_below

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def durable_file(root: Path, name: str, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """A new file below `root` for writing, which gets its name at the end of the `with`, or none after an error."""
    *above, last = name.split("/")
    if not last or any(part in ("", ".", "..") for part in above) or last in (".", ".."):
        raise Refused("a path that leads elsewhere", name)
    with folder_below(root, above, make=True) as folder:
        temporary = f".{last[:100]}.{secrets.token_hex(8)}.part"
        try:
            with os.fdopen(os.open(temporary, _FLAGS, mode, dir_fd=folder), "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
    for depth in range(len(above)):  # folders that were made are names too
        _sync(root.joinpath(*above[:depth]))


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
