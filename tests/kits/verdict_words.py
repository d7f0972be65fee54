"""What a verdict says in its own words, and what must never be among them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hangscope import Diagnosis

OWN_WORDS = (
    "knot",
    "fate",
    "standing",
    "whom",
    "told",
    "goes_on",
    "tardiness",
    "custom(?![ _]all_?reduce)",  # vLLM calls one so
    "departure",
    "joining",
    "settle",
)
"""Words of our own where the field has one, with their endings."""
OWN_WORD = re.compile(rf"(?<![a-z])(?:{'|'.join(OWN_WORDS)})(?:s|d|ed|ing)?(?![a-z])", re.I)

NEVER = (
    r"#None",
    r"\bNone\b",
    r"on no rank",
    r"over 1 groups",
    r"\b1 (?:groups|ranks|members|processes|peers|others)\b",
    r"\ball 1\b",
    r"\bof 0 ranks\b",
    r"\b0 ranks\b",
    r"ended with cut off",
    r"\branks (\d+)(?= (?!and)[a-z])",  # "ranks 3 never launched"
    r"\brank \d+, \d+",  # "rank 3, 4 never launched"
    r"[Rr]anks? ([\d, -]+) ran \S+ where ranks? \1 ran",
    r"(?:^|[.:;,] )[Rr]anks? +(?:has|have|was|were|is|are|never|ran)\b",  # a list that came out empty
    r"\bno rank are\b",
)
"""Slips that a reader must not see: unset values, wrong plurals, empty lists."""
_SLIPS = tuple(re.compile(pattern) for pattern in NEVER)


def sentences(verdict: Diagnosis) -> Iterator[str]:
    """Everything that the diagnosis worded itself: no quoted log line, no path, no frame."""
    yield verdict.headline
    yield verdict.summary
    yield verdict.confidence_rule
    yield from (finding.text for finding in verdict.why)
    yield from (ruled.why for ruled in verdict.ruled_out)
    yield from verdict.next_steps
    yield from (culprit.why for culprit in verdict.culprits)
    yield from (getattr(other, "why", "") for other in getattr(verdict, "also_possible", ()))


def slips(verdict: Diagnosis) -> list[str]:
    """Sentences with something in them that must never reach a reader."""
    return [text for text in sentences(verdict) if any(slip.search(text) for slip in _SLIPS)]
