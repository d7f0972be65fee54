"""The function of the user's own code that a verdict points at."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

from hangscope.diagnosis.evidence.code_lines import user_frame
from hangscope.diagnosis.evidence.training_thread import Stacks
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Frame, Job

OF_CALLS = frozenset(("mismatch",))
"""Kinds that are about a call, and not about where a rank is."""


def culprit_frame(verdict: Diagnosis, job: Job) -> Frame | None:
    """Where in the user's code the culprit is, as the headline says it; else by its stack, its exception, or where the
    others called what it did not.

    Of several culprits the function that most of them are in.
    """
    called = user_frame(verdict.operation.frames) if verdict.operation is not None else None
    if called is not None and str(verdict.kind) in OF_CALLS:
        return called  # what was skipped, added or called otherwise: where the odd rank is now is the next call
    stacks = Stacks(job)
    found = [c.where.frame for c in verdict.culprits if c.where is not None]
    found = found or [frame for c in verdict.culprits if (frame := _of_rank(job, stacks, c.rank)) is not None]
    if not found and called is not None:
        found = [called]
    if not found:
        return None
    counts = Counter((frame.name, frame.filename) for frame in found)
    return min(found, key=lambda frame: (-counts[frame.name, frame.filename], frame.name, frame.filename))


def module_name(filename: str) -> str:
    """A file's own name without its path: where the code lies differs from image to image."""
    return PurePosixPath(filename.replace("\\", "/")).stem


def _of_rank(job: Job, stacks: Stacks, rank: int) -> Frame | None:
    where = stacks.where(rank)
    if where is not None:
        return where.frame
    for error in job.facts.errors:
        if error.rank != rank or error.consequence:
            continue
        if (frame := user_frame(error.frames[::-1])) is not None:
            return frame
    return None
