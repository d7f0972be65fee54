"""What the tasks do, on whatever machine they run: list files, look at their beginnings, read and summarise them.

Plain functions of plain values: Ray sends them and their results, and they can be called without it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from hangscope.__about__ import __version__
from hangscope.cluster.packed_columns import pack_dump
from hangscope.errors import HangscopeError
from hangscope.model import Gap
from hangscope.reader import archives, find_files
from hangscope.reader.dumps import dump_file
from hangscope.reader.find_files import Found
from hangscope.reader.raw_evidence import Evidence
from hangscope.reader.read_files import read_items
from hangscope.reader.recognise_file import is_about_others
from hangscope.safeio import limits
from hangscope.safeio.evidence_names import is_read
from hangscope.safeio.safe_files import open_file
from hangscope.sources.net_counters import read_sysfs as sysfs


@dataclass
class Far(Found):
    """A file that some machine can open: `where` says which, `address` is its path there or its URL."""

    where: str = ""
    """The node that has it; empty where every node sees it."""
    address: str = ""
    form: str = ""
    """As `dumps.recognise` says."""

    def head(self, size: int) -> bytes:
        # Once it was looked at, its start will do: what is asked later is whether it is an archive or our own.
        known = self.start if self.data is None else self.data
        if known is not None:
            return known[:size]
        with self.open() as stream:
            return stream.read(size)

    def open(self) -> BinaryIO:
        if self.data is not None:
            return io.BytesIO(self.data)
        if "://" in self.address:
            stream: BinaryIO = import_module("fsspec").open(self.address, "rb").open()
            return stream
        return open_file(Path(self.address))


@dataclass
class Listed:
    """What lies under one place; `problem` and `hint` say why there is nothing."""

    items: list[Far] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    problem: str = ""
    hint: str | None = None
    version: str = __version__


def list_files(path: str, where: str) -> Listed:
    """All files below a path on the machine that runs this, or below a URL."""
    listed = Listed()
    shown = f"{where}:" if where else ""
    try:
        found = _in_store(path) if "://" in path else find_files.find([path], listed.gaps)
    except HangscopeError as error:
        return Listed(problem=f"{shown}{error}", hint=error.hint)
    for item in found:
        address = str(item.path.absolute()) if item.path is not None else item.file
        listed.items.append(Far(f"{shown}{item.file}", item.parts, item.size, where=where, address=address))
    return listed


def _in_store(url: str) -> list[Found]:
    try:
        store, root = import_module("fsspec.core").url_to_fs(url)
    except (
        ImportError,
        ValueError,
    ) as error:  # fsspec or the store's own package is missing; nobody knows the protocol
        hint = "pip install 'hangscope[objectstore]' and the package that fsspec names for this store"
        raise HangscopeError(f"{url}: {error}", hint=f"{hint}, on the cluster's nodes") from None
    try:
        entries: dict[str, dict[str, Any]] = store.find(root, detail=True)
    except Exception as error:  # every store has its own errors
        raise HangscopeError(f"{url}: {type(error).__name__}: {error}") from None
    above = root.rstrip("/").rpartition("/")[0]
    found = []
    for path, facts in sorted(entries.items()):
        parts = tuple(part for part in path[len(above) :].split("/") if part)
        if is_read(parts[-1]) and facts.get("type", "file") == "file":
            found.append(Found(store.unstrip_protocol(path), parts, int(facts.get("size") or 0)))
    if not found:
        raise HangscopeError(f"{url}: nothing is there", hint="check the URL, and whether its store can be listed")
    return found


def look_at(items: Sequence[Far]) -> list[Far]:
    """The same with their first bytes; of small files that are about others, or parts of one sample, with all."""
    for item in items:
        try:
            head = item.head(limits.HEAD_BYTES)
            item.start = head[: limits.START_BYTES]
            item.form = dump_file.recognise(head)
            if _is_read_where_all_is_joined(item, head):
                item.data = item.read()
        except OSError:
            item.start = b""  # reading it will say why
    return list(items)


def _is_read_where_all_is_joined(item: Far, head: bytes) -> bool:
    if archives.recognise(head[: limits.START_BYTES]):
        return bool(item.where) and item.size <= limits.SHIPPED_ARCHIVE_BYTES
    if is_about_others(head):
        return item.size <= limits.JSON_BYTES
    return item.size <= limits.HEAD_BYTES and sysfs.place_of(item.parts) is not None  # of a tree of tiny files


def read(items: Sequence[tuple[int, Far]], keep: int | None) -> list[tuple[int, Evidence]]:
    """What each file says, with its number. Of a dump: columns, of a log: what was recognised in it."""
    found = []
    for number, item in items:
        item.start = None  # the whole file is at hand here
        evidence = Evidence()
        read_items([item], keep, evidence)
        for dump in evidence.dumps:
            pack_dump(dump)
        found.append((number, evidence))
    return found
