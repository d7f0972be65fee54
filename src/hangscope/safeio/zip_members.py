"""Reading a zip that a stranger made. Nothing in it is trusted for size, name or kind.

Python's own zipfile reads the whole list of members into memory, whatever its size, and believes it. Here the list is
read a member at a time, and no more of a member is unpacked than the archive's budget allows. Members that lie over
each other, as in the known bombs, are refused: of such bytes those that are listed first are read, once.
"""

from __future__ import annotations

import io
import stat
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from hangscope.errors import DamagedError
from hangscope.safeio.file_magic import ZIP
from hangscope.safeio.gzip_stream import Budget
from hangscope.safeio.limits import SHOWN_NAME

_END = struct.Struct("<4s4H2LH")
_END_MAGIC = b"PK\x05\x06"
_LONGEST_COMMENT = 0xFFFF
_END64_PLACE = struct.Struct("<4sLQL")
_END64_PLACE_MAGIC = b"PK\x06\x07"
_END64 = struct.Struct("<4sQ2H2L4Q")
_END64_MAGIC = b"PK\x06\x06"
_LISTED = struct.Struct("<4s6H3L5H2L")
_LISTED_MAGIC = b"PK\x01\x02"
_LOCAL = struct.Struct("<4s5H3L2H")
_IN_64_BITS = 0xFFFFFFFF
_EXTRA_64 = 1
_ENCRYPTED = 1
_IN_UTF8 = 1 << 11
_MADE_ON_UNIX = 3
_STORED = 0
_DEFLATED = 8
_METHODS = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz", 98: "ppmd"}
_PIECE = 1 << 16

_IN_CHECKPOINTS = ("data/0", "byteorder", "version")
"""Beside data.pkl, in what torch.save writes (read in torch 2.2 and 2.13)."""
_IN_DOCUMENTS = ("[Content_Types].xml", "mimetype", "META-INF/", "AndroidManifest.xml")
"""How office documents, e-books and Java's archives begin: zips that hold no evidence."""
FIRST_NAMES = 64
"""So many names tell what a zip is."""


class WrongBytes(DamagedError):
    """One member is damaged. The others may be whole."""


@dataclass(frozen=True, slots=True)
class ZipMember:
    """One entry of the list at a zip's end: its name as written, what it is, and where its bytes are."""

    name: str
    kind: str
    size: int
    packed: int
    checksum: int
    at: int
    method: int
    encrypted: bool

    @property
    def unreadable(self) -> str:
        """Why its bytes cannot be had, or nothing."""
        if self.encrypted:
            return "encrypted, which nobody here opens"
        if self.method not in (_STORED, _DEFLATED):
            return f"packed with {_METHODS.get(self.method, f'method {self.method}')}, which is not opened"
        return ""


