"""What there is to bundle: the files of an incident or of any folder, and what the incident says about itself."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from hangscope.errors import DamagedError, NotFoundError
from hangscope.incident import manifest as manifests
from hangscope.incident.layout import MANIFEST, REDACTION, own_files
from hangscope.incident.manifest import Manifest, Missing
from hangscope.incident.written_before import counted_bytes, node_folder, sizes_before
from hangscope.safeio import bounded_json, limits
from hangscope.safeio.evidence_names import Known, bounded, is_evidence, untaken
from hangscope.safeio.file_magic import is_gzip
from hangscope.safeio.safe_files import head_of, read_file
from hangscope.safeio.tar_stream import is_header
from hangscope.safeio.walk import Survey, survey


@dataclass(frozen=True, slots=True)
class EvidenceFiles:
    """Files with what is known about them as a whole."""

    files: Mapping[str, Path]
    """Name inside the bundle → path."""
    manifest: Manifest
    """What the incident says about itself, and what is missing; of a folder that is no incident little."""
    missing: tuple[Missing, ...]
    """What was found here and cannot be bundled: no plain files, or files of which nothing says that they are
    evidence."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """Name → how many of its bytes count, where not all do."""


def evidence_files(source: Path, without: set[Path], known: Known | None = None) -> EvidenceFiles:
    """What is at `source`, but for the files `without`. `known` is what a reader has seen of the same files."""
    if source.is_file():
        return EvidenceFiles({source.name: source}, Manifest(reason="collected"), ())
    if not source.is_dir():
        raise NotFoundError(f"{source}: no such file or directory")
    seen = survey(source)
    files, others = _files(source, seen, without, known)
    if not files:
        raise NotFoundError(f"{source}: nothing to bundle here", hint="name an incident, or a folder of dumps and logs")
    skipped = tuple(Missing(name, why) for name, why in seen.skipped)
    manifest, broken = _manifest(source)
    gaps = tuple(dict.fromkeys([*manifest.gaps, *broken, *skipped]))
    files, counted = _written_before(files)
    return EvidenceFiles(files, replace(manifest, gaps=(*gaps, *others)), (*broken, *skipped, *others), counted)


def _written_before(files: Mapping[str, Path]) -> tuple[dict[str, Path], dict[str, int]]:
    """The files without those, and what of them counts, that ranks wrote after their GPUs were asked what they run."""
    sizes: dict[str, dict[str, int]] = {}
    for name, path in files.items():
        folder = node_folder(name)
        if folder is not None:
            try:
                value = bounded_json.loads(read_file(path, limits.JSON_BYTES))
            except (OSError, ValueError):
                continue
            found = sizes_before(value) if isinstance(value, dict) else None
            if found is not None:
                sizes[folder] = found
    counted = {
        name: most
        for folder, known in sizes.items()
        for name in files
        if name.startswith(folder) and (most := counted_bytes(known, name[len(folder) :])) is not None
    }
    return {name: path for name, path in files.items() if counted.get(name) != 0}, counted


def _manifest(source: Path) -> tuple[Manifest, tuple[Missing, ...]]:
    """The incident's own, or a bare one; and what is wrong with it."""
    try:
        return manifests.read(source) or Manifest(reason="collected"), ()
    except DamagedError as error:
        return Manifest(reason="collected"), (Missing(MANIFEST, error.reason),)


def _files(
    source: Path, seen: Survey, without: set[Path], known: Known | None
) -> tuple[dict[str, Path], tuple[Missing, ...]]:
    """The files, and a gap for those of a large tree that nothing shows to be evidence. The manifest and the last
    redaction's summary are made anew."""
    left = {path.resolve() for path in without}
    alike = tuple(path.name for path in left)
    plain = not (source / MANIFEST).exists() and not (source / "nodes").is_dir()

    def wanted(name: str, path: str) -> bool:
        if name in (MANIFEST, REDACTION) or (plain and not is_evidence(name)):
            return False
        if not plain and not own_files(name):
            return False
        return not (name.endswith(alike) and Path(path).resolve() in left)

    found = [(name, path) for name, path in seen.files if wanted(name, path)]
    kept, others = bounded(
        found, lambda one: one[0], lambda one: head_of(one[1], limits.HEAD_BYTES), path=lambda one: one[1], known=known
    )
    gaps = (Missing(*untaken(others, others.total() + len(kept))),) if others else ()
    return {name: Path(path) for name, path in kept}, gaps


def holds_files(source: IO[bytes]) -> bool:
    """Whether a file is a tar, compressed or not."""
    head = source.read(512)
    source.seek(0)
    if is_gzip(head):
        try:
            with gzip.GzipFile(fileobj=source, mode="rb") as stream:
                head = stream.read(512)
        except (OSError, zlib.error, EOFError):
            head = b""
        source.seek(0)
    return is_header(head)
