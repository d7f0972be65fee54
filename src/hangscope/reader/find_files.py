"""Finds the files: walks directories, opens archives, and says by content what each file may be."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hangscope.errors import NotFoundError
from hangscope.incident.layout import MOST_LEVELS, counted
from hangscope.model import Gap, Source
from hangscope.safeio.evidence_names import LOOK, Known, bounded, untaken
from hangscope.safeio.file_magic import PACKED, UTF16
from hangscope.safeio.safe_files import Links, head_of, kind_of, open_file

MAX_FILES = 200_000
HEAD = 64 * 1024
START = 512
_SKIP_DIRS = {".git", "__pycache__", "node_modules", ".venv", "lost+found"}
_SKIP_SUFFIXES = (
    ".part",
    ".tmp",
    ".swp",
    # sources, documents and hangscope's own reports quote log lines without being evidence
    ".py",
    ".pyc",
    ".md",
    ".rst",
    ".html",
    ".htm",
    ".perfetto-trace",
    ".pftrace",
    ".ipynb",
    ".c",
    ".cc",
    ".cpp",
    ".h",
    ".hpp",
    ".cu",
    ".so",
    ".pt",
    ".pth",
    ".safetensors",
    ".bin",
    ".npy",
    ".npz",
)
_OWN_OUTPUT = {"verdict.json", "verdict.txt", "truth.json"}


@dataclass
class Found:
    """One file: where it is, as the user would write it, and how to open it.

    A member of an archive has its bytes in `data` while they are at hand.
    """

    file: str
    parts: tuple[str, ...]
    """Its path below what the user named, that itself included."""
    size: int
    path: Path | None = None
    data: bytes | None = None
    archive: Found | None = None
    ordinal: int = 0
    start: bytes | None = None
    """Its first bytes, which several questions are about."""
    own: bool | None = None
    """Whether its beginning names one of hangscope's own schemas, once somebody looked."""

    @property
    def name(self) -> str:
        return self.parts[-1]

    def open(self) -> BinaryIO:
        if self.path is not None:
            return open_file(self.path)
        return io.BytesIO(self.data or b"")

    def head(self, size: int) -> bytes:
        if self.path is not None and self.start is None:
            with self.open() as stream:
                self.start = stream.read(START)
        # One that ends within its first bytes need not be opened again.
        if self.start is not None and (size <= START or len(self.start) < START):
            return self.start[:size]
        with self.open() as stream:
            return stream.read(size)

    def read(self) -> bytes:
        with self.open() as stream:
            return stream.read()


def find(paths: Sequence[str | Path], gaps: list[Gap], known: Known | None = None) -> list[Found]:
    """Every file under the paths, each once, sorted. Links that lead out of a directory are not followed.

    What was seen of files that may be no evidence is added to `known`.
    """
    seen: set[str] = set()
    listed: list[tuple[str, Path]] = []
    skipped: list[tuple[str, str]] = []
    for given in paths:
        path = Path(given)
        if not _exists(path):
            raise NotFoundError(
                f"{path}: no such file or directory", hint="check the path; on a cluster, whether it is mounted here"
            )
        for item, real in _files(path, skipped):
            if real in seen:
                continue
            seen.add(real)
            if len(listed) >= MAX_FILES:
                why = f"there are more than {MAX_FILES}; the rest was not looked at"
                gaps.append(Gap("files", why, source=Source(str(path))))
                break
            listed.append((item, path))
    listed.sort(key=lambda one: one[0])
    kept, left = bounded(listed, lambda one: one[0], lambda one: head_of(one[0], LOOK), known=known)
    if left:
        gaps.append(Gap(*untaken(left, len(listed)), source=Source(str(paths[0]))))
    found = [one for name, root in kept if (one := _found(name, root, skipped)) is not None]
    gaps.extend(_skipped(name, why) for name, why in counted(skipped))
    return found


def _found(name: str, root: Path, skipped: list[tuple[str, str]]) -> Found | None:
    at = Path(name)
    try:
        size = at.stat().st_size
    except OSError as error:
        skipped.append((name, f"cannot be read: {error.strerror or error}"))
        return None
    if not os.access(name, os.R_OK):
        skipped.append((name, "cannot be read: permission denied"))
        return None
    above = len(root.parts) - bool(root.name)  # what a file's own parts begin behind
    parts = at.parts[above:] if at != root else root.absolute().parts[-4:]
    return Found(name, _named(parts, root), size, at)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a link that leads to itself, a name that is too long
        return False


def _named(parts: tuple[str, ...], root: Path) -> tuple[str, ...]:
    """`parts` with the root's real name in front where the user wrote ``.`` or ``..``."""
    if parts and parts[0] in {".", ".."}:
        return (root.resolve().name, *parts[1:])
    return parts


