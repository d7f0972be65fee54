"""Reading a tar stream that a stranger, or a remote node, wrote. Nothing in it is trusted for size, name or kind.

The only tar reader of this project: bundles, what nodes send, and archives that somebody diagnoses all go through it.

Python's own tarfile reads extended headers into memory whatever size they claim, and follows conventions (links,
sparse maps, global headers) that evidence never needs. This reader knows plain files and directories; whatever else an
archive holds is named by its kind and left to the caller to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from hangscope.errors import DamagedError
from hangscope.safeio.file_magic import TAR, TAR_AT

_BLOCK = 512
_MAX_EXTENSION = 64 << 10
_ZEROS = bytes(_BLOCK)

_KINDS = {
    b"0": "file", b"\0": "file", b"7": "file", b"5": "directory", b"1": "hard link", b"2": "symbolic link",
    b"3": "character device", b"4": "block device", b"6": "pipe", b"S": "sparse file", b"M": "part of a multi-volume",
}  # fmt: skip


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What an archive may at most hold. The defaults fit a job of some 30,000 ranks."""

    members: int = 250_000
    member_bytes: int = 16 << 30
    total_bytes: int = 64 << 30
    ratio: int = 200
    """Unpacked bytes per packed byte, once there are `ratio_from` unpacked ones. Evidence packs some ten times, log
    spam some fifty times; a file of zeros hundreds of times."""
    ratio_from: int = 128 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive: its name as written, and what it is (`file`, `directory`, `symbolic link`, …)."""

    name: str
    kind: str
    size: int
    mtime: float


class Content:
    """The bytes of the current member; at the end of the member, or of the archive, it gives b''."""

    def __init__(self, take: Callable[[int], bytes], size: int) -> None:
        self._take = take
        self.left = size

    def read(self, size: int = 1 << 20) -> bytes:
        if self.left == 0:
            return b""
        data = self._take(min(size, self.left, 1 << 20))
        self.left -= len(data)
        return data


NO_END_MARK = "ends without an end mark"


class Truncated(DamagedError):
    """The archive ends in the middle. What came before is whole."""


class TarReader:
    """Iterates over (member, content); content that the caller leaves unread is skipped."""

    def __init__(self, stream: Readable, *, file: str = "", limits: Limits | None = None) -> None:
        self._stream = stream
        self._file = file
        self._limits = limits or Limits()
        self.position = 0

    def __iter__(self) -> Iterator[tuple[Member, Content]]:
        limits = self._limits
        count = total = 0
        while (header := self._header()) is not None:
            member, size = header
            count += 1
            total += size
            if count > limits.members:
                raise self._bad(f"more than {limits.members} entries")
            if size > limits.member_bytes:
                raise self._bad(f"{member.name!r} claims {size} bytes, more than the {limits.member_bytes} allowed")
            if total > limits.total_bytes:
                raise self._bad(f"more than {limits.total_bytes} bytes unpacked")
            content = Content(self._some, size)
            yield member, content
            while content.left:
                content.read(1 << 20)
            self._exactly(-size % _BLOCK)

    def _header(self) -> tuple[Member, int] | None:
        """The next member's header, with what extension headers in front of it say; None at the end."""
        name: str | None = None
        size: int | None = None
        for _ in range(8):  # at most: global, long name, long link and one pax header, with room
            block = self._block()
            if block is None:
                return None
            flag = block[156:157]
            own = _number(block[124:136])
            if own is None:
                raise self._bad("a header without a valid size")
            if flag in (b"x", b"X", b"g", b"L", b"K"):
                if own > _MAX_EXTENSION:
                    raise self._bad(f"an extension header of {own} bytes")
                data = self._exactly(own)
                self._exactly(-own % _BLOCK)
                if flag in (b"x", b"X"):
                    name, size = self._extended(data, name, size)
                elif flag == b"L":
                    name = _decode(data.split(b"\0", 1)[0])
                continue
            plain = _decode(block[:100].split(b"\0", 1)[0])
            prefix = block[345:500].split(b"\0", 1)[0]
            if block.startswith(TAR + b"\0", TAR_AT) and prefix:  # GNU tar keeps other things in that place
                plain = f"{_decode(prefix)}/{plain}"
            kind = _KINDS.get(flag, f"entry of type {flag!r}")
            told = plain if name is None else name
            if kind == "file" and told.endswith("/"):
                kind = "directory"
            length = own if size is None else size
            if flag in (b"1", b"2", b"3", b"4", b"5", b"6"):
                length = 0  # whatever the header claims: links, devices and directories have no content
            return Member(told, kind, length, float(_number(block[136:148]) or 0)), length
        raise self._bad("too many extension headers in a row")

    def _extended(self, data: bytes, name: str | None, size: int | None) -> tuple[str | None, int | None]:
        position = 0
        while position < len(data):
            space = data.find(b" ", position, position + 20)
            digits = data[position:space] if space > 0 else b""
            if not digits.isdigit() or not 0 < (length := int(digits)) <= len(data) - position:
                raise self._bad("a broken extension header")
            key, _, value = data[space + 1 : position + length - 1].partition(b"=")
            if key == b"path":
                name = _decode(value)
            elif key == b"size":
                if not value.isdigit() or len(value) > 20:
                    raise self._bad("a broken size in an extension header")
                size = int(value)
            elif key.startswith(b"GNU.sparse"):
                raise self._bad("a sparse file")
            position += length
        return name, size

    def _block(self) -> bytes | None:
        block = self._upto(_BLOCK)
        if not block:
            raise Truncated(NO_END_MARK, file=self._file, offset=self.position)
        if len(block) < _BLOCK:
            raise Truncated("ends inside a header", file=self._file, offset=self.position)
        if block == _ZEROS:
            return None
        if not is_header(block):
            raise DamagedError("a tar header whose checksum is wrong", file=self._file, offset=self.position - _BLOCK)
        return block

    def _upto(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._stream.read(size)
            if not part:
                break
            self.position += len(part)
            size -= len(part)
            parts.append(part)
        return b"".join(parts)

    def _some(self, size: int) -> bytes:
        part = self._stream.read(size)
        self.position += len(part)
        if not part:
            raise Truncated("ends inside a file", file=self._file, offset=self.position)
        return part

    def _exactly(self, size: int) -> bytes:
        data = self._upto(size)
        if len(data) < size:
            raise Truncated("ends inside an entry", file=self._file, offset=self.position)
        return data

    def _bad(self, reason: str) -> DamagedError:
        return DamagedError(reason, file=self._file, offset=self.position)


def is_header(block: bytes) -> bool:
    """Whether 512 bytes are the header of a member: their sum is in them."""
    told = _number(block[148:156])
    if len(block) < _BLOCK or not told:
        return False
    body = block[:148] + b" " * 8 + block[156:_BLOCK]
    # Some old tars summed signed bytes; both sums are accepted everywhere.
    return told == sum(body) or told == sum(byte - 256 if byte > 127 else byte for byte in body)


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _number(field: bytes) -> int | None:
    """A number in a header: octal digits, or GNU's binary form for sizes of 8 GiB and more."""
    if field[:1] == b"\x80":
        value = int.from_bytes(field[1:], "big")
        return value if value < 1 << 62 else None
    digits = field.split(b"\0", 1)[0].strip()
    if not digits:
        return 0
    try:
        return int(digits, 8) if not digits.startswith((b"-", b"+")) else None
    except ValueError:
        return None
