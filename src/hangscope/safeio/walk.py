"""The one walker of a stranger's tree: which files are there, and what else is there that somebody may miss.

No link leads out of a tree, and none is followed on the way to a file. Pipes, sockets and devices are never opened: a
dump pipe would wait for ever. A directory that cannot be read is skipped, and named, as is everything else that is left
alone. Standard library only: it also runs in training images.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hangscope.safeio import limits
from hangscope.safeio.evidence_names import is_read, is_walked
from hangscope.safeio.held import held, open_at, status_of
from hangscope.safeio.safe_files import Listed, kind_of, listing

CLOSED = "the directory cannot be read"
"""How the reason begins why everything below a directory is missing."""
_HALF_WRITTEN = re.compile(r"\..*\.part", re.DOTALL)


def entries(root: Path, most: int = limits.DIRECTORY_NAMES) -> list[str]:
    """The names in a directory, sorted; of a huge one the first that it lists."""
    found: list[str] = []
    handle = open_at(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os.scandir(handle) as names:
            for entry in names:
                found.append(entry.name)
                if len(found) >= most:
                    break
    finally:
        os.close(handle)
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Survey:
    """What is below a directory.

    `files` are (path inside, with slashes; path on disk), sorted by the former; `skipped` names what is there and was
    left alone, with the reason, by its path inside; `half_written` are paths on disk of files that nobody finished.
    """

    files: tuple[tuple[str, str], ...]
    skipped: tuple[tuple[str, str], ...]
    half_written: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EvidenceTree:
    """The files below a directory that are read as evidence: (path on disk, the same without any link), as listed.
    `links` are those of them that are links, with where they lead. `skipped` is by the path on disk; `whole` is False
    where there were more files than are looked at."""

    files: list[tuple[str, str]]
    links: dict[str, str]
    skipped: list[tuple[str, str]]
    whole: bool


def survey(root: Path, *, most: int = limits.TREE_FILES) -> Survey:
    """Every regular file below `root`, and everything else that somebody may miss. A link that leads inside leads to
    what is met anyway. Half-written files are none."""
    walk = _Walk(root, most)
    with held(root):
        walk.all_files()
    files = tuple(sorted((name, walk.path(name)) for name in walk.files))
    skipped = [(name or ".", why) for name, why in walk.skipped]
    if walk.stopped_in is not None:
        skipped.append((f"{walk.stopped_in}…", f"more than {most} files; the rest was not looked at"))
    return Survey(files, tuple(counted(skipped)), tuple(walk.path(name) for name in walk.half_written))


def evidence_tree(root: Path, *, most: int = limits.TREE_FILES) -> EvidenceTree:
    """The files below `root` that are read: without those that never are evidence. A link that leads inside is read
    under its own name, which may say more about the file than the file's own."""
    walk = _Walk(root, most, evidence_only=True)
    with held(root):
        walk.all_files()
    files = [(walk.path(name), walk.targets.get(name) or walk.real(name)) for name in walk.files]
    links = {walk.path(name): target for name, target in walk.targets.items() if target}
    return EvidenceTree(files, links, [(walk.path(name), why) for name, why in walk.skipped], walk.stopped_in is None)


