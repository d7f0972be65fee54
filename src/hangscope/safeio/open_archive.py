"""gzip files, tars and zips of a stranger, opened in memory one member at a time. Nothing is ever written to disk.

Links, devices and sparse files are refused, names serve for showing only, and what an archive unpacks to is bounded by
its own size, so that a bomb stops early. An archive inside an archive is opened as well.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import BinaryIO

from hangscope.errors import DamagedError
from hangscope.safeio.file_magic import DEFLATE, GZIP, ZIP
from hangscope.safeio.gzip_stream import Budget, gunzip
from hangscope.safeio.limits import ARCHIVE, MIB, SHOWN_NAME, ArchiveLimits
from hangscope.safeio.tar_stream import BLOCK, NO_END_MARK, Content, Member, TarReader, Truncated, is_header
from hangscope.safeio.zip_members import FIRST_NAMES, WrongBytes, ZipMember, ZipReader, program_of

_ANY_SIZE = 1 << 62

Refuse = Callable[[str, str], None]
"""Is called with the name of a member, empty for the archive itself, and why it is not given, or not all of it."""


def recognise(head: bytes) -> str:
    """``gzip``, ``zip`` or ``tar`` where the first 512 bytes are the start of one, otherwise nothing."""
    if head.startswith(GZIP + DEFLATE):
        return "gzip"
    if head.startswith(ZIP):
        return "zip"
    return "tar" if len(head) >= BLOCK and is_header(head[:BLOCK]) and head[:1] != b"\x00" else ""


def members(
    stream: BinaryIO, *, file: str, refuse: Refuse, limits: ArchiveLimits = ARCHIVE
) -> Iterator[tuple[str, bytes]]:
    """The plain files in an archive, each with its name in it; a single gzip-compressed file has the name "".

    Raises DamagedError where the archive itself cannot be read on: what was yielded before that stands.
    """
    start = stream.tell()
    size = stream.seek(0, io.SEEK_END) - start
    stream.seek(start)
    archive = _Archive(file, limits, refuse, Budget(size, limits, file))
    yield from archive.layer(_peekable(stream), "", 1)


def _peekable(stream: BinaryIO) -> io.BufferedReader:
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)  # type: ignore[arg-type]


@dataclass(slots=True)
class _Archive:
    """One archive being read, with all its layers."""

    file: str
    limits: ArchiveLimits
    refuse: Refuse
    budget: Budget
    count: int = 0

    def layer(self, stream: io.BufferedReader, name: str, depth: int) -> Iterator[tuple[str, bytes]]:
        """Whatever a stream is: a layer of compression, an archive, or at last a file."""
        kind = recognise(stream.peek(BLOCK)[:BLOCK])
        if kind and depth > self.limits.depth:
            self.refuse(name, f"packed more than {self.limits.depth} times over")
        elif kind == "gzip":
            yield from self.layer(gunzip(stream, self.budget, self._damaged(name)), name, depth + 1)
        elif kind == "tar":
            yield from self._tar(stream, name, depth)
        elif kind == "zip":
            yield from self._zip(stream, name, depth)
        elif depth == 1:
            raise DamagedError("neither gzip, zip nor tar", file=self.file)
        else:
            whole = stream.read(self.limits.memory_bytes + 1)
            if len(whole) > self.limits.memory_bytes:
                self.refuse(name, self._too_large())
            else:
                yield name, whole

    def _damaged(self, name: str) -> Callable[[str], None]:
        def damaged(reason: str) -> None:
            if reason:
                self.refuse(name, f"the compressed data is damaged ({reason}); what was before was read")
            else:
                self.refuse(name, "the compressed data is cut off; what was before that was read")

        return damaged

    def _tar(self, stream: io.BufferedReader, above: str, depth: int) -> Iterator[tuple[str, bytes]]:
        """The files of a tar. One that is cut off gives what is whole."""
        # A member that is too large is left out by itself here, and does not end the archive.
        bounds = replace(self.limits, member_bytes=_ANY_SIZE, total_bytes=_ANY_SIZE)
        try:
            for member, content in TarReader(stream, file=self.file, limits=bounds):
                self.count += 1
                if self.count > self.limits.members:
                    raise DamagedError(f"more than {self.limits.members} members", file=self.file)
                yield from self._member(member, content, above, depth)
        except Truncated as cut:
            if cut.reason != NO_END_MARK:  # some writers leave it out, and nothing is missing then
                self.refuse(above, f"the archive is cut off at byte {cut.offset}")

    def _zip(self, stream: io.BufferedReader, above: str, depth: int) -> Iterator[tuple[str, bytes]]:
        """The files of a zip. Its list of them is at its end, so one that is itself compressed is unpacked first."""
        whole: BinaryIO = stream
        if not stream.seekable():
            data = stream.read(self.limits.memory_bytes + 1)
            if len(data) > self.limits.memory_bytes:
                self.refuse(above, self._too_large())
                return
            whole = io.BytesIO(data)
        reader = ZipReader(whole, file=self.file, budget=self.budget)
        program = program_of([member.name for member in islice(reader, FIRST_NAMES)])
        if program:
            self.refuse(above, f"{program}, which is no evidence")
            return
        for member in reader:
            self.count += 1
            if self.count > self.limits.members:
                raise DamagedError(f"more than {self.limits.members} members", file=self.file)
            yield from self._zip_member(reader, member, above, depth)

    def _zip_member(self, reader: ZipReader, member: ZipMember, above: str, depth: int) -> Iterator[tuple[str, bytes]]:
        name = self._wanted(member.name, member.kind, member.size, above)
        if not name:
            return
        if member.unreadable:
            self.refuse(name, member.unreadable)
            return
        try:
            data = reader.content(member, self.limits.memory_bytes)
        except WrongBytes as error:
            self.refuse(name, error.reason)
            return
        if len(data) > self.limits.memory_bytes:
            self.refuse(name, self._too_large())
        else:
            yield from self._opened(name, data, depth)

    def _member(self, member: Member, content: Content, above: str, depth: int) -> Iterator[tuple[str, bytes]]:
        name = self._wanted(member.name, member.kind, member.size, above)
        if name:
            yield from self._opened(name, self._all_of(content, name), depth)

    def _wanted(self, written: str, kind: str, size: int, above: str) -> str:
        """The name of a member that is a plain file of a bearable size; of any other none, once it was refused."""
        own = _clean(written[:SHOWN_NAME])
        name = f"{above}!{own}" if above else own
        if kind not in ("file", "directory"):
            self.refuse(name, f"a {kind}, which is never followed")
        elif kind == "file" and size > self.limits.memory_bytes:
            self.refuse(name, self._too_large())
        elif kind == "file" and own:
            return name
        return ""

    def _opened(self, name: str, data: bytes, depth: int) -> Iterator[tuple[str, bytes]]:
        """A member, or what it holds where it is an archive itself."""
        if recognise(data[:BLOCK]):
            yield from self.layer(_peekable(io.BytesIO(data)), name, depth + 1)
        else:
            yield name, data

    def _all_of(self, content: Content, name: str) -> bytes:
        """The bytes of a member; of one that is cut off those that are there."""
        whole = io.BytesIO()
        try:
            while part := content.read():
                whole.write(part)
        except Truncated:
            there = whole.tell()
            self.refuse(name, f"the archive is cut off after {there} of its {there + content.left} bytes")
        return whole.getvalue()

    def _too_large(self) -> str:
        return f"larger than {self.limits.memory_bytes // MIB} MiB"


def _clean(name: str) -> str:
    """A name that can be shown: no way up, no root, nothing that moves a cursor."""
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    return "".join(char if char.isprintable() else "?" for char in "/".join(parts))
