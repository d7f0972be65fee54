"""Blobs by their SHA-256: in a folder, or wherever fsspec reaches. What cannot be wrong about a blob is its content.

Each project has its own: whoever knows a checksum of another project's evidence gets nothing by it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from hangscope.errors import InputError, SettingsError
from hangscope.safeio.durable_file import durable_file
from hangscope.safeio.safe_files import open_file, remove_file

CHUNK = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


class BlobError(InputError):
    """A blob is not what its name says, or is not there."""


class BlobStore(Protocol):
    def put(self, project_id: int, sha256: str, data: Iterable[bytes], most: int) -> int: ...
    def read(self, project_id: int, sha256: str) -> Iterator[bytes]: ...
    def has(self, project_id: int, sha256: str) -> bool: ...
    def delete(self, project_id: int, sha256: str) -> None: ...


def open_store(place: str) -> BlobStore:
    """The store at a path or URL."""
    return BlobsByUrl(place) if "://" in place else BlobFolder(Path(place))


def is_sha256(text: object) -> bool:
    return isinstance(text, str) and _SHA256.fullmatch(text) is not None


def _key(project_id: int, sha256: str) -> str:
    if not is_sha256(sha256):
        raise BlobError("the name of a blob is its SHA-256 in hexadecimal")
    return f"{project_id}/{sha256[:2]}/{sha256}"


def _checked(sha256: str, data: Iterable[bytes], most: int) -> Iterator[bytes]:
    """The same bytes; raises at the end where they are not those of that name, and at once where they are too many."""
    digest = hashlib.sha256()
    size = 0
    for piece in data:
        size += len(piece)
        if size > most:
            raise BlobError(f"more than {most:,} bytes")
        digest.update(piece)
        yield piece
    if digest.hexdigest() != sha256:
        raise BlobError("the content does not have the checksum that it was sent under")


class BlobFolder:
    """A folder: `PROJECT/ab/abcd…`, synced to the disk before `put` returns."""

    def __init__(self, root: Path) -> None:
        self._root = root
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"{root}: {error.strerror}") from None

    def put(self, project_id: int, sha256: str, data: Iterable[bytes], most: int) -> int:
        """Keep the bytes under their name; returns how many there are."""
        size = 0
        with durable_file(self._root, _key(project_id, sha256)) as out:
            for piece in _checked(sha256, data, most):
                out.write(piece)
                size += len(piece)
        return size

    def read(self, project_id: int, sha256: str) -> Iterator[bytes]:
        try:
            with open_file(self._root / _key(project_id, sha256), follow=False) as stream:
                while piece := stream.read(CHUNK):
                    yield piece
        except FileNotFoundError:
            raise BlobError(f"blob {sha256[:12]} is not in {self._root}") from None

    def has(self, project_id: int, sha256: str) -> bool:
        try:
            open_file(self._root / _key(project_id, sha256), follow=False).close()
        except FileNotFoundError:
            return False
        return True

    def delete(self, project_id: int, sha256: str) -> None:
        try:
            remove_file(self._root / _key(project_id, sha256))
        except FileNotFoundError:
            pass


class BlobsByUrl:
    """An object store, through fsspec: s3://bucket/prefix and the like."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise SettingsError(
                f"{url}: needs fsspec", hint="pip install 'hangscope[objectstore]', and s3fs for s3://"
            ) from None
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise SettingsError(f"{url}: {error}") from None
        self._url = url

    def put(self, project_id: int, sha256: str, data: Iterable[bytes], most: int) -> int:
        """As `BlobFolder.put`. An object store shows an object whole or not at all; what is read is checked again."""
        place = f"{self._root}/{_key(project_id, sha256)}"
        pieces = b"".join(_checked(sha256, data, most))  # at most one chunk of a bundle
        self._files.makedirs(place.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(place, pieces)
        return len(pieces)

    def read(self, project_id: int, sha256: str) -> Iterator[bytes]:
        place = f"{self._root}/{_key(project_id, sha256)}"
        try:
            data: bytes = self._files.cat_file(place)
        except FileNotFoundError:
            raise BlobError(f"blob {sha256[:12]} is not in {self._url}") from None
        if hashlib.sha256(data).hexdigest() != sha256:
            raise BlobError(f"blob {sha256[:12]} in {self._url} is damaged")
        yield data

    def has(self, project_id: int, sha256: str) -> bool:
        return bool(self._files.exists(f"{self._root}/{_key(project_id, sha256)}"))

    def delete(self, project_id: int, sha256: str) -> None:
        place = f"{self._root}/{_key(project_id, sha256)}"
        try:
            self._files.rm_file(place)
        except FileNotFoundError:
            pass
