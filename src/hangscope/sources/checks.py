"""What a slice's `check` finds in this environment, for doctor to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Examined:
    """The settings that are examined, and the backends that the job may use: "nccl", "gloo" …"""

    environ: Mapping[str, str]
    backends: frozenset[str]


@dataclass(frozen=True, slots=True)
class Checked:
    """`what` is so; where it is not `well`, `why` it matters and the `cure`."""

    id: str
    well: bool
    what: str
    why: str = ""
    cure: str = ""
    variable: str | None = None
    value: str | None = None
