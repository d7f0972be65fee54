"""One finding of the doctor."""

from __future__ import annotations

from dataclasses import dataclass

PROBLEM = "problem"
"""The job dies of it, or a hang leaves no dump."""
WARNING = "warning"
"""A hang leaves less than it could, or it costs too much."""
NOTE = "note"
OK = "ok"

SEVERITIES = (PROBLEM, WARNING, NOTE, OK)


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """`what` is so, `why` it matters or what it costs, and the `cure`; both may be empty for what is in order."""

    id: str
    severity: str
    what: str
    why: str = ""
    cure: str = ""
    variable: str | None = None
    value: str | None = None
