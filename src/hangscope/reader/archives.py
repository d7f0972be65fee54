"""gzip files and tar archives, opened in memory one member at a time. Nothing is ever written to disk.

The archive is untrusted: links, devices and sparse files are refused, names serve for showing only, and what it unpacks
to is bounded by its own size, so that a bomb stops early. Tars are read by incident.tars.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from hangscope.errors import DamagedError
from hangscope.model import Gap, Source
from hangscope.safeio.file_magic import DEFLATE, GZIP
from hangscope.safeio.tar_stream import NO_END_MARK, Content, TarReader, Truncated, is_header
from hangscope.safeio.tar_stream import Limits as TarLimits

MIB = 1 << 20
_BLOCK = 512
_PIECE = 1 << 16
_STREAM = 1 << 14  # what starting another compressed stream costs, though it may unpack to nothing
_GZIP = GZIP + DEFLATE
_LONGEST_NAME = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds for one archive with everything in it. Real logs and dumps shrink to a tenth or a fiftieth, not more."""

    member_bytes: int = 160 * MIB
    members: int = 200_000
    free_bytes: int = 64 * MIB
    ratio: int = 150
    """An archive of n bytes may unpack to `free_bytes` plus n times this, all layers together."""
    depth: int = 5
    """Layers of packing: a compressed dump in a node's tar.gz in the job's tar is four."""


DEFAULT = Limits()


def recognise(head: bytes) -> str:
    """``gzip`` or ``tar`` where the first 512 bytes are the start of one, otherwise nothing."""
    if head.startswith(_GZIP):
        return "gzip"
    return "tar" if len(head) >= _BLOCK and is_header(head[:_BLOCK]) and head[:1] != b"\x00" else ""


def members(
    data: bytes | BinaryIO, *, file: str, limits: Limits = DEFAULT, gaps: list[Gap] | None = None
) -> Iterator[tuple[str, bytes]]:
    """The plain files in an archive, each with its name in it; a single gzip-compressed file has the name "".

    What is refused or cut off is added to `gaps`. Raises DamagedError where the archive itself cannot be read on: what
    was yielded before that stands.
    """
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    start = stream.tell()
    size = stream.seek(0, io.SEEK_END) - start
    stream.seek(start)
    opened = _Opened(file, limits, [] if gaps is None else gaps, limits.free_bytes + limits.ratio * size)
    yield from _layer(stream, "", opened, 1)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(slots=True)
class _Opened:
    """One archive being read: what it may still unpack to, and what was refused."""

    file: str
    limits: Limits
    gaps: list[Gap]
    budget: int
    count: int = 0

    def spend(self, size: int) -> None:
        self.budget -= size
        if self.budget < 0:
            raise DamagedError(
                "unpacks to far more than a real archive of its size would",
                file=self.file,
                hint="if it is real, unpack it yourself and give hangscope the folder",
            )

    def refuse(self, name: str, why: str) -> None:
        if len(self.gaps) < 1000:
            shown = f"{self.file}!{name}" if name else self.file
            self.gaps.append(Gap(f"file {shown}", why, source=Source(shown)))


def _layer(stream: _Readable, prefix: str, opened: _Opened, depth: int) -> Iterator[tuple[str, bytes]]:
    """Whatever a stream is: a layer of compression, an archive, or at last a file."""
    head = _Ahead(stream)
    kind = recognise(head.peek(_BLOCK))
    if kind and depth > opened.limits.depth:
        opened.refuse(prefix, f"packed more than {opened.limits.depth} times over")
    elif kind == "gzip":
        yield from _layer(_Gunzip(head, prefix, opened), prefix, opened, depth + 1)
    elif kind == "tar":
        yield from _tar(head, prefix, opened, depth)
    elif depth == 1:
        raise DamagedError("neither gzip nor tar", file=opened.file)
    else:
        whole = head.read(opened.limits.member_bytes + 1)
        if len(whole) > opened.limits.member_bytes:
            opened.refuse(prefix, f"larger than {opened.limits.member_bytes // MIB} MiB")
        else:
            yield prefix, whole


