"""Archives among the evidence: their files one by one, and what is refused or cut off as gaps."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO

from hangscope.model import Gap, Source
from hangscope.safeio import open_archive
from hangscope.safeio.limits import ARCHIVE, ArchiveLimits
from hangscope.safeio.open_archive import recognise

__all__ = ["members", "recognise"]


def members(
    data: bytes | BinaryIO, *, file: str, limits: ArchiveLimits = ARCHIVE, gaps: list[Gap] | None = None
) -> Iterator[tuple[str, bytes]]:
    """The plain files in an archive, each with its name in it; a single gzip-compressed file has the name "".

    What is refused or cut off is added to `gaps`. Raises DamagedError where the archive itself cannot be read on: what
    was yielded before that stands.
    """
    refused: list[Gap] = [] if gaps is None else gaps
    most = len(refused) + limits.refusals

    def refuse(name: str, why: str) -> None:
        if len(refused) < most:
            shown = f"{file}!{name}" if name else file
            refused.append(Gap(f"file {shown}", why, source=Source(shown)))

    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    yield from open_archive.members(stream, file=file, refuse=refuse, limits=limits)
