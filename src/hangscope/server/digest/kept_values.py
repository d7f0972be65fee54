"""What the server keeps of a diagnosis in columns: what the child wrote, as far as it can be that.

The child read a stranger's evidence. So each value is checked again here, cut and cleaned of what no database takes:
half surrogates, NUL, numbers that no column holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hangscope.server.intake import plain_values as plain
from hangscope.server.intake.entities import Entity, rank_number

MOST_ACCUSED = 64
MOST_EXPOSED = 50_000
MOST_PARTS = 12
_LONGEST_S = 365 * 86400.0
_EXPLANATION = 300


@dataclass(frozen=True, slots=True)
class Kept:
    """`accused` is (kind, name, role), `exposed` (entity, ranks)."""

    grouped: bool
    fingerprint: str
    explanation: Mapping[str, str]
    outcome: str
    kind: str
    confidence: str
    headline: str
    summary: str
    accused: tuple[tuple[str, str, str], ...]
    exposed: tuple[tuple[Entity, tuple[int, ...]], ...]
    world_size: int | None
    waited_s: float | None

    @classmethod
    def of(cls, value: object) -> Kept:
        """Raises ValueError where it is not what a child writes."""
        if not isinstance(value, dict) or not isinstance(value.get("fingerprint"), dict):
            raise ValueError("not what a digest keeps")
        found = value["fingerprint"]
        said = plain.table(found, "explanation")
        return cls(
            grouped=value.get("grouped") is True,
            fingerprint=plain.needed(found, "value", 40),
            explanation={
                plain.clean(str(name), 40): plain.clean(str(part), _EXPLANATION)
                for name, part in list(said.items())[:MOST_PARTS]
            },
            outcome=plain.text(value, "outcome", 20),
            kind=plain.text(value, "kind", 20),
            confidence=plain.text(value, "confidence", 10),
            headline=plain.text(value, "headline", 500),
            summary=plain.text(value, "summary", 2000),
            accused=tuple(_accused(value)),
            exposed=tuple(_exposed(value)),
            world_size=plain.whole(value, "world_size"),
            waited_s=_seconds(value.get("waited_s")),
        )

    def entities(self) -> dict[Entity, tuple[int, ...]]:
        return dict(self.exposed)


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < _LONGEST_S else None


def _accused(value: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for each in plain.items(value, "accused", MOST_ACCUSED):
        kind, name, role = _texts(each, (20, 300, 20))
        if kind and name:
            yield kind, name, role


def _exposed(value: Mapping[str, Any]) -> Iterator[tuple[Entity, tuple[int, ...]]]:
    for each in plain.items(value, "exposed", MOST_EXPOSED):
        kind, name, above_kind, above_name = _texts(each, (20, 300, 20, 300))
        ranks = each[4] if isinstance(each, list) and len(each) > 4 and isinstance(each[4], list) else []
        if kind and name:
            above = Entity(above_kind, above_name) if above_kind and above_name else None
            numbers = (rank_number(rank) for rank in ranks[: 1 << 16])
            yield Entity(kind, name, above), tuple(rank for rank in numbers if rank is not None)


def _texts(each: object, most: tuple[int, ...]) -> list[str]:
    given = each if isinstance(each, list) else []
    texts = [text if isinstance(text, str) else "" for text in given[: len(most)]]
    return [plain.clean(text, size) for text, size in zip([*texts, *[""] * len(most)], most, strict=False)]