class _Ahead:
    """A stream whose first bytes can be looked at, and whose `read` gives all it was asked for until the end."""

    def __init__(self, stream: _Readable) -> None:
        self._stream = stream
        self._kept = b""

    def peek(self, size: int) -> bytes:
        self._kept = self.read(size)
        return self._kept

    def read(self, size: int, /) -> bytes:
        got = io.BytesIO()  # hands its content over without the copy that joining parts would make
        left = size - got.write(self._kept[:size])
        self._kept = self._kept[size:]
        while left > 0:
            part = self._stream.read(min(left, _PIECE))
            if not part:
                break
            left -= got.write(part)
        return got.getvalue()


class _Gunzip:
    """Decompresses as it is read, a piece at a time. A stream that is cut off or wrong ends where it is."""

    def __init__(self, stream: _Readable, name: str, opened: _Opened) -> None:
        self._stream = stream
        self._name = name
        self._opened = opened
        self._machine = zlib.decompressobj(wbits=31)
        self._waiting = b""
        self._ended = False

    def read(self, size: int, /) -> bytes:
        while not self._ended:
            if not self._waiting and not self._machine.unconsumed_tail:
                self._waiting = self._stream.read(_PIECE)
                if not self._waiting:
                    self._ended = True
                    if not self._machine.eof:
                        self._opened.refuse(self._name, "the compressed data is cut off; what was before that was read")
                    break
            try:
                part = self._machine.decompress(self._waiting or self._machine.unconsumed_tail, size)
            except zlib.error as error:
                self._ended = True
                self._opened.refuse(self._name, f"the compressed data is damaged ({error}); what was before was read")
                break
            self._waiting = b""
            if self._machine.eof:
                self._next()
            if part:
                self._opened.spend(len(part))
                return part
        return b""

    def _next(self) -> None:
        """Several gzip streams one after the other are one file; anything else after the end is padding."""
        rest = self._machine.unused_data or self._stream.read(_PIECE)
        if rest.startswith(GZIP):
            self._opened.spend(_STREAM)
            self._machine = zlib.decompressobj(wbits=31)
            self._waiting = rest
        else:
            self._ended = True


# ---- tar -------------------------------------------------------------------------------------------------------------


def _tar(stream: _Ahead, prefix: str, opened: _Opened, depth: int) -> Iterator[tuple[str, bytes]]:
    """The files of a tar, read by the one tar reader of this project. One that is cut off gives what is whole."""
    # A member that is too large is left out by itself here, and does not end the archive.
    bounds = TarLimits(members=opened.limits.members + 1, member_bytes=1 << 62, total_bytes=1 << 62)
    try:
        for member, content in TarReader(stream, file=opened.file, limits=bounds):
            opened.count += 1
            if opened.count > opened.limits.members:
                raise DamagedError(f"more than {opened.limits.members} members", file=opened.file)
            name = _clean(member.name[:_LONGEST_NAME])
            shown = f"{prefix}!{name}" if prefix else name
            if member.kind not in ("file", "directory"):
                opened.refuse(shown, f"a {member.kind}, which is never followed")
            elif member.size > opened.limits.member_bytes and member.kind == "file":
                opened.refuse(shown, f"larger than {opened.limits.member_bytes // MIB} MiB")
            elif member.kind == "file" and name and not name.endswith("/"):
                data = _content(content, shown, opened)
                if recognise(data[:_BLOCK]):
                    yield from _layer(io.BytesIO(data), shown, opened, depth + 1)
                else:
                    yield shown, data
    except Truncated as cut:
        if cut.reason != NO_END_MARK:  # some writers leave it out, and nothing is missing then
            opened.refuse(prefix, f"the archive is cut off at byte {cut.offset}")


def _content(content: Content, shown: str, opened: _Opened) -> bytes:
    """The bytes of a member; of one that is cut off those that are there."""
    whole = io.BytesIO()
    try:
        while part := content.read(_PIECE):
            whole.write(part)
    except Truncated:
        opened.refuse(shown, f"the archive is cut off after {whole.tell()} of its {whole.tell() + content.left} bytes")
    return whole.getvalue()


def _clean(name: str) -> str:
    """A name that can be shown: no way up, no root, nothing that moves a cursor."""
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    shown = "".join(char if char.isprintable() else "?" for char in "/".join(parts))
    return f"{shown}/" if name.endswith("/") and shown else shown
