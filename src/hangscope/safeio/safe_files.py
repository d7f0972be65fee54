"""The one way to touch files that others may have made: a shared directory, a neighbour's status, a target's log.

Whoever can write beside us can put a link, a pipe or a device where a file should be, or let a file system hang. So a
path below a directory is walked name by name without following any link, only regular files are read, and of those no
more than asked for; who owns a directory is looked at before something is written into it; and a read that does not
come back is left behind on a thread of its own. Standard library only: it runs in training images.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple, TypeVar

from hangscope.safeio.beneath import StrangeLink, open_beneath, open_folder, open_named
from hangscope.safeio.held import open_at, status_of, way

T = TypeVar("T")

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | _CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _NOFOLLOW | _CLOEXEC
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)
WAITING = 32
"""Reads left behind at one time: where a file system hangs, more of them would only pile up."""


class Refused(OSError):
    """A file that is there and is not touched. `strerror` says why."""

    late = False
    """Whether nobody answered in time."""

    def __init__(self, why: str, path: str | Path) -> None:
        super().__init__(errno.EPERM, why, str(path))


def kind_of(mode: int) -> str:
    """What a directory entry is that is no regular file, in words."""
    return next((words for test, words in _KINDS if test(mode)), "no regular file")


# ---- reading ---------------------------------------------------------------------------------------------------------


def open_file(path: str | Path, *, follow: bool = True, folder: int | None = None) -> BinaryIO:
    """Open a regular file for reading, whatever else may have been put there: never waits for a pipe's other end."""
    before = status_of(path, follow=follow, folder=folder)
    if not stat.S_ISREG(before.st_mode):
        raise Refused(f"{kind_of(before.st_mode)}, not a file", path)
    try:
        if follow and folder is None and way(path) is None:
            handle = open_named(path, _READ)
        else:
            handle = open_at(path, _READ | (0 if follow else _NOFOLLOW), folder=folder)
    except StrangeLink as error:
        raise Refused(str(error.strerror), path) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Refused("a link, not followed", path) from None
        raise
    try:
        # Between the look and the opening it may have been exchanged.
        now = os.fstat(handle)
        if not stat.S_ISREG(now.st_mode):
            raise Refused(f"{kind_of(now.st_mode)}, not a file", path)
        os.set_blocking(handle, True)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_file(path: str | Path, limit: int, *, follow: bool = True, tail: bool = False) -> bytes:
    """At most `limit` bytes of a regular file; with `tail` the last ones, else a larger file is refused."""
    with open_file(path, follow=follow) as stream:
        return read_bounded(stream, path, limit, tail=tail)


def head_of(path: str | Path, size: int) -> bytes:
    """The first bytes of a regular file; none of one that cannot be read. Asked of every file of a tree: no more calls
    than it takes. Opening does not wait for anybody: where a pipe was put since the tree was listed, it is closed."""
    try:
        handle = open_at(path, _READ)
    except OSError:
        return b""
    try:
        return os.read(handle, size) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(handle)


def read_below(root: Path, name: str, limit: int, *, tail: bool = False, owner: int | None = None) -> bytes:
    """A file below `root`, with no link followed on the way to it; with `owner`, one that this user wrote."""
    with folder_below(root, _parts(name)[:-1]) as folder, open_file(_parts(name)[-1], follow=False, folder=folder) as s:
        if owner is not None and (wrote := os.fstat(s.fileno()).st_uid) != owner:
            raise Refused(f"belongs to another user (user {wrote})", root / name)
        return read_bounded(s, root / name, limit, tail=tail)


def read_bounded(stream: BinaryIO, path: str | Path, limit: int, *, tail: bool) -> bytes:
    """At most `limit` bytes of what is open."""
    size = os.fstat(stream.fileno()).st_size
    if tail:
        stream.seek(max(0, size - limit))
        return stream.read(limit)
    data = stream.read(limit + 1)  # the size that a file system tells need not be true
    if len(data) > limit:
        raise Refused(f"more than {limit} bytes", path)
    return data


# ---- with a deadline -------------------------------------------------------------------------------------------------


