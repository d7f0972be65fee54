"""What verbs note about how the evidence was read, on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangscope.cli.output import note

if TYPE_CHECKING:
    from hangscope.model import Job

_MANY = 500_000
"""Entries from which on the Python reader takes long."""


def note_how_it_was_read(job: Job) -> None:
    """That old history was not kept, and that the C decoder would have been faster."""
    from hangscope.reader.dumps import decoder

    read = sum(dump.records for dumps in job.dumps.values() for dump in dumps)
    if read > len(job.ops):
        note(
            f"note: {read - len(job.ops):,} completed operations of huge ring buffers were not kept; --full keeps them"
        )
    if read > _MANY and not decoder.in_use():
        note("note: read without the C decoder, which is about twenty times faster: see `hangscope doctor`")
