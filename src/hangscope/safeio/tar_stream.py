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
from hangscope.safeio.limits import ARCHIVE, TAR_HEADER_BYTES, ArchiveLimits

BLOCK = 512
_ZEROS = bytes(BLOCK)
_PIECE = 1 << 20
_HEADERS_IN_A_ROW = 8
"""Global, long name, long link and one pax header, with room."""

_KINDS = {
    b"0": "file", b"\0": "file", b"7": "file", b"5": "directory", b"1": "hard link", b"2": "symbolic link",
    b"3": "character device", b"4": "block device", b"6": "pipe", b"S": "sparse file", b"M": "part of a multi-volume",
}  # fmt: skip
_WITHOUT_CONTENT = (b"1", b"2", b"3", b"4", b"5", b"6")
"""Links, devices and directories, whatever size their header claims."""
_PAX = (b"x", b"X")
_LONG_NAME = b"L"
_EXTENSIONS = (*_PAX, b"g", _LONG_NAME, b"K")


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


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

    def read(self, size: int = _PIECE) -> bytes:
        if self.left == 0:
            return b""
        data = self._take(min(size, self.left, _PIECE))
        self.left -= len(data)
        return data


NO_END_MARK = "ends without an end mark"


class Truncated(DamagedError):
    """The archive ends in the middle. What came before is whole."""


@dataclass
class _Extended:
    """What extension headers say about the member behind them; None where they do not."""

    name: str | None = None
    size: int | None = None


class TarReader:
    """Iterates over (member, content); content that the caller leaves unread is skipped."""

    def __init__(self, stream: Readable, *, file: str = "", limits: ArchiveLimits = ARCHIVE) -> None:
        self._stream = stream
        self._file = file
        self._limits = limits
        self.position = 0

    def __iter__(self) -> Iterator[tuple[Member, Content]]:
        limits = self._limits
        count = 0
        total = 0
        while (member := self._next_member()) is not None:
            count += 1
            total += member.size
            if count > limits.members:
                raise self._bad(f"more than {limits.members} entries")
            if member.size > limits.member_bytes:
                claim = f"{member.name!r} claims {member.size} bytes"
                raise self._bad(f"{claim}, more than the {limits.member_bytes} allowed")
            if total > limits.total_bytes:
                raise self._bad(f"more than {limits.total_bytes} bytes unpacked")
            content = Content(self._some, member.size)
            yield member, content
            while content.left:
                content.read()
            self._exactly(-member.size % BLOCK)

    def _next_member(self) -> Member | None:
        """The next member, with what extension headers in front of it say; None at the end."""
        extended = _Extended()
        for _ in range(_HEADERS_IN_A_ROW):
            block = self._header()
            if block is None:
                return None
            flag = block[156:157]
            size = _number(block[124:136])
            if size is None:
                raise self._bad("a header without a valid size")
            if flag not in _EXTENSIONS:
                return _member(block, flag, size, extended)
            self._extend(extended, flag, size)
        raise self._bad("too many extension headers in a row")

    def _extend(self, extended: _Extended, flag: bytes, size: int) -> None:
        """Read an extension header; global ones and those of links say nothing that is wanted."""
        if size > TAR_HEADER_BYTES:
            raise self._bad(f"an extension header of {size} bytes")
        data = self._exactly(size)
        self._exactly(-size % BLOCK)
        if flag in _PAX:
            self._read_pax(extended, data)
        elif flag == _LONG_NAME:
            extended.name = _text(data)

    def _read_pax(self, extended: _Extended, data: bytes) -> None:
        position = 0
        while position < len(data):
            space = data.find(b" ", position, position + 20)
            digits = data[position:space] if space > 0 else b""
            if not digits.isdigit() or not 0 < (length := int(digits)) <= len(data) - position:
                raise self._bad("a broken extension header")
            key, _, value = data[space + 1 : position + length - 1].partition(b"=")
            if key == b"path":
                extended.name = _decode(value)
            elif key == b"size":
                if not value.isdigit() or len(value) > 20:
                    raise self._bad("a broken size in an extension header")
                extended.size = int(value)
            elif key.startswith(b"GNU.sparse"):
                raise self._bad("a sparse file")
            position += length

    def _header(self) -> bytes | None:
        """The next header, as its checksum proves; None at the end mark."""
        block = self._upto(BLOCK)
        if not block:
            raise Truncated(NO_END_MARK, file=self._file, offset=self.position)
        if len(block) < BLOCK:
            raise Truncated("ends inside a header", file=self._file, offset=self.position)
        if block == _ZEROS:
            return None
        if not is_header(block):
            raise DamagedError("a tar header whose checksum is wrong", file=self._file, offset=self.position - BLOCK)
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


def _member(block: bytes, flag: bytes, size: int, extended: _Extended) -> Member:
    """What a header describes, with what the extension headers in front of it said."""
    name = extended.name if extended.name is not None else _own_name(block)
    kind = _KINDS.get(flag, f"entry of type {flag!r}")
    if kind == "file" and name.endswith("/"):
        kind = "directory"
    length = size if extended.size is None else extended.size
    if flag in _WITHOUT_CONTENT:
        length = 0
    return Member(name, kind, length, float(_number(block[136:148]) or 0))


def _own_name(block: bytes) -> str:
    name = _text(block[:100])
    prefix = _text(block[345:500])
    # GNU tar keeps other things in the prefix's place, and writes another mark.
    return f"{prefix}/{name}" if prefix and block.startswith(TAR + b"\0", TAR_AT) else name


def is_header(block: bytes) -> bool:
    """Whether 512 bytes are the header of a member: their sum is in them."""
    written = _number(block[148:156])
    if len(block) < BLOCK or not written:
        return False
    body = block[:148] + b" " * 8 + block[156:BLOCK]
    # Some old tars summed signed bytes; both sums are accepted everywhere.
    return written == sum(body) or written == sum(byte - 256 if byte > 127 else byte for byte in body)


def _text(field: bytes) -> str:
    return _decode(field.split(b"\0", 1)[0])


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