class Patience:
    """Runs what may hang, such as a read on a shared file system, and leaves it behind when its time is up.

    A place that did not come back is not asked again until it did: threads that hang do not pile up. What takes many
    calls may be slow and alive: `silent` seconds in which not one of them came back are enough to give up earlier.
    """

    def __init__(self, seconds: float, silent: float | None = None) -> None:
        self.seconds = seconds
        self._silent = silent
        self._hanging: dict[str, threading.Thread] = {}

    def ask(self, what: str, act: Callable[[], T]) -> T:
        """What `act` gives. Raises Refused where it took too long, or still does since the last time."""
        before = self._hanging.get(what)
        if before is not None and before.is_alive():
            raise Refused("still no answer", what)
        self._hanging.pop(what, None)
        if len(self._hanging) >= WAITING:
            self._hanging = {name: thread for name, thread in self._hanging.items() if thread.is_alive()}
            if len(self._hanging) >= WAITING:
                raise Refused("too many reads hang already", what)
        answer: list[T] = []
        problem: list[BaseException] = []

        def run() -> None:
            try:
                answer.append(act())
            except BaseException as error:
                problem.append(error)

        thread = threading.Thread(target=run, name=f"touch {what}", daemon=True)
        begun = time.monotonic()
        thread.start()
        self._join(thread)
        if thread.is_alive():
            self._hanging[what] = thread
            whole = self._silent is None or time.monotonic() - begun >= self.seconds
            refused = Refused(f"no answer within {self.seconds if whole else self._silent:g} s", what)
            refused.late = True
            raise refused
        if problem:
            raise problem[0]
        return answer[0]

    def _join(self, thread: threading.Thread) -> None:
        if self._silent is None:
            thread.join(self.seconds)
            return
        until = time.monotonic() + self.seconds
        moved = time.monotonic()
        before = _moves(thread)
        while thread.is_alive() and time.monotonic() < until:
            thread.join(0.2)
            now = _moves(thread)
            if now is None or now != before:
                moved = time.monotonic()
                before = now
            elif time.monotonic() - moved > self._silent:
                return


def _moves(thread: threading.Thread) -> str | None:
    """Changes whenever a thread has come back from a call; None where nobody can tell."""
    try:
        with open(f"/proc/self/task/{thread.native_id}/status") as stream:
            return "".join(line for line in stream if "ctxt_switches" in line) or None
    except OSError:
        return None


# ---- directories -----------------------------------------------------------------------------------------------------


@contextmanager
def folder_below(
    root: Path, parts: list[str], *, make: bool = False, own: bool = False, wary: bool = False
) -> Iterator[int]:
    """A handle of a directory below `root`, reached without following a link. `make` makes what is missing.

    With `own`, the last one must be ours, or root's: somebody else's would decide what becomes of what we write. With
    `wary`, a link on the way to `root` is followed only where it is ours, or root's; else how to get there is the
    caller's own word. A `root` that is held is not looked for again.
    """
    handle = _open_root(root, wary=wary)
    try:
        made = False
        for number, part in enumerate(parts):
            if make:
                try:
                    os.mkdir(part, dir_fd=handle)
                    made = True
                except FileExistsError:
                    made = False
            below = root.joinpath(*parts[: number + 1])
            try:
                following = open_beneath(handle, part, _FOLDER)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    found = os.stat(part, dir_fd=handle, follow_symlinks=False)
                    raise Refused(f"{kind_of(found.st_mode)} in the place of a directory", below) from None
                raise OSError(error.errno, error.strerror, str(below)) from None
            os.close(handle)
            handle = following
        if own:
            found = os.fstat(handle)
            if made and found.st_uid == SQUASHED:
                _squashing.add(found.st_dev)
            if found.st_uid != 0 and not _is_ours(found):
                raise Refused(f"belongs to another user (user {found.st_uid})", root.joinpath(*parts))
        yield handle
    finally:
        os.close(handle)


SQUASHED = 65534
_squashing: set[int] = set()
"""File systems on which what we made belongs to nobody: NFS whose server does not take root's word, or anyone's."""


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() or (found.st_uid == SQUASHED and found.st_dev in _squashing)


