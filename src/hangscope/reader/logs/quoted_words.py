"""Messages that a person writes about: quoted in a sentence of a ticket, a chat or documentation."""

from __future__ import annotations

import re

# In backticks, or in quotes that are no value of JSON or of a dict.
_QUOTED = re.compile(r"`$|[“«‘]$|(?<![:=,{\[(])(?<![:=,{\[(] )[\"']$")
_SENTENCE = re.compile(
    r"^(?:[>*\-•\s]|\d+[.)] )*(?:[A-Za-z][a-z']*(?:n't)?,? +){2,}(?:[\w'/().-]+,? +){0,40}?[(]?(?P<open>[\"'`“«‘„])"
)
"""How a sentence goes up to a quotation: at least two plain words, and no program's prefix."""
_CLOSES = {"“": "”", "«": "»", "‘": "’", "„": "“"}


def is_quoted(text: str, at: int) -> bool:
    """Whether what begins at a place in a line is quoted there."""
    before = text[:at]
    if _QUOTED.search(before[-4:]) is not None:
        return True
    sentence = _SENTENCE.match(before)
    if sentence is None:
        return False
    opened = sentence["open"]
    closes = _CLOSES.get(opened, opened)
    return closes not in before[sentence.end() :] and closes in text[at:]
