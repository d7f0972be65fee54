"""The words of a verdict, its kind and its outcome, and what follows from them: how they are printed, whether the job
runs on, whether alerts are sent, whether a server makes an issue of it.

Standard library alone, since the recorder decides by them and the reader finds them in logs again. The functions take
the plain word as JSON has it; a word of a later version counts as trouble.
"""

from __future__ import annotations

from enum import Enum


class Word(str, Enum):
    """One of a few words, equal to the plain text of it, and shown and written as that (as `StrEnum`, Python 3.11)."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


class CauseKind(Word):
    """What kind of cause held the job up."""

    ABSENT = "absent"
    DEAD = "dead"
    FROZEN = "frozen"
    GPU = "gpu"
    MISMATCH = "mismatch"
    DEADLOCK = "deadlock"
    NETWORK = "network"
    RESOURCES = "resources"
    SLOW = "slow"
    SHIFT = "shift"
    UNKNOWN = "unknown"
    NONE = "none"


class RetryAnswer(Word):
    """Whether a job that hung or crashed is worth starting again, as it is."""

    SAME = "same"
    """On any nodes, these among them."""
    ELSEWHERE = "elsewhere"
    """Without the nodes that are named."""
    NO = "no"
    """Its code does it, on any node."""
    UNKNOWN = "unknown"
    """The evidence does not say."""


class Outcome(Word):
    """What became of the job: what people see as the first word."""

    HANG = "hang"
    CRASH = "crash"
    WAIT = "wait"
    PAUSE = "pause"
    SLOW = "slow"
    DESYNC = "desync"
    """Nothing hangs, and ranks lastingly run calls together that do not belong together."""
    WRONG = "wrong"
    """Nothing hung, and at least once ranks ran calls together that do not belong together."""
    OK = "ok"
    UNKNOWN = "unknown"


BAD = "bad"
WARN = "warn"
GOOD = "good"

TONES = {
    Outcome.HANG: BAD,
    Outcome.CRASH: BAD,
    Outcome.WAIT: WARN,
    Outcome.PAUSE: WARN,
    Outcome.SLOW: WARN,
    Outcome.DESYNC: BAD,
    Outcome.WRONG: BAD,
    Outcome.OK: GOOD,
    Outcome.UNKNOWN: WARN,
}
"""How the word is drawn."""
_STILL_RUNS = (Outcome.PAUSE, Outcome.SLOW, Outcome.DESYNC, Outcome.WRONG, Outcome.OK)
_NOT_SENT = (Outcome.PAUSE, Outcome.SLOW, Outcome.OK)
NO_TROUBLE = (Outcome.OK, Outcome.PAUSE, Outcome.WAIT, Outcome.UNKNOWN)
"""Outcomes that are of no issue on a server and held against no node."""


def still_runs(outcome: object) -> bool:
    """Whether the job runs: nothing may be done to it, and a diagnosis of it ends with status 0."""
    return outcome in _STILL_RUNS


def is_sent(outcome: object) -> bool:
    """Whether alerts tell of it."""
    return outcome not in _NOT_SENT


def is_trouble(outcome: str | None) -> bool:
    """Whether a server makes an issue of it, and counts it against what it names."""
    return bool(outcome) and outcome not in NO_TROUBLE


# ---- as `run` prints them into a job's log, where the reader finds them again ----------------------------------------


def first_word(outcome: Outcome) -> str:
    """The first word of the terminal's answer."""
    return "?" if outcome == Outcome.UNKNOWN else outcome.upper()


_IN_LEGEND = {
    CauseKind.GPU: "GPU stuck",
    CauseKind.NETWORK: "cut off",
    CauseKind.SLOW: "late",
    CauseKind.SHIFT: "shifted",
    CauseKind.UNKNOWN: "suspected",
}


def legend_word(kind: CauseKind) -> str:
    """What the legend under the ranks calls a culprit of this kind."""
    return _IN_LEGEND.get(kind, str(kind))


OUTCOME_OF_WORD = {first_word(outcome): outcome for outcome in Outcome}
KIND_OF_WORD = {legend_word(kind): kind for kind in CauseKind}
