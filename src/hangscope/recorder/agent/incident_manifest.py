"""incident.json of an incident that this run writes: made at its end, and brought up to date when files come later.

The directory may be shared: somebody may break the manifest between two of our writes, which costs the update alone.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from hangscope.errors import HangscopeError
from hangscope.incident import manifest
from hangscope.incident.layout import MANIFEST, as_bytes, as_json, file_entry
from hangscope.incident.manifest import Manifest
from hangscope.safeio.safe_files import write_below

LIST_S = 20.0
"""For the checksums of what all nodes saved."""


def write(incident: Path, given: Manifest) -> None:
    """List what is in the incident now. Raises OSError where that cannot be written."""
    _put(incident, manifest.build(incident, given, seconds=LIST_S))


def refresh(incident: Path) -> None:
    """List all files again: the output has grown since."""
    with contextlib.suppress(OSError, HangscopeError):
        listed = manifest.read(incident)
        if listed is not None:
            write(incident, listed)


def add_files(incident: Path, *names: str) -> None:
    """Name files of ours in the manifest, where there is one."""
    with contextlib.suppress(OSError, HangscopeError):
        listed = manifest.read(incident)
        if listed is not None:
            files = {name: file_entry(incident / name) for name in names if (incident / name).exists()}
            _put(incident, replace(listed, files={**listed.files, **files}))


def note_recovery(incident: Path, seconds: float) -> None:
    """The stall ended by itself after so long."""
    with contextlib.suppress(OSError, HangscopeError):
        listed = manifest.read(incident)
        if listed is not None:
            recovered = {"at": manifest.now(), "after_s": round(seconds, 1)}
            _put(incident, replace(listed, extra={**listed.extra, "recovered": recovered}))


def _put(incident: Path, given: Manifest) -> None:
    write_below(incident, MANIFEST, as_bytes(as_json(given.to_json())), wary=True)
