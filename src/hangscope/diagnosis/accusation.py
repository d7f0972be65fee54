"""What a cause hands over: who or which link, what kind, on what grounds, and what speaks against being sure.

Causes state facts; `weigh.py` chooses among them and says how sure that is, and the cause's own words say it to people.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Generic, TypeVar

from hangscope.diagnosis.hardware.nccl_rings import Way
from hangscope.diagnosis.verdict import ActorCulprit, CauseKind, OperationInFlight, UnrankedCulprit
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.verdict_words import Outcome

Level = IntEnum("Level", "LOW MEDIUM HIGH")
LOW, MEDIUM, HIGH = Level


class Layer(IntEnum):
    """How deep an explanation goes. Where several explain the same operations, the earlier layer is why the later one
    is there: ranks are missed because they called something else, and bytes do not arrive because a rank is missed."""

    OTHER_CALLS = 1
    """What ranks called differently from their group."""
    MISSED_RANKS = 2
    """Who is waited for: a rank that blocks the others, a cycle of waits, an end that was seen."""
    STUCK_BYTES = 3
    """Everybody came: the GPU, the connection or the port on which it stops."""
    SIGNS = 4
    """What a log says, or what is missing, where nothing shows how it came about."""
    NO_HANG = 5
    """What is said of a job that runs."""
    LAST_RESORT = 6
    """Hints that count only where nothing else is found, whatever they explain."""
    NO_CAUSE = 7
    """That no cause was found."""


@dataclass(frozen=True, slots=True, eq=False)
class Grounds:
    """What an accusation rests on: what that can carry at most (`level`), and the sentence that says why.

    `before` are other grounds of the same layer that these go before, by name, each with the test that fails without
    that. `needs_members`: they rest on who belongs to a group. Where the format does not say that (torch 2.2), who
    disagrees or is missing may be an artefact of that, as different groups hide behind one number.
    """

    name: str
    layer: Layer
    level: Level
    why: str
    before: Mapping[str, str] = field(default_factory=dict)
    needs_members: bool = False


class Doubt(Enum):
    """What makes an argument weaker than its grounds: what is possible at most in spite of it, and why."""

    def __init__(self, level: Level, why: str) -> None:
        self.level = level
        self.why = why

    TWO_SIDES = MEDIUM, "the ranks are split evenly, and the evidence cannot say which side is wrong"
    UNUSUAL_SIDE = MEDIUM, "the ranks are split evenly: one side called what none of them had called before"
    OTHER_VOTES_MISSING = (
        LOW,
        "the ranks are split evenly, and the dumps that could say which side is wrong are lost",
    )
    FEW_CONFIRM = MEDIUM, "few other calls support it"
    MANY_ACCUSED = MEDIUM, "so many ranks differ that they may be the correct ones"
    VOTES_MISSING = MEDIUM, "missing dumps could change the majority"
    MEMBERS_NOT_RECORDED = MEDIUM, "this dump format (torch 2.2) does not list the group's members"
    OTHER_GROUPS_POSSIBLE = LOW, "group membership is not recorded, and other groups may be involved"
    NO_COMMON_START = MEDIUM, "point-to-point calls could not be aligned from a common starting point"
    BY_ARGUMENTS = MEDIUM, "the call is not recorded: which rank it waits for is by the arguments that it was given"
    INIT_NOT_RECORDED = MEDIUM, "they may be initializing a communicator with another rank, which is not recorded"
    AGE_NOT_KNOWN = MEDIUM, "for how long is unknown"
    MAY_RUN = LOW, "for how long is unknown, and a healthy job looks the same"
    SECOND_CAUSE = MEDIUM, "a rank without evidence may be a second cause"
    UNEXPLAINED = MEDIUM, "other ranks hang for a separate reason"
    AT_WORK = MEDIUM, "it is working, and may resume on its own"
    POLLS = MEDIUM, "it wakes up again and again, and whether that gets anywhere is not known"
    GIL_HELD = MEDIUM, "it holds the GIL, as a rank waiting for its GPU would: where it holds it is not recorded"
    NOT_ENDED_BY_SIGTERM = MEDIUM, "what kept it from exiting on SIGTERM is not recorded"
    FROM_LOGS = LOW, "from sequence numbers in logs"
    SHOWN_BY_OTHERS = MEDIUM, "inferred from what the other ranks and the logs show"
    NOTHING_SHOWN = MEDIUM, "some of the accused left no evidence"
    NOT_TIMED = MEDIUM, "the dumps do not distinguish started from scheduled"
    NO_EDGE = MEDIUM, "the link is not determined"
    OTHER_WAYS = MEDIUM, "NCCL's log shows more than one candidate connection"
    ERRORS_ELSEWHERE = MEDIUM, "its ports show no errors, while another port of the job does"
    EARLIER_DISAGREEMENT = MEDIUM, "it may also be a side effect of an earlier mismatch"
    ONE_PEER = MEDIUM, "there is only one peer to compare with"
    START_NOT_SEEN = MEDIUM, "where it began is no longer recorded, and lines of code alone show it"
    BOUND_ONLY = MEDIUM, "only a bound on its cost is known"
    DISPUTED = MEDIUM, "its dump is truncated, or its timestamps do not match the other ranks'"
    RANKS_NOT_SEEN = MEDIUM, "there is no evidence from other ranks"
    SEVERAL_FAILED = LOW, "several ranks report a failure, and which came first is not known"
    OTHER_SIDE_NOT_SEEN = LOW, "whether it or its peer passed the wrong one is not recorded"
    NO_RANK = LOW, "the log line names no rank"
    WAS_NOT_SURE = LOW, "that verdict was uncertain"
    OTHERS_SAY_NOT_WHY = LOW, "why the others exited is not in this evidence"
    AGENT_GONE = LOW, "what the ranks of a node did whose agent stopped reporting is not known"
    STACK_NOT_SEEN = LOW, "no stack shows whether it is waiting itself"
    IN_UNRECORDED_CALL = LOW, "it is inside communication that the recorder does not see, and may wait there itself"
    WAITS_FOR_ITS_GPU = MEDIUM, "it waits for its GPU, and what runs there is not recorded"
    UNRECORDED_POSSIBLE = MEDIUM, "the job also communicates past the recorder, and no stack shows where it is"
    IN_NCCL_KERNEL = LOW, "its GPU is inside a kernel of NCCL's: it has launched something, and may wait itself"
    CORE_CONTRADICTED = LOW, "its recording says that the operation started on its GPU, and the GPU's core does not"
    KERNEL_MAY_PASS = LOW, "one look at a GPU does not tell a kernel that never ends from one in passing"
    KERNEL_SEEN_ONCE = MEDIUM, "its GPU was looked at once, and the kernel may be one of many"
    NOT_SEEN_TO_LAUNCH = MEDIUM, "no recording shows that it launched what the others wait in"
    EMPTY_AND_WAITS = LOW, "its stack shows it waiting for its GPU, on which nothing runs"
    GPU_SHARED = LOW, "several ranks use its GPU, and a core may come empty though a kernel waits"
    CORES_MISSING = MEDIUM, "what the GPUs of other ranks run is not known"
    IN_FLIGHT = MEDIUM, "operations were in flight, and a hang that just started looks the same"
    CAUSE_NOT_JUDGED = LOW, "a cause that may explain it could not be judged"
    RAISED_READS_DONE = MEDIUM, "Gloo's dumps mark an operation that raised as completed"


@dataclass(frozen=True, slots=True)
class Accused:
    """One rank that is accused. `operation` is its own side of what it holds up, as people say it."""

    rank: int
    kind: CauseKind
    operation: str = ""


F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Accusation(Generic[F]):
    """One explanation of what is wrong with the job.

    `facts` are what the cause found, for its own words. `wait` is the operation that hangs, or else `operation` what
    is in flight; `explains` what is explained besides that which waits for the accused.
    """

    grounds: Grounds
    kind: CauseKind
    facts: F
    accused: Sequence[Accused] = ()
    wait: Wait | None = None
    operation: OperationInFlight | None = None
    way: Way | None = None
    """The connection over which bytes do not arrive."""
    group: int | None = None
    """The group that it is about, where `wait` does not say so."""
    doubts: Collection[Doubt] = ()
    explains: Sequence[Wait] = ()
    hang: bool = True
    outcome: Outcome | None = None
    """What became of the job, where the cause itself knows that."""
    conclusive: bool = True
    """Whether it says anything about what became of the job: that the launcher stopped it does not."""
    all_sides: bool = False
    """Whether it accuses all sides of a cycle of waits: then nobody's wait leads to one of them rather than another."""

    unranked: Sequence[UnrankedCulprit] = ()
    """What is accused whose rank nothing tells."""
    actors: Sequence[ActorCulprit] = ()
    """Actors, tasks and drivers of a Ray cluster that are accused, whether or not they are ranks."""

    @property
    def names_somebody(self) -> bool:
        """Whether it says who, or that nobody is at fault."""
        return bool(self.accused or self.actors or self.unranked) or self.kind is CauseKind.RESOURCES

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
