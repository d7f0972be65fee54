"""An answer that fits: long lists and texts are cut, and it is said what was cut and how much there is.

A job of thousands of ranks has megabytes to say, and whoever reads it here pays for every word.
"""

from __future__ import annotations

import json
from typing import Any

MOST_CHARACTERS = 48_000
"""Of an answer as JSON."""
_LONGEST_LISTS = (256, 128, 64, 32, 16, 8, 4, 2)
_LONGEST_TEXT = 4_000
_SHORTEST_TEXT = 200
SHORTENED = "shortened"


def bounded(answer: dict[str, Any], most: int = MOST_CHARACTERS) -> dict[str, Any]:
    """The answer, with its lists and objects cut to the greatest length at which all of it fits."""
    for longest in _LONGEST_LISTS:
        text = max(_SHORTEST_TEXT, _LONGEST_TEXT * longest // _LONGEST_LISTS[0])
        cuts: list[str] = []
        cut = {key: _cut(value, longest, text, key, cuts) for key, value in answer.items()}
        if cuts:
            cut[SHORTENED] = cuts[:16]
        if len(json.dumps(cut)) <= most:
            return cut
    kept = {key: value for key, value in answer.items() if isinstance(value, bool | int | float) or value is None}
    return {**kept, SHORTENED: ["everything: the answer is too long; ask for fewer ranks or operations"]}


def _cut(value: Any, longest: int, text: int, where: str, cuts: list[str]) -> Any:
    if isinstance(value, str) and len(value) > text:
        cuts.append(f"{where}: the first {text} of {len(value)} characters")
        return f"{value[:text]}…"
    if isinstance(value, list | tuple):
        if len(value) > longest:
            cuts.append(f"{where}: the first {longest} of {len(value)}")
        return [_cut(one, longest, text, f"{where}[]", cuts) for one in value[:longest]]
    if isinstance(value, dict):
        if len(value) > longest:
            cuts.append(f"{where}: the first {longest} of {len(value)}")
        kept = list(value.items())[:longest]
        return {key: _cut(one, longest, text, f"{where}.{key}", cuts) for key, one in kept}
    return value
