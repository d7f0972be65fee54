"""Evidence in an object store, through fsspec: s3://, gs://, az://, … and whatever else it knows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from typing import Any

from hangscope.errors import CollectError
from hangscope.incident.collect.fetch_sources import Deadline, Entry, Listing, Sink, Unreachable

_TIMES = ("mtime", "LastModified", "last_modified", "updated", "timeModified", "created")
_CHECKSUMS = ("ETag", "etag", "md5Hash", "content_md5", "checksum")


class Store:
    """A prefix in a store. The credentials are those that its own tools use."""

    is_node = False

    def __init__(self, url: str) -> None:
        try:
            core = import_module("fsspec.core")  # an extra, loaded where it is used
        except ImportError:
            raise CollectError(f"{url}: fsspec is not installed", hint="pip install 'hangscope[objectstore]'") from None
        try:
            self._files, self._root = core.url_to_fs(url)
        except (ImportError, ValueError) as error:  # the store's own package is missing, or nobody knows the protocol
            raise CollectError(f"{url}: {error}", hint="pip install the package that fsspec names for it") from None
        self._url = url
        self.name = url.rstrip("/").rpartition("/")[2] or "store"

    def listing(self, deadline: Deadline) -> Listing:
        try:
            found: dict[str, dict[str, Any]] = self._files.find(self._root, detail=True)
        except Exception as error:  # every store has its own errors
            raise Unreachable(f"{type(error).__name__}: {error}") from None
        deadline.check()
        root = self._root.rstrip("/")
        entries = []
        for path, facts in sorted(found.items()):
            inside = path[len(root) :].lstrip("/") if path.startswith(root) else path
            entries.append(Entry(inside or path.rpartition("/")[2], facts.get("size"), _time(facts), _checksum(facts)))
        if not entries:
            raise Unreachable("nothing is there")
        return Listing(tuple(entries))

    def fetch(self, wanted: Sequence[Entry], sink: Sink, deadline: Deadline) -> None:
        root = self._root.rstrip("/")
        for entry in wanted:
            deadline.check()
            path = f"{root}/{entry.path}" if self._files.exists(f"{root}/{entry.path}") else root
            try:
                with self._files.open(path, "rb") as stream:
                    sink(entry, stream, entry.mtime)
            except OSError as error:
                raise Unreachable(f"{type(error).__name__}: {error}") from None

    def stop(self) -> None:
        """The store's own library cannot be interrupted; its threads end with the program."""


def _time(facts: dict[str, Any]) -> int | None:
    for key in _TIMES:
        value = facts.get(key)
        if isinstance(value, (int, float)):
            return int(value)
        if isinstance(value, datetime):
            return int(value.timestamp())
        if isinstance(value, str):
            try:
                return int(datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp())
            except ValueError:
                continue
    return None


def _checksum(facts: dict[str, Any]) -> str | None:
    return next((str(facts[key]).strip('"') for key in _CHECKSUMS if facts.get(key)), None)