class _Walk:
    """One walk. Names are those below the root, with slashes: there may be a hundred thousand, so no paths."""

    def __init__(self, root: Path, most: int, *, evidence_only: bool = False) -> None:
        self._root = os.fspath(root)
        self._front = str(root / "x")[:-1]
        self._inside = os.path.realpath(root) + os.sep
        self._most = most
        self._evidence_only = evidence_only
        self._links = Links()
        self._waiting = [""]
        self.files: list[str] = []
        self.targets: dict[str, str] = {}
        """Of a file that is a link: where it leads."""
        self.skipped: list[tuple[str, str]] = []
        self.half_written: list[str] = []
        self.stopped_in: str | None = None
        """The directory in which the walk ended because there are too many files."""

    def path(self, name: str) -> str:
        return f"{self._front}{name}" if name else self._root

    def real(self, name: str) -> str:
        return self._inside + name

    def all_files(self) -> None:
        while self._waiting:
            folder = self._waiting.pop()
            for entry in self._entries(folder):
                if len(self.files) + len(self.skipped) >= self._most:
                    self.stopped_in = folder
                    return
                if entry.is_folder:
                    self._meet_folder(entry, folder)
                else:
                    self._meet_file(entry, folder)

    def _entries(self, folder: str) -> list[Listed]:
        name = folder.rstrip("/")
        try:
            return listing(self.path(name))
        except OSError as error:
            self.skipped.append((name, f"{CLOSED}: {error.strerror or error}"))
            return []

    def _meet_folder(self, entry: Listed, folder: str) -> None:
        if self._evidence_only and not is_walked(entry.name):
            return
        if folder.count("/") < limits.TREE_LEVELS:
            self._waiting.append(f"{folder}{entry.name}/")
        else:
            self.skipped.append((f"{folder}{entry.name}", f"{CLOSED}: more than {limits.TREE_LEVELS} levels down"))

    def _meet_file(self, entry: Listed, folder: str) -> None:
        name = f"{folder}{entry.name}"
        if _HALF_WRITTEN.fullmatch(entry.name):
            self.half_written.append(name)
        elif self._evidence_only and not is_read(entry.name):
            pass
        elif entry.is_file:
            self.files.append(name)
        else:
            self._meet_other(name)

    def _meet_other(self, name: str) -> None:
        """What is neither a file nor a directory: a link, a pipe, a socket or a device."""
        path = self.path(name)
        try:
            found = status_of(path, follow=False)
            target = ""
            if stat.S_ISLNK(found.st_mode):
                target, why = self._followed(path)
                if why:
                    self.skipped.append((name, why))
                if why or not self._evidence_only:
                    return
                found = status_of(target, follow=False)
        except OSError as error:
            self.skipped.append((name, f"cannot be read: {error.strerror or error}"))
            return
        if stat.S_ISREG(found.st_mode):
            self.files.append(name)
            self.targets[name] = target
        elif not _is_no_evidence(name, found.st_mode):
            self.skipped.append((name, f"{kind_of(found.st_mode)}, not a file"))

    def _followed(self, link: str) -> tuple[str, str]:
        """Where a link leads, or why it is not followed."""
        target = self._links.target(link)
        if target is None:
            return "", "a link that leads nowhere"
        if not f"{target}{os.sep}".startswith(self._inside):
            return "", "a link that leads outside, not followed"
        return target, ""


def _is_no_evidence(name: str, mode: int) -> bool:
    """A link to a directory of the same tree leads to what is met anyway; the recorder's own dump pipes lie beside the
    dumps while the job runs."""
    return stat.S_ISDIR(mode) or (stat.S_ISFIFO(mode) and name.endswith(".pipe"))


def counted(skipped: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """What was skipped, sorted: each thing with the reason; of a reason that thousands have, the rest as a number."""
    named: list[tuple[str, str]] = []
    times: Counter[str] = Counter()
    for what, why in sorted(skipped):
        times[why] += 1
        if times[why] <= limits.TREE_SKIPPED:
            named.append((what, why))
    more = [
        (f"{count - limits.TREE_SKIPPED} more", why)
        for why, count in sorted(times.items())
        if count > limits.TREE_SKIPPED
    ]
    return [*named, *more]


class Links:
    """Where links lead. The directories on the way are looked at once: a tree may hold a hundred thousand links."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}
        self._known: dict[str, str | None] = {}

    def target(self, link: str) -> str | None:
        """The real path of what a link leads to; None where that is nothing, or the link itself."""
        try:
            os.stat(link)  # the kernel follows faster than we do, and knows a loop when it meets one
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise
        return self._follow(link, 0)

    def _follow(self, link: str, steps: int) -> str | None:
        folder, last = os.path.split(os.path.join(os.path.dirname(link), os.readlink(link)))
        if last in ("", ".", ".."):
            found = os.path.realpath(link)
            return found if not os.path.islink(found) else None
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        found = os.path.join(self._folders[folder], last)
        if not stat.S_ISLNK(os.lstat(found).st_mode):
            return found
        if found not in self._known:
            self._known[found] = self._follow(found, steps + 1) if steps < limits.LINKS else None
        return self._known[found]
