"""Evidence in a directory that this machine sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hangscope.errors import NotFoundError
from hangscope.incident.collect.fetch_sources import Deadline, Entry, Listing, Sink, Unreachable
from hangscope.safeio import limits
from hangscope.safeio.evidence_names import bounded, untaken
from hangscope.safeio.held import status_of
from hangscope.safeio.safe_files import Refused, head_of, open_file
from hangscope.safeio.walk import survey


class Directory:
    """A folder, or a single file."""

    is_node = False

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise NotFoundError(f"{path}: no such file or directory", hint="on a cluster, is it mounted here?")
        self.path = path
        self.name = path.resolve().name or "root"

    def listing(self, deadline: Deadline) -> Listing:
        entries: list[Entry] = []
        notes: list[tuple[str, str]] = []
        files = [(self.path.name, str(self.path))]
        if self.path.is_dir():
            seen = survey(self.path)
            files = list(seen.files)
            notes = list(seen.skipped)
        found, left = bounded(files, lambda one: one[0], lambda one: head_of(one[1], limits.HEAD_BYTES))
        if left:
            notes.append(untaken(left, len(files)))
        for name, path in found:
            deadline.check()
            try:
                state = status_of(path)
            except OSError as error:
                notes.append((name, f"cannot be read: {error.strerror}"))
                continue
            entries.append(Entry(name, state.st_size, int(state.st_mtime)))
        return Listing(tuple(entries), tuple(notes))

    def fetch(self, wanted: Sequence[Entry], sink: Sink, deadline: Deadline) -> None:
        failed: Unreachable | None = None
        for entry in wanted:
            deadline.check()
            path = self.path if self.path.is_file() else self.path / entry.path
            try:
                with open_file(path, follow=False) as stream:
                    sink(entry, stream, entry.mtime)
            except (FileNotFoundError, PermissionError, Refused):
                continue  # whoever asked sees that it did not come
            except Unreachable as error:
                failed = error  # one file that cannot be read does not keep the others
        if failed is not None:
            raise failed

    def stop(self) -> None:
        """A local copy ends by itself."""
