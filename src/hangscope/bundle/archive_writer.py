"""Writing a bundle's .tar.gz as a stream, with a checksum of every file."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Mapping
from typing import IO, Any

from hangscope.bundle.parallel_gzip import GzipWriter
from hangscope.incident.layout import MANIFEST
from hangscope.safeio.member_names import Names, fitting

_CHUNK = 1 << 20
_BLOCK = 512


class ArchiveWriter:
    """One folder `top` in a tar stream. `files` lists what is in it, with size and SHA-256.

    Owners and modes are not kept: they say nothing about a hang, and an owner is a user's name.
    """

    def __init__(self, packer: GzipWriter, top: str) -> None:
        self._packer = packer
        self._top = top
        self._names = Names()
        self._names.add(MANIFEST)
        self.files: dict[str, Mapping[str, Any]] = {}

    def add(
        self, name: str, source: IO[bytes], size: int, mtime: float, progress: Callable[[int], None] | None = None
    ) -> str:
        """Add `size` bytes of `source`. Returns the name it got, which differs where the wanted one cannot be used."""
        name = fitting(name, self._names)
        self._header(name, size, mtime)
        digest = hashlib.sha256()
        left = size
        while left:
            # A log that still grows is taken as long as it was; one that was cut meanwhile is filled up.
            chunk = source.read(min(_CHUNK, left)) or bytes(min(_CHUNK, left))
            left -= len(chunk)
            digest.update(chunk)
            self._packer.write(chunk)
            if progress is not None:
                progress(len(chunk))
        self._packer.write(bytes(-size % _BLOCK))
        self.files[name] = {"size": size, "sha256": digest.hexdigest()}
        return name

    def add_bytes(self, name: str, data: bytes, mtime: float) -> str:
        return self.add(name, io.BytesIO(data), len(data), mtime)

    def finish(self, manifest: bytes, mtime: float) -> None:
        """The manifest comes last, because it lists the rest; then the end mark."""
        self._header(MANIFEST, len(manifest), mtime)
        self._packer.write(manifest + bytes(-len(manifest) % _BLOCK) + bytes(2 * _BLOCK))

    def _header(self, name: str, size: int, mtime: float) -> None:
        info = tarfile.TarInfo(f"{self._top}/{name}")
        info.size = size
        info.mtime = int(mtime)
        info.mode = 0o644
        self._packer.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
