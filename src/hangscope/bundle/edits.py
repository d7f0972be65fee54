"""What is to be replaced in some bytes: single edits, and a list of them while it is collected."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

USER = "user-name"
_BY_NAME = frozenset(("password", "secret", "token", "api-key", "credentials", "random-string"))
"""Kinds that a name gave; where a form knows the value itself, its kind says more."""


class Edit(NamedTuple):
    """Bytes from `start` to `end` are a secret of this kind; `text` takes their place. A user's alias is given last."""

    start: int
    end: int
    kind: str
    text: bytes


class Findings(list[Edit]):
    """Edits in the order in which they were found, and where something opened that may go on in other lines."""

    def __init__(self, edits: Iterable[Edit] = ()) -> None:
        super().__init__(edits)
        self.opened: list[int] = []
        self.followed: tuple[int, int] = (0, 0)
        """The last brackets that were followed: what is in them needs not be found again."""

    def add(self, span: tuple[int, int], kind: str) -> None:
        self.append(Edit(*span, kind, redacted(kind)))

    def add_user(self, span: tuple[int, int]) -> None:
        self.append(Edit(*span, USER, b""))


Handler = Callable[[bytes, int, Findings], None]
"""Looks at a place where its needle was found, and adds what is to be replaced."""


@lru_cache(maxsize=256)
def redacted(kind: str) -> bytes:
    """What is put in a secret's place: no quotes, blanks or separators, so that what is around it still parses."""
    return b"[redacted:%s]" % kind.encode()


def back_over(data: bytes, at: int, letters: bytes, most: int) -> int:
    """Where the run of `letters` that ends at `at` begins."""
    front = data[max(0, at - most) : at]
    return at - (len(front) - len(front.rstrip(letters)))


def without_overlaps(found: list[Edit]) -> list[Edit]:
    """In order, those together that overlap."""
    if not found:
        return found
    found.sort(key=lambda edit: (edit.start, -edit.end, edit.kind in _BY_NAME))
    kept = [found[0]]
    for edit in found[1:]:
        last = kept[-1]
        if edit.start >= last.end:
            kept.append(edit)
        elif edit.end > last.end:
            kind = edit.kind if last.kind == USER else last.kind
            kept[-1] = Edit(last.start, edit.end, kind, redacted(kind))
    return kept
