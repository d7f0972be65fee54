"""Decompressing a gzip file that a stranger made: a piece at a time, and to no more than a file of its size may hold.

The only decompression of this project that is bounded by `limits.ARCHIVE`: archives that are diagnosed and bundles that
are opened go through it. What was decompressed before a place that is damaged, or cut off, is given first.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from hangscope.errors import DamagedError
from hangscope.safeio.file_magic import GZIP, is_gzip
from hangscope.safeio.limits import ARCHIVE, GZIP_STREAM_BYTES, ArchiveLimits
from hangscope.safeio.tar_stream import Readable

_PIECE = 1 << 16
_BUFFER = 1 << 18
_MOST_AT_ONCE = 1 << 20
"""Of zeros, a piece would become sixty megabytes before anybody counts them."""
_GZIP_FORMAT = 31
"""zlib's word for gzip with its header and checksum."""


class Budget:
    """What a packed file of so many bytes may still unpack to, all its layers together."""

    def __init__(self, packed_bytes: int, limits: ArchiveLimits, file: str, hint: str | None = None) -> None:
        self._left = limits.free_bytes + limits.ratio * packed_bytes
        self._file = file
        self._hint = hint or "if it is real, unpack it yourself and give hangscope the folder"

    def spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            why = "unpacks to far more than a real archive of its size would"
            raise DamagedError(why, file=self._file, hint=self._hint)


def unpacked(packed: BinaryIO, *, file: str, limits: ArchiveLimits = ARCHIVE, hint: str | None = None) -> Readable:
    """An open file's content: decompressed where it is gzip, else as it is. Damage is an error: for a file that has to
    be whole."""
    compressed = is_gzip(packed.read(len(GZIP)))
    packed.seek(0)
    if not compressed:
        return packed

    def refuse(reason: str) -> None:
        if not reason:
            raise DamagedError("ends in the middle", file=file, hint="the transfer broke off: copy it again")
        raise DamagedError(f"broken compression ({reason})", file=file)

    budget = Budget(os.fstat(packed.fileno()).st_size, limits, file, hint)
    return gunzip(packed, budget, refuse, padding=False)


Damaged = Callable[[str], None]
"""Is called where compressed data is wrong, with zlib's reason, or with none where the data is cut off."""


def gunzip(stream: Readable, budget: Budget, damaged: Damaged, *, padding: bool = True) -> io.BufferedReader:
    """A stream of the decompressed bytes. It ends where the data is cut off or wrong, once `damaged` was called, unless
    that raises. Without `padding`, what follows after the compressed data is wrong as well."""
    return io.BufferedReader(_Gunzip(stream, budget, damaged, padding=padding), _BUFFER)


class _Gunzip(io.RawIOBase):
    """Decompresses as it is read."""

    def __init__(self, stream: Readable, budget: Budget, damaged: Damaged, *, padding: bool) -> None:
        self._stream = stream
        self._budget = budget
        self._damaged = damaged
        self._padding = padding
        self._machine = zlib.decompressobj(wbits=_GZIP_FORMAT)
        self._waiting = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        room = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(room) and not self._ended:
            part = self._some(min(len(room) - filled, _MOST_AT_ONCE))
            self._budget.spend(len(part))
            room[filled : filled + len(part)] = part
            filled += len(part)
        return filled

    def _some(self, size: int) -> bytes:
        """Some decompressed bytes; none where the input had none, or has ended."""
        packed = self._machine.unconsumed_tail or self._waiting or self._stream.read(_PIECE)
        self._waiting = b""
        if not packed:
            self._end("")
            return b""
        try:
            part = self._machine.decompress(packed, size)
        except zlib.error as error:
            self._end(str(error))
            return b""
        if self._machine.eof:
            self._next()
        return part

    def _next(self) -> None:
        """Several gzip streams one after the other are one file; anything else after the end is padding."""
        rest = self._machine.unused_data or self._stream.read(_PIECE)
        if is_gzip(rest):
            self._budget.spend(GZIP_STREAM_BYTES)
            self._machine = zlib.decompressobj(wbits=_GZIP_FORMAT)
            self._waiting = rest
        elif self._padding or not rest.strip(b"\0"):
            self._ended = True
        else:
            self._end("something follows after its end")

    def _end(self, reason: str) -> None:
        self._ended = True
        self._damaged(reason)
