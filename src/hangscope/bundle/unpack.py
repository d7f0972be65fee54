"""Opening a bundle that somebody else made: verify it where it lies, or extract it into a new directory.

Nothing outside the new directory is written, no link or device is made, and nothing stays behind when it fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hangscope.errors import DamagedError, InputError, NotFoundError
from hangscope.incident import manifest as manifests
from hangscope.incident.layout import MANIFEST
from hangscope.incident.manifest import Manifest
from hangscope.safeio.gzip_stream import unpacked
from hangscope.safeio.limits import ARCHIVE, MANIFEST_BYTES, ArchiveLimits
from hangscope.safeio.member_names import Names, unsafe
from hangscope.safeio.safe_files import open_file
from hangscope.safeio.tar_stream import Content, Member, Readable, TarReader

Progress = Callable[[int, int, str], None]
"""`progress(done, total, what)`: bytes of the whole, and a word for what is being done."""

_TRUST = "do not open it with another tool; ask its sender for a new one"


@dataclass(frozen=True, slots=True)
class Opened:
    """A bundle that kept every promise: its top folder, its manifest and its size unpacked."""

    name: str
    manifest: Manifest
    files: int
    bytes: int


def verify(bundle: Path, *, limits: ArchiveLimits = ARCHIVE, progress: Progress | None = None) -> Opened:
    """Read the whole bundle and check every name, kind, size and checksum. Raises DamagedError; writes nothing."""
    return _pass(bundle, limits, progress, None)


def extract(bundle: Path, target: Path, *, limits: ArchiveLimits = ARCHIVE, progress: Progress | None = None) -> Opened:
    """Verify the bundle while extracting it to `target`, which must not exist yet. On any doubt nothing is left."""
    if target.exists() or target.is_symlink():
        raise InputError(f"{target}: already exists", hint="name a directory that does not exist yet")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        opened = _pass(bundle, limits, progress, temporary)
        os.rename(temporary / opened.name, target)
        return opened
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def members(
    bundle: Path, *, limits: ArchiveLimits = ARCHIVE, progress: Progress | None = None
) -> Iterator[tuple[Member, Content]]:
    """The plain files of a bundle, each name checked against every trick, in the order of the archive."""
    names = Names()
    file = str(bundle)
    with _opened(bundle, limits, progress) as stream:
        for member, content in TarReader(stream, file=file, limits=limits):
            if member.kind not in ("file", "directory"):
                raise _refused(file, member.name, f"a {member.kind}")
            folder = member.kind == "directory"
            reason = unsafe(member.name) or names.add(member.name, folder=folder)
            if reason is not None:
                raise _refused(file, member.name, reason)
            if not folder:
                yield member, content
        # To the very end, because the compression's own checksum is there, and nothing may hide behind the end mark.
        while rest := stream.read(1 << 20):
            if rest.strip(b"\0"):
                raise DamagedError("something follows after the end of the archive", file=file, hint=_TRUST)


def _pass(bundle: Path, limits: ArchiveLimits, progress: Progress | None, target: Path | None) -> Opened:
    file = str(bundle)
    top: str | None = None
    sums: dict[str, tuple[int, str]] = {}
    raw: bytes | None = None
    for member, content in members(bundle, limits=limits, progress=progress):
        folder, _, inside = member.name.partition("/")
        if top is None:
            top = folder
        if not inside or folder != top:
            raise _refused(file, member.name, "not inside the bundle's one folder")
        if inside == MANIFEST:
            if member.size > MANIFEST_BYTES:
                raise _refused(file, member.name, "too large for a manifest")
            raw = _all(content)
            if target is not None:
                with _new(target / member.name) as out:
                    out.write(raw)
            continue
        sums[inside] = (member.size, _checksum(content, target / member.name if target is not None else None))
    if top is None or raw is None:
        raise DamagedError(f"not a bundle: no {MANIFEST} in it", file=file, hint="diagnose reads other archives too")
    manifest = manifests.parse(raw, file=f"{bundle}: {top}/{MANIFEST}")
    problems = list(_differences(manifest, sums))
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise DamagedError("; ".join(problems[:3]) + more, file=file, hint=_TRUST)
    return Opened(top, manifest, len(sums), sum(size for size, _ in sums.values()))


def _checksum(content: Content, copy: Path | None) -> str:
    """Of what is in a member, which is written to `copy` where there is one."""
    digest = hashlib.sha256()
    with _new(copy) if copy is not None else contextlib.nullcontext() as out:
        while data := content.read():
            digest.update(data)
            if out is not None:
                out.write(data)
    return digest.hexdigest()


def _differences(manifest: Manifest, sums: dict[str, tuple[int, str]]) -> Iterator[str]:
    for name, entry in manifest.files.items():
        if name not in sums:
            yield f"{_shown(name)} is listed but not there"
        elif sums[name] != (entry.get("size"), entry.get("sha256")):
            yield f"{_shown(name)} is not the file that was listed (checksum)"
    for name in sums:
        if name not in manifest.files:
            yield f"{_shown(name)} is not listed"


def _new(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def _all(content: Content) -> bytes:
    parts = []
    while data := content.read():
        parts.append(data)
    return b"".join(parts)


def _refused(file: str, name: str, reason: str) -> DamagedError:
    return DamagedError(f"refused, because {_shown(name)} is {reason}", file=file, hint=_TRUST)


def _shown(name: str) -> str:
    """A stranger's name, fit for a terminal: escapes shown as text, and not endless."""
    text = json.dumps(name if len(name) <= 120 else name[:117] + "…")
    return text.encode("utf-8", "backslashreplace").decode()


class _Watched:
    """A stream of unpacked bytes that says how far the packed file was read."""

    def __init__(self, stream: Readable, packed: BinaryIO, progress: Progress | None, name: str) -> None:
        self._stream = stream
        self._packed = packed
        self._size = os.fstat(packed.fileno()).st_size
        self._progress = progress
        self._name = name
        self._unsaid = 0

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._unsaid += len(data)
        if self._progress is not None and self._unsaid > 1 << 20:
            self._unsaid = 0
            self._progress(self._packed.tell(), self._size, self._name)
        return data


@contextmanager
def _opened(bundle: Path, limits: ArchiveLimits, progress: Progress | None) -> Iterator[_Watched]:
    file = str(bundle)
    try:
        packed = open_file(bundle)
    except FileNotFoundError:
        raise NotFoundError(f"{file}: no such file") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    with packed:
        yield _Watched(unpacked(packed, file=file, limits=limits, hint=_TRUST), packed, progress, bundle.name)