class ZipReader:
    """The members of a zip, one by one, and the bytes of each."""

    def __init__(self, stream: BinaryIO, *, file: str, budget: Budget) -> None:
        self._stream = stream
        self._file = file
        self._budget = budget
        self._start = stream.tell()
        self._size = stream.seek(0, io.SEEK_END) - self._start
        self._taken: list[tuple[int, int]] = []
        """Where the bytes of members lie that were read, sorted."""

    def __iter__(self) -> Iterator[ZipMember]:
        """As listed. Raises DamagedError where there is no list, or no list any more."""
        at, size = self._list()
        end = at + size
        while at + _LISTED.size <= end:
            raw = self._read(at, _LISTED.size)
            if not raw.startswith(_LISTED_MAGIC) or len(raw) < _LISTED.size:
                raise self._damaged(f"its list of files is damaged at byte {at}")
            fields = _LISTED.unpack(raw)
            name_size, extra_size, comment_size = fields[10:13]
            rest = self._read(at + _LISTED.size, name_size + extra_size)
            yield _member(fields, rest[:name_size], rest[name_size:])
            at += _LISTED.size + name_size + extra_size + comment_size

    def content(self, member: ZipMember, most: int) -> bytes:
        """A member's bytes, up to `most`. Raises WrongBytes where they are damaged, and DamagedError where they are
        too many for this archive."""
        local = self._read(member.at, _LOCAL.size)
        if not local.startswith(ZIP) or len(local) < _LOCAL.size:
            raise WrongBytes(f"it is not where the list of files says: byte {member.at}", file=self._file)
        name_size, extra_size = _LOCAL.unpack(local)[9:11]
        at = member.at + _LOCAL.size + name_size + extra_size
        self._take(member.at, at + member.packed)
        data = self._inflated(at, member, most) if member.method == _DEFLATED else self._stored(at, member, most)
        if len(data) <= most and zlib.crc32(data) != member.checksum:
            raise WrongBytes("its checksum is wrong", file=self._file)
        return data

    def _take(self, begin: int, end: int) -> None:
        """Note where a member's bytes lie. Raises WrongBytes where they are another's as well."""
        index = bisect_left(self._taken, (begin, end))
        near = self._taken[max(0, index - 1) : index + 1]
        if any(begin < other_end and other_begin < end for other_begin, other_end in near):
            raise WrongBytes(f"its bytes are another member's as well: byte {begin}", file=self._file)
        self._taken.insert(index, (begin, end))

    def _stored(self, at: int, member: ZipMember, most: int) -> bytes:
        size = min(member.packed, most + 1)
        self._budget.spend(min(size, self._size))
        return self._read(at, size)

    def _inflated(self, at: int, member: ZipMember, most: int) -> bytes:
        machine = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
        made = io.BytesIO()
        left = member.packed
        while left > 0 and not machine.eof and made.tell() <= most:
            packed = self._read(at, min(left, _PIECE))
            if not packed:
                break
            at += len(packed)
            left -= len(packed)
            while packed and made.tell() <= most:
                try:
                    part = machine.decompress(packed, _PIECE)
                except zlib.error as error:
                    raise WrongBytes(f"the compressed data is damaged ({error})", file=self._file) from None
                self._budget.spend(len(part))
                made.write(part)
                packed = machine.unconsumed_tail
        return made.getvalue()

    def _list(self) -> tuple[int, int]:
        """Where the list of members is, and its size."""
        tail = min(self._size, _END.size + _LONGEST_COMMENT)
        data = self._read(self._size - tail, tail)
        found = _end_of_list(data)
        if found < 0:
            raise self._damaged("it is cut off: the list of files at its end is missing")
        fields = _END.unpack_from(data, found)
        size, at = fields[5:7]
        end = self._size - tail + found
        if at == _IN_64_BITS or size == _IN_64_BITS or fields[4] == 0xFFFF:
            size, at = self._list_of_a_large_one(end) or (size, at)
        if at + size > end:
            raise self._damaged("its list of files lies outside of it")
        return at, size

    def _list_of_a_large_one(self, end: int) -> tuple[int, int] | None:
        place = self._read(end - _END64_PLACE.size, _END64_PLACE.size) if end >= _END64_PLACE.size else b""
        if not place.startswith(_END64_PLACE_MAGIC):
            return None
        raw = self._read(_END64_PLACE.unpack(place)[2], _END64.size)
        if len(raw) < _END64.size or not raw.startswith(_END64_MAGIC):
            raise self._damaged("the end of its list of files is damaged")
        fields = _END64.unpack(raw)
        return fields[8], fields[9]

    def _read(self, at: int, size: int) -> bytes:
        if not 0 <= at <= self._size:
            return b""
        self._stream.seek(self._start + at)
        return self._stream.read(size)

    def _damaged(self, why: str) -> DamagedError:
        return DamagedError(why, file=self._file)


def _end_of_list(data: bytes) -> int:
    """Where the last record begins: the one whose comment ends where the file does, as a comment may hold anything;
    -1 where there is none."""
    last = data.rfind(_END_MAGIC, 0, max(0, len(data) - _END.size + len(_END_MAGIC)))
    at = last
    while at >= 0:
        if at + _END.size + _END.unpack_from(data, at)[7] == len(data):
            return at
        at = data.rfind(_END_MAGIC, 0, at)
    return last


def _member(fields: tuple[int, ...], raw_name: bytes, extra: bytes) -> ZipMember:
    _, made_by, _, flags, method, _, _, checksum, packed, size, *_, attributes, at = fields
    size, packed, at = _in_64_bits(extra, size, packed, at)
    name = raw_name[:SHOWN_NAME].decode("utf-8" if flags & _IN_UTF8 else "cp437", "replace").replace("\\", "/")
    kind = "directory" if name.endswith("/") else "file"
    mode = attributes >> 16 if made_by >> 8 == _MADE_ON_UNIX else 0
    if stat.S_ISLNK(mode):
        kind = "symbolic link"
    elif stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        kind = "device, pipe or socket"
    return ZipMember(name, kind, size, packed, checksum, at, method, bool(flags & _ENCRYPTED))


def _in_64_bits(extra: bytes, size: int, packed: int, at: int) -> tuple[int, int, int]:
    """The numbers that did not fit, from the extra field that holds them, in this order."""
    values = [size, packed, at]
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        if kind == _EXTRA_64:
            numbers = [each for (each,) in struct.iter_unpack("<Q", extra[4 : 4 + length // 8 * 8])]
            for i, value in enumerate(values):
                if value == _IN_64_BITS and numbers:
                    values[i] = numbers.pop(0)
        extra = extra[4 + length :]
    return values[0], values[1], values[2]


def program_of(names: Sequence[str]) -> str:
    """What a zip is that holds no evidence, by its first names: a checkpoint, a document, a program; else nothing."""
    folder, _, first = names[0].rpartition("/") if names else ("", "", "")
    if first == "data.pkl" and any(f"{folder}/{name}" in names for name in _IN_CHECKPOINTS):
        return "a checkpoint of PyTorch"
    return "a document or a program" if any(name.startswith(_IN_DOCUMENTS) for name in names) else ""
