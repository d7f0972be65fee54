"""gzip files and tar archives of a stranger, opened in memory one member at a time. Nothing is ever written to disk.

Links, devices and sparse files are refused, names serve for showing only, and what an archive unpacks to is bounded by
its own size, so that a bomb stops early. An archive inside an archive is opened as well.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

from hangscope.errors import DamagedError
from hangscope.safeio.file_magic import DEFLATE, GZIP
from hangscope.safeio.gzip_stream import Budget, gunzip
from hangscope.safeio.limits import ARCHIVE, MIB, SHOWN_NAME, ArchiveLimits
from hangscope.safeio.tar_stream import BLOCK, NO_END_MARK, Content, Member, TarReader, Truncated, is_header

_ANY_SIZE = 1 << 62

Refuse = Callable[[str, str], None]
"""Is called with the name of a member, empty for the archive itself, and why it is not given, or not all of it."""


def recognise(head: bytes) -> str:
    """``gzip`` or ``tar`` where the first 512 bytes are the start of one, otherwise nothing."""
    if head.startswith(GZIP + DEFLATE):
        return "gzip"
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
        elif depth == 1:
            raise DamagedError("neither gzip nor tar", file=self.file)
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

    def _member(self, member: Member, content: Content, above: str, depth: int) -> Iterator[tuple[str, bytes]]:
        own = _clean(member.name[:SHOWN_NAME])
        name = f"{above}!{own}" if above else own
        if member.kind not in ("file", "directory"):
            self.refuse(name, f"a {member.kind}, which is never followed")
        elif member.kind == "directory":
            return
        elif member.size > self.limits.memory_bytes:
            self.refuse(name, self._too_large())
        elif own:
            data = self._all_of(content, name)
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
