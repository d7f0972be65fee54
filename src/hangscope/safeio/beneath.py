"""Opening below a directory that is open already: whatever is exchanged on the way, nothing outside is reached.

Linux does the whole way in one call (openat2), which refuses links, magic links of procfs and everything that leads
out. Where it is not to be had (before 5.6, in some containers), the way is gone name by name, with the same answers.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from functools import lru_cache

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
CLOEXEC = getattr(os, "O_CLOEXEC", 0)
ONLY_PLACE = getattr(os, "O_PATH", os.O_RDONLY) | CLOEXEC
"""To open a place without reading it: what is there may be looked at, or gone on from."""
FOLDER = ONLY_PLACE | os.O_DIRECTORY | NOFOLLOW
MOST_LINKS = 40

_OPENAT2 = 437
_NO_MAGICLINKS = 0x02
_NO_SYMLINKS = 0x04
_BENEATH = 0x08
_RESOLVE = _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH

Openat2 = Callable[[int, bytes, int, int], int]


def open_beneath(folder: int, name: str, flags: int, mode: int = 0) -> int:
    """A handle of what lies at `name` below `folder`, with no link on the way, nor at its end.

    Raises OSError with ELOOP for a link and EXDEV for what leads out. With O_PATH a link itself is what is opened."""
    if name.startswith("/") or ".." in name.split("/"):
        raise OSError(errno.EXDEV, "a path that leads elsewhere", name)
    flags |= NOFOLLOW | CLOEXEC
    by_kernel = _openat2()
    if by_kernel is not None:
        return by_kernel(folder, os.fsencode(name), flags, mode)
    return by_steps(folder, name, flags, mode)


def by_steps(folder: int, name: str, flags: int, mode: int = 0) -> int:
    """As `open_beneath`, name by name."""
    *above, last = [part for part in name.split("/") if part not in ("", ".")] or ["."]
    here = os.dup(folder)
    try:
        for part in above:
            following = _step(here, part, FOLDER, 0)
            os.close(here)
            here = following
        return _step(here, last, flags, mode)
    finally:
        os.close(here)


def _step(folder: int, part: str, flags: int, mode: int) -> int:
    try:
        return os.open(part, flags, mode, dir_fd=folder)
    except OSError as error:
        # Of a link that should be a directory some say ENOTDIR: the answers are to be those of the other way.
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK) and _is_link(folder, part):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), part) from None
        raise


def _is_link(folder: int, part: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


@lru_cache(1)
def _openat2() -> Openat2 | None:
    """The kernel's own way, where it can be had: a filter of system calls may forbid it, in any words."""
    try:
        import ctypes  # some hundred thousand instructions, for those who open something
    except ImportError:
        return None

    class How(ctypes.Structure):
        _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))

    syscall = ctypes.CDLL(None, use_errno=True).syscall
    size = ctypes.c_size_t(ctypes.sizeof(How))

    def call(folder: int, name: bytes, flags: int, mode: int) -> int:
        how = How(flags, mode if flags & os.O_CREAT else 0, _RESOLVE)
        while True:
            handle: int = syscall(ctypes.c_long(_OPENAT2), ctypes.c_int(folder), name, ctypes.byref(how), size)
            if handle >= 0:
                return handle
            code = ctypes.get_errno()
            if code not in (errno.EINTR, errno.EAGAIN):
                raise OSError(code, os.strerror(code), os.fsdecode(name))

    try:
        os.close(call(os.open("/", ONLY_PLACE), b".", ONLY_PLACE | os.O_DIRECTORY, 0))
    except OSError:
        return None
    return call


# ---- the way to what somebody named ----------------------------------------------------------------------------------


class StrangeLink(OSError):
    """A link of somebody else's on the way, which is not followed."""

    def __init__(self, owner: int, path: str) -> None:
        super().__init__(errno.EPERM, f"another user's link (user {owner}) on the way", path)


def open_folder(path: str | os.PathLike[str], *, make: bool = False, to_read: bool = False) -> int:
    """A handle of a directory that somebody named, gone to name by name. `make` makes what is missing.

    A link on the way is followed where it is ours, or root's. To read, also where it leads to a directory of whoever
    made it: what is theirs they may show; what is not, they cannot make us take for theirs.
    """
    return _Way(os.fspath(path), make=make, to_write=not to_read, procfs=to_read).to_folder()