def _open_root(root: Path, *, wary: bool) -> int:
    if way(root) is not None:
        return open_at(root, _FOLDER)
    if not wary:
        return os.open(root, _FOLDER & ~_NOFOLLOW)
    try:
        place = open_folder(root)
    except StrangeLink as error:
        raise Refused(str(error.strerror), root) from None
    try:
        return os.open(".", _FOLDER, dir_fd=place)
    finally:
        os.close(place)


def make_folder(folder: Path, *, wary: bool = True) -> None:
    """Make a directory, and those above it that are missing. A link of somebody else's on the way is not followed."""
    led = way(folder)
    try:
        os.close(_made_below(*led) if led is not None else open_folder(folder, make=True))
    except StrangeLink as error:
        if wary:
            raise Refused(str(error.strerror), folder) from None
        folder.mkdir(parents=True, exist_ok=True)


def _made_below(folder: int, name: str) -> int:
    """A handle of a directory below one that is open; what is missing is made."""
    here = os.dup(folder)
    for part in [part for part in name.split("/") if part not in ("", ".")]:
        try:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=here)
            following = open_beneath(here, part, _FOLDER)
        finally:
            os.close(here)
        here = following
    return here


def remove_tree(folder: Path) -> None:
    """Delete a directory with all that is in it, as far as that can be. No link is followed, above it nor in it."""
    with suppress(OSError), folder_below(folder.parent, [], wary=True) as above:
        _remove_below(above, folder.name)


def _remove_below(above: int, name: str) -> None:
    try:
        handle = open_beneath(above, name, _FOLDER)
    except OSError:
        return
    try:
        with os.scandir(handle) as found:
            entries = [(each.name, each.is_dir(follow_symlinks=False)) for each in found]
        for entry, is_folder in entries:
            if is_folder:
                _remove_below(handle, entry)
            else:
                with suppress(OSError):
                    os.unlink(entry, dir_fd=handle)
    finally:
        os.close(handle)
    with suppress(OSError):
        os.rmdir(name, dir_fd=above)


def remove_file(path: Path) -> None:
    """Delete a file, or a link itself."""
    with folder_below(path.parent, [], wary=True) as above:
        os.unlink(path.name, dir_fd=above)


def remove_empty(folder: Path) -> None:
    """Delete a directory in which nothing is."""
    with folder_below(folder.parent, [], wary=True) as above:
        os.rmdir(folder.name, dir_fd=above)


def rename_below(root: Path, name: str, other: str) -> None:
    """Give a file below `root` another name beside its own."""
    *above, last = _parts(name)
    with folder_below(root, above, wary=True) as folder:
        os.replace(last, other, src_dir_fd=folder, dst_dir_fd=folder)


def listing(folder: str | Path) -> list[Listed]:
    """What is in a directory, sorted by name."""
    handle = open_at(folder, _FOLDER & ~_NOFOLLOW)
    try:
        with os.scandir(handle) as found:
            return sorted(
                Listed(each.name, each.is_dir(follow_symlinks=False), each.is_file(follow_symlinks=False))
                for each in found
            )
    finally:
        os.close(handle)


class Listed(NamedTuple):
    """One name in a directory; neither for a link, a pipe, a socket and a device."""

    name: str
    is_folder: bool
    is_file: bool


def make_private(folder: Path) -> None:
    """A directory for this user alone, in a place where anybody may write. Refused where somebody was there first."""
    with suppress(FileExistsError):
        make_one(folder, 0o700)
    close_to_others(folder)


def make_one(folder: Path, mode: int = 0o777) -> None:
    """Make a directory where the one above it is there. Raises FileExistsError where something has its name."""
    led = way(folder)
    if led is None:
        os.mkdir(folder, mode)
        return
    handle, name = led
    above, _, last = name.rpartition("/")
    place = open_beneath(handle, above or ".", _FOLDER)
    try:
        os.mkdir(last, mode, dir_fd=place)
    finally:
        os.close(place)


def refuse_others(folder: Path) -> None:
    """Raises Refused for a directory of somebody else's. Where a server calls root nobody, nobody's is tried out."""
    with folder_below(folder, []) as handle:
        found = os.fstat(handle)
        if found.st_uid == SQUASHED and os.geteuid() == 0 and found.st_dev not in _squashing:
            _try_squashing(handle)
        if found.st_uid != 0 and not _is_ours(found):
            raise Refused(f"belongs to another user (user {found.st_uid})", folder)


