"""What `hangscope.diagnose` gives to Python: the verdict, with the ways to show it that people try in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hangscope.diagnosis import diagnose as find_cause
from hangscope.diagnosis import verdict
from hangscope.model import Job
from hangscope.reader.load import load
from hangscope.report.export import to_dict
from hangscope.report.page.render_page import render_page
from hangscope.report.terminal import render_text


@dataclass(frozen=True, repr=False)
class Diagnosis(verdict.Diagnosis):
    """The verdict. `str()` is what `hangscope diagnose` prints, `to_dict()` what it gives with --json."""

    job: Job = field(kw_only=True, compare=False)

    def __str__(self) -> str:
        return render_text(self)

    def __repr__(self) -> str:
        ranks = [culprit.rank for culprit in self.culprits]
        return f"<Diagnosis {self.outcome}: {self.kind} {ranks}, {self.confidence} confidence: {self.headline}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain JSON values, as in docs/diagnose.md."""
        return to_dict(self)

    def to_html(self) -> str:
        """The page of `hangscope report -o FILE.html`."""
        return render_page(self, self.job)


def diagnose(job: Job | str | Path | Sequence[str | Path], *, job_name: str | None = None) -> Diagnosis:
    """Say what hung the job, who caused it and how sure that is. A path is loaded first; `job_name` says which job is
    meant where evidence of several lies there."""
    if not isinstance(job, Job):
        job = load(job, job=job_name)
    found = find_cause(job)
    return Diagnosis(**{one.name: getattr(found, one.name) for one in fields(verdict.Diagnosis)}, job=job)
