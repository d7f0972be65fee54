"""Finds the files: walks directories, opens archives, and says by content what each file may be."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from hangscope.errors import NotFoundError
from hangscope.model import Gap, Source
from hangscope.model.numbers import integer
from hangscope.reader.logs.log_lines import LineBudget
from hangscope.safeio import limits
from hangscope.safeio.evidence_names import Known, bounded, untaken
from hangscope.safeio.file_magic import PACKED, UTF16
from hangscope.safeio.held import status_of
from hangscope.safeio.limited import limited
from hangscope.safeio.safe_files import head_of, kind_of, open_file
from hangscope.safeio.walk import CLOSED, counted, evidence_tree


@dataclass
class Found:
    """One file: where it is, as the user would write it, and how to open it.

    A file is opened once, if there are not too many: it stays open from the first look at it until it is read.
    """

    file: str
    parts: tuple[str, ...]
    """Its path below what the user named, that itself included."""
    size: int
    path: Path | None = None
    data: bytes | None = None
    """Its bytes, while they are at hand."""
    start: bytes | None = None
    """Its first bytes, which several questions are about."""
    about_others: Mapping[str, Any] | None = None
    """Its JSON, where it is a manifest or a node's file and was parsed."""
    most: int | None = None
    """So many of its bytes count; None for all."""
    line_budget: LineBudget | None = None
    """How many lines may still be read, of it and of others that are packed; None: all."""
    _stream: BinaryIO | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.parts[-1]

    @property
    def is_whole(self) -> bool:
        """Whether it is a file of its own that nobody has read yet."""
        return self.data is None

    def open(self) -> BinaryIO:
        """The whole file, to be read and closed."""
        if self.data is not None or self.path is None:
            return io.BytesIO(self.data or b"")
        if self._ended_in(self.start):
            return io.BytesIO(self.start)
        if self._stream is None:
            stream = open_file(self.path)
            return stream if self.most is None else limited(stream, self.most)
        stream = self._stream
        self._stream = None
        stream.seek(0)
        return stream

    def head(self, size: int) -> bytes:
        """Its first bytes. The file stays open until it is read, closed, or has to `wait`."""
        if self.data is not None:
            return self.data[:size]
        if self.start is not None and (size <= limits.START_BYTES or self._ended_in(self.start)):
            return self.start[:size]
        stream = self.open()
        try:
            head = stream.read(max(size, limits.START_BYTES))
        except BaseException:
            stream.close()
            raise
        self.start = head[: limits.START_BYTES]
        if self._ended_in(head):
            stream.close()
        else:
            self._stream = stream
        return head[:size]

    @staticmethod
    def _ended_in(start: bytes | None) -> TypeGuard[bytes]:
        """Whether a file's first bytes are all that it has."""
        return start is not None and len(start) < limits.START_BYTES

    def read(self) -> bytes:
        with self.open() as stream:
            return stream.read()

    def cut(self, size: int) -> None:
        """From now on it has its first `size` bytes alone."""
        self.size = min(self.size, size)
        self.most = self.size
        self.start = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self.data is not None:
            self.data = self.data[:size]

    def wait(self) -> None:
        """Stay open until it is read later, unless too many do."""
        if self._stream is not None and self._stream.fileno() >= limits.OPEN_FILES:
            self._stream.close()
            self._stream = None

    def close(self) -> None:
        """Let go of what was kept for a reading."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self.path is not None:
            self.data = None

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which opens the file itself."""
        return {**self.__dict__, "_stream": None}


def find(paths: Sequence[str | Path], gaps: list[Gap], known: Known | None = None) -> list[Found]:
    """Every file under the paths, each once, sorted. Links that lead out of a directory are not followed.

    What was seen of files that may be no evidence is added to `known`.
    """
    seen: set[str] = set()
    listed: list[tuple[str, Path]] = []
    links: dict[str, str] = {}
    skipped: list[tuple[str, str]] = []
    for given in paths:
        path = Path(given)
        if not _exists(path):
            raise NotFoundError(
                f"{path}: no such file or directory", hint="check the path; on a cluster, whether it is mounted here"
            )
        files, whole = _files(path, limits.TREE_FILES - len(listed), skipped, links)
        for name, real in files:
            if real not in seen:
                seen.add(real)
                listed.append((name, path))
        if not whole:
            why = f"there are more than {limits.TREE_FILES}; the rest was not looked at"
            gaps.append(Gap("files", why, source=Source(str(path))))
    listed.sort(key=lambda one: one[0])

    def look(one: tuple[str, Path]) -> bytes:
        return head_of(links.get(one[0], one[0]), limits.HEAD_BYTES)

    kept, left = bounded(listed, lambda one: one[0], look, known=known)
    if left:
        gaps.append(Gap(*untaken(left, len(listed)), source=Source(str(paths[0]))))
    found = [one for name, root in kept if (one := _found(name, root, skipped, links)) is not None]
    gaps.extend(_skipped(name, why) for name, why in counted(skipped))
    return found


def _found(name: str, root: Path, skipped: list[tuple[str, str]], links: Mapping[str, str]) -> Found | None:
    at = Path(name)
    opened = links.get(name, name)
    try:
        size = status_of(opened).st_size
    except OSError as error:
        skipped.append((name, f"cannot be read: {error.strerror or error}"))
        return None
    if not os.access(name, os.R_OK):
        skipped.append((name, "cannot be read: permission denied"))
        return None
    above = len(root.parts) - bool(root.name)  # what a file's own parts begin behind
    parts = at.parts[above:] if at != root else root.absolute().parts[-4:]
    return Found(name, _named(parts, root), size, Path(opened) if name in links else at)


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


def _files(
    path: Path, most: int, skipped: list[tuple[str, str]], links: dict[str, str]
) -> tuple[list[tuple[str, str]], bool]:
    """The files to read below a path, each with its name without links, and whether those are all. What is there and
    cannot be, or must not be, read is added to `skipped`; where links lead, to `links`."""
    if path.is_file():
        return [(str(path), os.path.realpath(path))], True
    if not path.is_dir():
        skipped.append((str(path), f"{kind_of(os.stat(path).st_mode)}, not a file"))
        return [], True
    tree = evidence_tree(path, most=most)
    skipped.extend(tree.skipped)
    links.update(tree.links)
    return tree.files, tree.whole


def _skipped(item: str, why: str) -> Gap:
    return Gap(f"everything in {item}" if why.startswith(CLOSED) else f"file {item}", why, source=Source(item))


_ATTEMPT = re.compile(r"^attempt[_-]?(\d{1,9})$", re.ASCII)


def newest_attempt(found: list[Found], gaps: list[Gap]) -> list[Found]:
    """Of directories ``attempt_0``, ``attempt_1``… side by side (torchrun's log directory), the last one alone."""
    newest: dict[tuple[str, ...], int] = {}
    for item in found:
        for index, part in enumerate(item.parts[:-1]):
            if match := _ATTEMPT.match(part):
                above = item.parts[:index]
                newest[above] = max(newest.get(above, -1), integer(match[1]))
    kept: list[Found] = []
    older: dict[str, int] = {}
    for item in found:
        for index, part in enumerate(item.parts[:-1]):
            match = _ATTEMPT.match(part)
            if match and integer(match[1]) < newest[item.parts[:index]]:
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
