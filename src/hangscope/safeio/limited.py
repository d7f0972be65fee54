"""The first bytes of a file as a file of their own: what comes after them is not read."""

from __future__ import annotations

import io
from typing import IO, BinaryIO, cast


class _Limited(io.RawIOBase):
    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream = stream
        self._size = size
        self._at = 0
        stream.seek(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        self._stream.seek(self._at)
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._stream.read(min(len(buffer), max(0, self._size - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def limited(stream: IO[bytes], size: int) -> BinaryIO:
    """`stream` up to its byte `size`. Closing it closes the stream."""
    return cast(BinaryIO, io.BufferedReader(_Limited(stream, size)))
