"""The first look at all files: archives are replaced by what they hold, and manifests are parsed. Each archive is
decompressed once.

Which attempt and which incident is the newest is known only when all names are. Until then members wait in memory; of
those that do not fit, the oldest are read at once, in vain where they turn out to be of an older attempt.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hangscope.errors import DamagedError, contained
from hangscope.incident.layout import MANIFEST
from hangscope.model import Gap, Source
from hangscope.reader import archives
from hangscope.reader.find_files import Found
from hangscope.reader.logs.log_lines import LineBudget
from hangscope.reader.raw_evidence import Evidence
from hangscope.reader.reading_progress import Meter
from hangscope.reader.recognise_file import INCIDENT, parse_about_others, read_file
from hangscope.safeio import bounded_json, limits
from hangscope.safeio.evidence_names import is_read
from hangscope.safeio.limits import ArchiveLimits
from hangscope.sources.net_counters import read_sysfs as sysfs


@dataclass
class Member(Found):
    """A file in an archive. Its bytes are at hand, or what they say is known already."""

    said: Mapping[str, Any] | None = None
    """What it says, where it was read as it came."""

    @property
    def is_whole(self) -> bool:
        return False

    def read_now(self) -> None:
        part = Evidence()
        read_file(self, part)
        self.said = part.said()
        self.data = None


class _Held:
    """Members of all archives: how many there may be, and those whose bytes wait in memory, bounded all together."""

    def __init__(self) -> None:
        self._members: deque[Member] = deque()
        self._bytes = 0
        self._may_come = limits.ARCHIVE_FREE_MEMBERS
        self.lines = LineBudget(limits.ARCHIVE_FREE_LINES)

    def open_archive(self, size: int) -> ArchiveLimits:
        """What an archive of so many bytes may hold, after those before it."""
        self._may_come += size // limits.ARCHIVE_MEMBER_BYTES
        self.lines.left += size * limits.ARCHIVE_LINES // limits.MIB
        return replace(limits.ARCHIVE, members=min(limits.ARCHIVE.members, self._may_come))

    def count(self) -> None:
        self._may_come = max(0, self._may_come - 1)

    def add(self, member: Member) -> None:
        self._members.append(member)
        self._bytes += member.size
        while self._bytes > limits.ARCHIVE_HELD_BYTES:
            oldest = self._members.popleft()
            self._bytes -= oldest.size
            oldest.read_now()


def look_at_files(listed: list[Found], gaps: list[Gap], meter: Meter) -> list[Found]:
    """The files, with archives replaced by their members."""
    held = _Held()
    found: list[Found] = []
    for item in listed:
        try:
            is_archive = archives.recognise(item.head(limits.START_BYTES))
            if not is_archive:
                parse_about_others(item)
        except OSError as error:  # gone since it was listed, or behind a file system that is
            gaps.append(Gap(f"file {item.file}", f"cannot be read: {error}", source=Source(item.file)))
            meter.leave_out(item)
            continue
        except Exception as error:
            gaps.append(Gap(f"file {item.file}", f"not read: {contained(error)}", source=Source(item.file)))
            meter.leave_out(item)
            continue
        if is_archive:
            found.extend(_members(item, gaps, held, meter))
            meter.finish(item)
        else:
            item.wait()
            found.append(item)
    return found


def _members(archive: Found, gaps: list[Gap], held: _Held, meter: Meter) -> Iterator[Member]:
    sums: dict[str, str] = {}
    manifests: list[tuple[str, bytes]] = []
    for name, data in _opened(archive, gaps, held.open_archive(archive.size), meter):
        held.count()
        sums[name] = hashlib.sha256(data).hexdigest()
        if name.rpartition("/")[2] == MANIFEST and f'"{INCIDENT}'.encode() in data[: limits.HEAD_BYTES]:
            manifests.append((name, data))
        member = _member(archive, name, data, held.lines)
        if is_read(member.name):
            if not _is_read_last(member):
                held.add(member)
            yield member
    for name, data in manifests:
        gaps.extend(_differences(archive, name, data, sums))


def _member(archive: Found, name: str, data: bytes, lines: LineBudget) -> Member:
    inside = tuple(part for part in name.split("/") if part)
    parts = (*archive.parts, *inside) if inside else (*archive.parts[:-1], archive.name.removesuffix(".gz"))
    return Member(f"{archive.file}!{name}" if name else archive.file, parts, len(data), data=data, line_budget=lines)


def _is_read_last(member: Member) -> bool:
    """Manifests and nodes' files say which of the others count, and the files of a copied /sys tree are one sample:
    they are read when all are there."""
    if parse_about_others(member):
        return True
    return member.size <= sysfs.MAX_BYTES and sysfs.place_of(member.parts) is not None


def _opened(archive: Found, gaps: list[Gap], may_hold: ArchiveLimits, meter: Meter) -> Iterator[tuple[str, bytes]]:
    try:
        with archive.open() as stream:
            for name, data in archives.members(stream, file=archive.file, gaps=gaps, limits=may_hold):
                meter.show(archive, stream.tell())
                yield name, data
    except DamagedError as error:
        gaps.append(Gap(f"archive {archive.file}", error.reason, source=Source(archive.file)))
    except OSError as error:
        gaps.append(Gap(f"archive {archive.file}", f"cannot be read: {error}", source=Source(archive.file)))
    except Exception as error:
        gaps.append(
            Gap(f"archive {archive.file}", f"read only in part: {contained(error)}", source=Source(archive.file))
        )


def _differences(archive: Found, name: str, raw: bytes, sums: Mapping[str, str]) -> Iterator[Gap]:
    """What in a bundle is not what its manifest lists: changed on the way, or missing."""
    try:
        value = bounded_json.loads(raw)
    except ValueError:
        return
    folder = name.removesuffix(MANIFEST)
    entries = value.get("files") if isinstance(value, Mapping) else None
    listed = list(entries.items())[: limits.MANIFEST_FILES] if isinstance(entries, Mapping) else []
    for file, entry in listed:
        checksum = entry.get("sha256") if isinstance(entry, Mapping) else None
        found = sums.get(f"{folder}{file}")
        if isinstance(checksum, str) and found != checksum:
            why = "listed in its manifest and not there" if found is None else "not the file that its manifest lists"
            yield Gap(f"{file[:200]} in {archive.file}", f"{why} (checksum)", source=Source(archive.file, file[:200]))
