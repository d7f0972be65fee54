"""What a file of `causes/` hands over: what it looks for, on which grounds it accuses, and its words."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic

from hangscope.diagnosis.accusation import Accusation, F, Grounds
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.verdict import Finding


class Asked(Enum):
    """Of which jobs a cause is asked."""

    OF_A_HANG = auto()
    OF_A_JOB_THAT_RUNS = auto()
    ALWAYS = auto()


@dataclass(frozen=True, slots=True)
class Words:
    """An accusation in words. `why` are the findings that carry it, `each` says what each accused rank did
    (``never launched all_reduce #7``), `link` what shows that it is this connection."""

    headline: str
    summary: str
    why: Sequence[Finding]
    each: Mapping[int, str] = field(default_factory=dict)
    steps: Iterable[str] = ()
    link: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Cause(Generic[F]):
    """One cause. `propose` states facts and words nothing; it is never sure, knows no other cause and changes nothing.
    `words` says of one of its accusations what a reader sees."""

    propose: Callable[[Case], Iterator[Accusation[F]]]
    words: Callable[[Case, Accusation[F]], Words]
    grounds: tuple[Grounds, ...]
    asked: Asked = Asked.OF_A_HANG

    def is_asked(self, case: Case) -> bool:
        asked_now = Asked.OF_A_HANG if case.hung else Asked.OF_A_JOB_THAT_RUNS
        return self.asked in (asked_now, Asked.ALWAYS)
