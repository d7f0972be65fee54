"""What a rule hands over: who or which link, what kind, on what grounds, and what speaks against being sure.

Rules state facts; `weigh.py` chooses and says how sure that is, `wording/` says it in words.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, auto

from hangscope.diagnosis.align.call_order import Outlier
from hangscope.diagnosis.align.divergence import Divergence
from hangscope.diagnosis.evidence.liveness import Life
from hangscope.diagnosis.verdict import Finding, Link, OperationInFlight
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import Failure, TransportEvent

Level = IntEnum("Level", "LOW MEDIUM HIGH")
LOW, MEDIUM, HIGH = Level


class _Argument(Enum):
    """A part of an argument: what it can carry at most, and the sentence that says why."""

    def __init__(self, level: Level, why: str) -> None:
        self.level, self.why = level, why


class Basis(_Argument):
    """The grounds of an accusation. Where several explain the same operations, the earlier one goes deeper: what ranks
    called differently is why others wait; a rank that others wait for is why bytes do not arrive."""

    CALLS_DIFFER = HIGH, "a majority of the group's own recordings disagrees with the rank"
    SPLITS_DIFFER = HIGH, "sent and received elements differ"
    SPLITS_RAGGED = MEDIUM, "sent and expected elements differ; all sizes differ by design, so nobody is accused"
    REPORTED_CALLS_DIFFER = MEDIUM, "the watchdog's lines of a majority disagree with the rank's"
    REPORTED_MISMATCH = MEDIUM, "PyTorch itself reports that the ranks called different things"
    REPORTED_SIZE = MEDIUM, "Gloo ended the rank over a size, and all others recorded the same call"
    WENT_PAST = MEDIUM, "a minority is past a collective that needs everybody; what it ran instead is not recorded"
    ONE_CALL_MORE = MEDIUM, "most ranks came to a clean end without this call"
    PEER_ELSEWHERE = HIGH, "a point-to-point call names a peer that moved on, while another offers what it asks for"
    OPEN_CONNECTION = MEDIUM, "unfinished two-rank communicators in NCCL's log that do not pair up"
    PEER_UNUSUAL = HIGH, "a point-to-point call names another peer than is usual there, and it does not answer"
    OTHER_LINE = MEDIUM, "a rooted operation called from its own line where members fall apart; no root is recorded"
    BLOCKS_OTHERS = HIGH, "its own evidence shows where it is, and its peers wait for it"
    CALL_ORDER = HIGH, "after the same calls, most others went on with another one"
    WAIT_CYCLE = HIGH, "a cycle of waits over the groups; the minority side is accused"
    END_SEEN = MEDIUM, "it was seen; no recording shows who waited for it"
    LINK_STUCK = HIGH, "the black boxes of both ends show data that the sender has and the receiver waits for"
    TRANSFERS = MEDIUM, "by the black boxes, all transfers wait for this rank in the end"
    REPORTED_MISSING = MEDIUM, "PyTorch itself, or every node's agent, names the ranks that did not come"
    IDLE = MEDIUM, "everybody who is kept waiting is inside something; who belongs to which group is not recorded"
    GPU_ERROR = HIGH, "everybody is inside, and the kernel reports an error of one member's GPU"
    CUT_OFF = HIGH, "some members finished, and the ring in NCCL's log names the edge to the first that did not"
    TRANSPORT_WARNING = HIGH, "everybody is inside, and NCCL's own warning names the failing connection"
    PORT_ERRORS = MEDIUM, "everybody is inside, and counters of errors rose on the ports of one connection alone"
    PAIR = MEDIUM, "a point-to-point call that both ends launched does not finish"
    FAILURE_LINE = MEDIUM, "a log says so; no recording shows what the ranks were doing"
    EVERYBODY_INSIDE = MEDIUM, "every member's kernel started, and nobody finished the operation"
    ORDER_UNUSUAL = MEDIUM, "after the same calls, most others went on with another; ranks not seen may hide a cycle"
    BLOCKS_UNSEEN = LOW, "only its evidence is missing: no sign of life, while all others wait"
    EVERYBODY_LAUNCHED = LOW, "without timing, a kernel that never started looks like a network that does not deliver"
    NO_TIMEOUT = LOW, "from logs alone, the only live ranks without a timeout of their own"
    CALLS_DIFFER_SILENTLY = HIGH, "a majority of the group's own recordings disagrees with the rank, and nothing hung"
    OTHER_LINE_SILENTLY = MEDIUM, "a rooted operation called once from a line of its own; roots are not recorded"
    SLOW_WORK = HIGH, "between the same two collectives a rank works longer than its peers, again and again"
    SLOW_LAUNCHES = MEDIUM, "a rank launches last again and again, and never waits itself"
    SLOW_STAGE = MEDIUM, "a stage of a pipeline hardly waits, while all others wait nearly always"
    PROGRESS_SEEN = HIGH, "every rank made progress, all members agree, and nothing reports a failure"
    # From here on: what is said only where nothing else is.
    FAILURE_OF_NOBODY = LOW, "a log tells of a failure and does not say whose it is"
    NOT_COLLECTED = LOW, "the evidence of too many ranks is missing to name one of them"
    ODD_IN_RAS = LOW, "by one look of NCCL's RAS alone, in which a job that runs can look the same"
    STANDS_APART = LOW, "from stacks alone, a few ranks stand elsewhere than the rest"
    HANG_UNEXPLAINED = LOW, "a hang that the evidence does not explain"
    NOTHING_TO_TELL = LOW, "progress was not seen on every rank, so it is not known whether all is well"


class Doubt(_Argument):
    """What makes an argument weaker than its grounds."""

    TWO_SIDES = MEDIUM, "the sides are equal, and the evidence cannot say which one is wrong"
    FEW_CONFIRM = MEDIUM, "few other calls confirm it"
    MANY_ACCUSED = MEDIUM, "so many ranks differ that they may be right"
    VOTES_MISSING = MEDIUM, "dumps are missing that could turn the vote"
    MEMBERS_NOT_RECORDED = MEDIUM, "the format (torch 2.2) does not say who belongs to the group"
    OTHER_GROUPS_POSSIBLE = LOW, "who belongs to which group is not recorded, and other groups may hide here"
    NO_COMMON_START = MEDIUM, "point-to-point calls could not be counted from a common start"
    INIT_NOT_RECORDED = MEDIUM, "a communicator's init that they may be in with another rank is not recorded"
    AGE_NOT_KNOWN = MEDIUM, "nothing says for how long"
    MAY_RUN = LOW, "nothing says for how long, and a job that runs looks the same"
    SECOND_CAUSE = MEDIUM, "a rank of which nothing is known may be a second cause"
    UNEXPLAINED = MEDIUM, "other ranks hang for a reason of their own"
    GIL_HELD = MEDIUM, "it holds the GIL, and who waits for its GPU does too: where it holds it is not recorded"
    FROM_LOGS = LOW, "from the counters in logs"
    SHOWN_BY_OTHERS = MEDIUM, "inferred from what the other ranks and the logs show"
    NOTHING_SHOWN = MEDIUM, "of some of the accused nothing is known"
    NOT_TIMED = MEDIUM, "the recording does not tell started from scheduled"
    NO_EDGE = MEDIUM, "the edge is not determined"
    OTHER_WAYS = MEDIUM, "NCCL's log shows more than one connection that it may be"
    ERRORS_ELSEWHERE = MEDIUM, "its ports count no errors, and another port of the job does"
    EARLIER_DISAGREEMENT = MEDIUM, "it may also be the trace of an earlier disagreement"
    ONE_PEER = MEDIUM, "there is only one peer to compare with"
    BOUND_ONLY = MEDIUM, "how much it costs is known as a bound only"
    DISPUTED = MEDIUM, "its dump is cut, or its times do not fit the other ranks'"
    RANKS_NOT_SEEN = MEDIUM, "there is no evidence of other ranks"
    SEVERAL_FAILED = LOW, "several ranks report a failure, and which came first is not known"
    OTHER_SIDE_NOT_SEEN = LOW, "whether it or its peer passed the wrong one is not recorded"
    NO_RANK = LOW, "the line names no rank"
    IN_FLIGHT = MEDIUM, "operations were in flight, and a hang that has just begun looks the same"
    RAISED_READS_DONE = MEDIUM, "in Gloo's dumps an operation that raised reads as completed"


class Shown(Enum):
    """How it is known what a rank did: by its own evidence; by others' or its log; only by what is missing."""

    SEEN = auto()
    BY_OTHERS = auto()
    NOT_SHOWN = auto()


