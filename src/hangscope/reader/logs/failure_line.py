"""A failure as one line says it, while nobody knows yet which rank wrote that line."""

from __future__ import annotations

from typing import NamedTuple

from hangscope.engine_roles import of_prefix
from hangscope.model import Failure, FailureKind, Source
from hangscope.model.process_ends import TEXT_LIMIT
from hangscope.model.times import Clock
from hangscope.reader.logs.log_lines import Line


class FailureLine(NamedTuple):
    """One failure. Its rank is set only where the line itself says it; otherwise its writer is looked up later."""

    failure: Failure
    line: Line
    at: Clock | int | None = None
    of_writer: bool = True
    """Whether the line speaks of its writer where it names nobody. A launcher speaks of others."""
    tasks: tuple[int, ...] = ()
    """A launcher's task numbers: ranks where one task is one rank."""
    hint: int | None = None
    """The rank that the line names in the default group, or in one that it does not name: a last resort."""


def make_failure(file: str, line: Line, kind: FailureKind, **values: object) -> Failure:
    """A failure in the words of one line."""
    text = str(values.pop("text", "") or line.text).strip()[:TEXT_LIMIT]
    rank = values.pop("rank", None)
    node = values.pop("node", None)
    values.setdefault("role", of_prefix(line.stream) if line.stream else None)
    # the values are those of the dataclass, which checks nothing either
    return Failure(kind, text, Source(file, f"line {line.number}"), rank, node, **values)  # type: ignore[arg-type]
