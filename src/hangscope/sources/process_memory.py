"""The memory of a process, read from outside: bounded in time and in bytes, and nothing is stopped by it.

Opening asks the kernel for the right that a debugger needs (PTRACE_MODE_ATTACH), without being one. The handle stays
with the memory that it was opened on: a process that ends, or starts another program, reads as nothing, and never as
its successor.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from dataclasses import dataclass
from typing import NamedTuple

from hangscope.sources.cannot_read import CannotRead, Torn, explain

MOST_S = 1.0
"""Of the time that a reading itself takes: a machine may be busy, and that is nobody's hostility."""
TIMES_BUSY = 5
MOST_BYTES = 64 << 20
"""Of one reading: a ring of 100,000 entries has 51 MB."""
_MOST_READ = 56 << 20
_MOST_MAPS = 8 << 20
_HIGHEST = 1 << 57
"""No address of a process is above it, with five levels of page tables."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A file that is mapped into the process: `start` is where the file's first byte would lie."""

    start: int
    end: int
    path: str
    device: int
    inode: int


class Region(NamedTuple):
    start: int
    end: int
    writable: bool


class ProcessMemory:
    """The memory of one process, opened for reading. Raises CannotRead where it may not be."""

    def __init__(self, pid: int, seconds: float = MOST_S) -> None:
        self.pid = pid
        self.renew(seconds)
        try:
            self._file = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise explain(pid, error) from None

    def __enter__(self) -> ProcessMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def renew(self, seconds: float = MOST_S) -> None:
        """Begin another reading, with time and bytes of its own, by the thread that calls."""
        self._until = time.thread_time() + seconds
        self._latest = time.monotonic() + TIMES_BUSY * seconds
        self._left = MOST_BYTES

    @property
    def late(self) -> bool:
        return time.thread_time() > self._until or time.monotonic() > self._latest

    def read(self, address: int, size: int) -> bytes:
        """The bytes that lie there. Raises Torn where not all of them are, CannotRead where it is too much."""
        if size <= 0:
            return b""
        if size > self._left or size > _MOST_READ:
            raise CannotRead(f"more than {MOST_BYTES >> 20} MiB would have to be read")
        if self.late:
            raise CannotRead("reading it took too long")
        self._left -= size
        if not 0 < address < _HIGHEST:
            raise Torn(f"{address:#x} is no address")
        try:
            data = os.pread(self._file, size, address)
        except (OSError, OverflowError, ValueError):
            raise Torn(f"nothing can be read at {address:#x}") from None
        if len(data) != size:
            raise Torn(f"fewer than {size} bytes at {address:#x}")
        return data

    def word(self, address: int) -> int:
        return int.from_bytes(self.read(address, 8), "little")

    def words(self, address: int, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}Q", self.read(address, 8 * count))


# ---- what is mapped --------------------------------------------------------------------------------------------------


def mappings(pid: int) -> tuple[list[Mapping], list[Region]]:
    """The files that are mapped from their beginning, and all regions that can be read."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as stream:
            raw = stream.read(_MOST_MAPS)
    except OSError as error:
        raise explain(pid, error) from None
    files: list[Mapping] = []
    regions: list[Region] = []
    ends: dict[tuple[str, int], int] = {}
    for line in raw.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 5:
            continue
        try:
            start, end = (int(each, 16) for each in fields[0].split(b"-"))
            major, minor = (int(each, 16) for each in fields[3].split(b":"))
            offset, inode = int(fields[2], 16), int(fields[4])
        except ValueError:
            continue
        if fields[1].startswith(b"r"):
            regions.append(Region(start, end, b"w" in fields[1]))
        if len(fields) == 6 and fields[5].startswith(b"/"):
            path = os.fsdecode(fields[5])
            ends[path, inode] = end
            if offset == 0 and not any(each.path == path and each.inode == inode for each in files[-8:]):
                files.append(Mapping(start, end, path, os.makedev(major, minor), inode))
    return [Mapping(each.start, ends[each.path, each.inode], *_rest(each)) for each in files], regions


def _rest(mapping: Mapping) -> tuple[str, int, int]:
    return mapping.path, mapping.device, mapping.inode


def open_mapped(pid: int, mapping: Mapping) -> int:
    """The file that is mapped there, opened: by the process's own root directory, and only if it is that very file.

    A path that a process shows may lead anywhere by the time that it is opened: what has another number is not read.
    Raises CannotRead.
    """
    path = mapping.path.removesuffix(" (deleted)")
    try:
        handle = os.open(f"/proc/{pid}/root{path}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise CannotRead(f"{os.path.basename(path)} cannot be opened: {error.strerror}") from None
    found = os.fstat(handle)
    # overlayfs shows another device in maps than in stat: the number of the file is what both say
    if not stat.S_ISREG(found.st_mode) or found.st_ino != mapping.inode:
        os.close(handle)
        raise CannotRead(f"{os.path.basename(path)} is another file by now than the one that the process runs")
    return handle