def _files(path: Path, skipped: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The files to read below a path, each with its name without links. What is there and cannot be, or must not be,
    read is added to `skipped`. Names and not paths: there may be a hundred thousand."""
    if path.is_file():
        yield str(path), os.path.realpath(path)
        return
    if not path.is_dir():
        skipped.append((str(path), f"{kind_of(os.stat(path).st_mode)}, not a file"))
        return
    root = os.path.realpath(path) + os.sep
    links = Links()
    waiting = [(os.fspath(path), str(path / "x")[:-1], root)]
    while waiting:
        folder, front, real = waiting.pop()
        try:
            with os.scandir(folder) as listing:
                entries = list(listing)
        except OSError as error:
            skipped.append((folder, f"{_CLOSED}: {error.strerror or error}"))
            continue
        for entry in entries:
            name = entry.name
            if entry.is_dir(follow_symlinks=False):
                if name.startswith(".") or name in _SKIP_DIRS:
                    continue
                if real.count(os.sep) - root.count(os.sep) >= MOST_LEVELS:
                    skipped.append((front + name, f"{_CLOSED}: more than {MOST_LEVELS} levels down"))
                else:
                    waiting.append((front + name, f"{front}{name}{os.sep}", f"{real}{name}{os.sep}"))
            elif not wanted(name):
                continue
            elif entry.is_file(follow_symlinks=False):
                yield front + name, real + name
            else:
                why, target = _why_not(front + name, root, links)
                if target:
                    yield front + name, target
                elif why:
                    skipped.append((front + name, why))


_CLOSED = "the directory cannot be read"


def _skipped(item: str, why: str) -> Gap:
    return Gap(f"everything in {item}" if why.startswith(_CLOSED) else f"file {item}", why, source=Source(item))


def _why_not(item: str, root: str, links: Links) -> tuple[str, str]:
    """Why a directory's entry that is neither file nor directory is not read, empty where there is nothing to miss;
    or the file of the same tree that it is a link to."""
    try:
        found = os.lstat(item)
        target: str | None = ""
        if stat.S_ISLNK(found.st_mode):
            target = links.target(item)
            if target is None:
                return "a link that leads nowhere", ""
            if not f"{target}{os.sep}".startswith(root):
                return "a link that leads outside, not followed", ""
            found = os.lstat(target)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}", ""
    if stat.S_ISREG(found.st_mode):
        return "", target or item
    # The recorder's own dump pipes lie beside the dumps while the job runs: they are no evidence. A link to a
    # directory of the same tree leads to what is met anyway.
    nothing = stat.S_ISDIR(found.st_mode) or (stat.S_ISFIFO(found.st_mode) and item.endswith(".pipe"))
    return "" if nothing else f"{kind_of(found.st_mode)}, not a file", ""


def wanted(name: str) -> bool:
    """False for hidden and half-written files, for documents and code, and for what hangscope itself wrote."""
    return not (name.startswith(".") or name.lower().endswith(_SKIP_SUFFIXES) or name in _OWN_OUTPUT)


_ATTEMPT = re.compile(r"^attempt[_-]?(\d+)$")


def newest_attempt(found: list[Found], gaps: list[Gap]) -> list[Found]:
    """Of directories ``attempt_0``, ``attempt_1``… side by side (torchrun's log directory), the last one alone."""
    newest: dict[tuple[str, ...], int] = {}
    for item in found:
        for index, part in enumerate(item.parts[:-1]):
            if match := _ATTEMPT.match(part):
                above = item.parts[:index]
                newest[above] = max(newest.get(above, -1), int(match[1]))
    kept: list[Found] = []
    older: dict[str, int] = {}
    for item in found:
        for index, part in enumerate(item.parts[:-1]):
            match = _ATTEMPT.match(part)
            if match and int(match[1]) < newest[item.parts[:index]]:
                older["/".join(item.parts[: index + 1])] = older.get("/".join(item.parts[: index + 1]), 0) + 1
                break
        else:
            kept.append(item)
    gaps.extend(
        Gap(f"attempt in {where}", f"an older attempt: {count} files were left out", source=Source(where))
        for where, count in sorted(older.items())
    )
    return kept


_LOG_NAME = re.compile(r"\.(?:log|txt|out|err)\d*$|std(?:out|err)", re.IGNORECASE)
_DUMP_NAME = re.compile(r"trace|dump|flight", re.IGNORECASE)


def empty_kind(name: str) -> str:
    """What an empty file was meant to be, by its name: "log", "dump" or nothing. An empty log still names its rank."""
    if _LOG_NAME.search(name):
        return "log"
    return "dump" if _DUMP_NAME.search(name) else ""


_PICKLE_NAME = re.compile(r"rank.*\.(?:pkl|pickle)$", re.IGNORECASE)


def named_as_dump(name: str) -> bool:
    """Whether a file calls itself a dump: what it holds is then refused or read as one, and never taken for a log."""
    return empty_kind(name) == "dump" or _PICKLE_NAME.search(name) is not None


_CONTROL = bytes(byte for byte in range(32) if byte not in (9, 10, 12, 13, 27))


def is_utf16(head: bytes) -> bool:
    """Whether a file is text as Windows' shell writes it: with a mark in front and two bytes a character."""
    return head.startswith(UTF16)


def packed_with(head: bytes) -> str:
    """What a file is packed with that nobody here opens; nothing where it is not."""
    return next((name for magic, name in PACKED if head.startswith(magic)), "")


def looks_like_text(head: bytes) -> bool:
    """Whether a file is worth reading as lines: no NUL, and few control characters."""
    sample = head[:8192]
    if b"\x00" in sample:
        return False
    control = len(sample) - len(sample.translate(None, _CONTROL))
    return control * 50 <= len(sample)