def _try_squashing(folder: int) -> None:
    name = f".{secrets.token_hex(8)}.part"
    with suppress(OSError):
        os.mkdir(name, 0o700, dir_fd=folder)
        made = os.stat(name, dir_fd=folder, follow_symlinks=False)
        os.rmdir(name, dir_fd=folder)
        if made.st_uid == SQUASHED:
            _squashing.add(made.st_dev)


def close_to_others(folder: Path) -> None:
    """Let nobody else into a directory of ours. What is changed is what was looked at, whatever has its name by now."""
    try:
        handle = open_at(folder, _FOLDER)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        kind = kind_of(status_of(folder, follow=False).st_mode)
        raise Refused(f"{kind} in the place of a directory", folder) from None
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid():
            raise Refused(f"belongs to another user (user {found.st_uid})", folder)
        os.fchmod(handle, 0o700)
    finally:
        os.close(handle)


# ---- writing ---------------------------------------------------------------------------------------------------------


@contextmanager
def new_file(folder: Path, name: str, mode: int = 0o666) -> Iterator[tuple[IO[bytes], str]]:
    """A new file beside `name` for writing, under a name that nobody can guess: (stream, path). The umask applies.

    What still has that name at the end is deleted: whoever wants to keep it renames it. The name is known before the
    file is made, so that a signal at any moment leaves nothing."""
    path = os.path.join(folder, f".{name[:100]}.{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _CLOEXEC, mode), "wb") as out:
            yield out, path
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)


def write_below(
    root: Path, name: str, data: bytes, *, mode: int = 0o666, replace: bool = True, wary: bool = False
) -> bool:
    """Write a file below `root` under a name that nobody can guess, then rename. False where it exists and may not be
    replaced. No link is followed on the way, and a link in the file's own place is replaced, not written through."""
    *above, last = _parts(name)
    with folder_below(root, above, make=True, wary=wary) as folder:
        temporary = f".{last[:100]}.{secrets.token_hex(8)}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, mode, dir_fd=folder), "wb") as stream:
                stream.write(data)
            if replace:
                os.replace(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)
                return True
            return _give_name(folder, temporary, last, data, mode)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)


class Shelf:
    """Many files written below one directory: the handle of the folder that the last one went into is kept, so that a
    hundred thousand of them do not walk the same way each."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._above: list[str] | None = None
        self._open = ExitStack()
        self._folder = -1

    def __enter__(self) -> Shelf:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @contextmanager
    def new(self, name: str) -> Iterator[IO[bytes]]:
        """A file for writing under a name that nobody can guess, which gets its own at the end, or none at all."""
        *above, last = _parts(name)
        if above != self._above:
            self._open.close()
            self._above = None
            self._folder = self._open.enter_context(folder_below(self._root, above, make=True))
            self._above = above
        temporary = f".{last[:100]}.{secrets.token_hex(8)}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=self._folder), "wb") as stream:
                yield stream
            os.replace(temporary, last, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self._folder)
            raise


def _give_name(folder: int, temporary: str, last: str, data: bytes, mode: int) -> bool:
    """The name, if it is free: the content comes with it, so that nobody ever sees the file empty."""
    try:
        os.link(temporary, last, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        return True
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        try:
            handle = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _CLOEXEC, mode, dir_fd=folder)
        except FileExistsError:
            return False
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        return True


def append_below(root: Path, name: str) -> IO[bytes]:
    """Open a file of ours for appending, made where it is missing. Somebody else's, a link or a pipe is refused."""
    *above, last = _parts(name)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | _NOFOLLOW | _CLOEXEC
    with folder_below(root, above, make=True, wary=True) as folder:
        try:
            handle = os.open(last, flags, 0o666, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise Refused("a link or a pipe in the place of a file", root / name) from None
            raise
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise Refused(f"{kind_of(found.st_mode)}, not a file", root / name)
        if not _is_ours(found) or found.st_nlink != 1:
            raise Refused("not ours alone: another owner, or another name for it", root / name)
        os.set_blocking(handle, True)
        return os.fdopen(handle, "ab", buffering=0)
    except BaseException:
        os.close(handle)
        raise


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise Refused("a path that leads elsewhere", name)
    return parts