@dataclass(frozen=True, slots=True)
class Accused:
    """One rank that is accused. `operation` is its own side of what it holds up, as people say it; `text` says what it
    did where the grounds alone do not."""

    rank: int
    kind: str
    operation: str = ""
    shown: Shown = Shown.SEEN
    life: Life | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Sides:
    """A wait cycle: the ranks by what they are inside of."""

    sides: Sequence[tuple[Wait, list[int]]]
    tied: bool


@dataclass(frozen=True, slots=True)
class Accusation:
    """One explanation of what is wrong with the job. `detail` is what the grounds are about, for `wording/`; `explains`
    what is explained besides that which waits for the accused."""

    basis: Basis
    kind: str
    accused: Sequence[Accused] = ()
    wait: Wait | None = None
    operation: OperationInFlight | None = None
    link: Link | None = None
    findings: Sequence[Finding] = ()
    doubts: Collection[Doubt] = ()
    hang: bool = True
    detail: Divergence | Outlier | Sides | TransportEvent | Failure | str | None = None
    explains: Sequence[Wait] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(a.rank for a in self.accused))

    @property
    def its_wait(self) -> Wait:
        """The operation, for grounds that always are about one."""
        assert self.wait is not None
        return self.wait


def doubts_where(found: Mapping[Doubt, object]) -> list[Doubt]:
    """The doubts whose condition holds."""
    return [doubt for doubt, holds in found.items() if holds]