class NotHere(OSError):
    """What lies on procfs: it shows other processes' files, by the rights of whoever looks."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EPERM, "a path of procfs, which shows what is others'", path)


def open_named(path: str | os.PathLike[str], flags: int, *, strangers: bool = False, procfs: bool = True) -> int:
    """A handle of a file that somebody named; of links on the way, and at its end, the same is true as to read a
    directory. `strangers`: anybody's link is followed; `procfs` False: nothing there is opened."""
    sys.audit("open", os.fspath(path), None, flags)  # by its whole name: whoever watches what Python opens knows it
    way = _Way(os.fspath(path), strangers=strangers, procfs=procfs)
    return way.to_file(flags | NOFOLLOW | CLOEXEC)


class _Way:
    """The way along a path. What a link says is gone like the rest of it."""

    def __init__(
        self, path: str, *, make: bool = False, to_write: bool = False, strangers: bool = False, procfs: bool = True
    ) -> None:
        self._path = path
        self._make = make
        self._to_write = to_write
        self._any_link = strangers
        self._procfs = procfs
        self._here = os.open("/" if path.startswith("/") else ".", ONLY_PLACE | os.O_DIRECTORY)
        self._left = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        self._links = 0
        self._strangers: set[int] = set()
        """Owners of links on the way that are neither ours nor root's."""

    def to_folder(self) -> int:
        try:
            while self._left:
                self._step(self._left.pop())
            self._refuse_strangers(os.fstat(self._here).st_uid)
            return self._here
        except BaseException:
            os.close(self._here)
            raise

    def to_file(self, flags: int) -> int:
        try:
            while True:
                while len(self._left) > 1:
                    self._step(self._left.pop())
                last = self._left.pop() if self._left else "."
                try:
                    handle = os.open(last, flags, dir_fd=self._here)
                except OSError as error:
                    if error.errno != errno.ELOOP or not _is_link(self._here, last):
                        raise OSError(error.errno, error.strerror, self._path) from None
                    following = self._follow(last)
                    os.close(self._here)
                    self._here = following
                    continue
                try:
                    self._refuse_procfs(handle)
                    self._refuse_strangers(os.fstat(handle).st_uid)
                except BaseException:
                    os.close(handle)
                    raise
                return handle
        finally:
            os.close(self._here)

    def _refuse_procfs(self, handle: int) -> None:
        if not self._procfs and is_procfs(handle):
            raise NotHere(self._path)

    def _refuse_strangers(self, owner: int) -> None:
        """`owner` of what was reached may have made links to it."""
        strangers = self._strangers - {owner}
        if strangers:
            raise StrangeLink(min(strangers), self._path)

    def _step(self, part: str) -> None:
        if self._make and part != "..":
            try:
                os.mkdir(part, dir_fd=self._here)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOSYS):
                    raise
        try:
            following = os.open(part, FOLDER, dir_fd=self._here)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP) or not _is_link(self._here, part):
                raise OSError(error.errno, error.strerror, self._path) from None
            following = self._follow(part)
        os.close(self._here)
        self._here = following
        self._refuse_procfs(following)

    def _follow(self, part: str) -> int:
        """From where the way goes on behind a link."""
        self._links += 1
        if self._links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path)
        link = os.open(part, ONLY_PLACE | NOFOLLOW, dir_fd=self._here)
        try:
            found = os.fstat(link)
            self._refuse_procfs(link)
            if is_procfs(link):
                # What the user wrote of procfs leads where no text says. A stranger's link to it counts all the same.
                return os.open(part, ONLY_PLACE, dir_fd=self._here)
            if found.st_uid not in (os.geteuid(), 0) and not self._any_link:
                if self._to_write:
                    raise StrangeLink(found.st_uid, self._path)  # before anything is made behind it
                self._strangers.add(found.st_uid)
            target = os.readlink(part, dir_fd=self._here)
        finally:
            os.close(link)
        self._left += [each for each in reversed(target.split("/")) if each not in ("", ".")]
        return os.open("/", ONLY_PLACE | os.O_DIRECTORY) if target.startswith("/") else os.dup(self._here)


_PROCFS = 0x9FA0


def is_procfs(handle: int) -> bool:
    """Whether what is open lies on procfs, wherever that was mounted."""
    try:
        import ctypes

        facts = (ctypes.c_long * 64)()
        asked = ctypes.CDLL(None, use_errno=True).fstatfs
    except (ImportError, OSError, AttributeError):
        return False
    return asked(handle, facts) == 0 and facts[0] == _PROCFS
