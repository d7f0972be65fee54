"""Yes, no, or not known: what a source says to a question, and nothing that could be mistaken for it.

An answer has no truth value of its own: `if answer:` is an error of types and at run time, so that whoever asks has to
say what becomes of "not known".
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING


class Says(Enum):
    YES = "yes"
    NO = "no"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said; where nobody can say, `limit` is what their testimony lacks."""

    says: Says
    limit: str = ""

    if not TYPE_CHECKING:  # the type checker complains by itself (truthy-bool) as long as there is no such method

        def __bool__(self) -> bool:
            raise TypeError("an answer is yes, no or not known: compare `.says`")


def yes() -> Answer:
    return Answer(Says.YES)


def no() -> Answer:
    return Answer(Says.NO)


def not_known(limit: str) -> Answer:
    return Answer(Says.NOT_KNOWN, limit)
