"""The verdict: plain values, ready to be shown or written. Everything in it was decided elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hangscope.engine_roles import Role
from hangscope.model import EngineProcess, FileWait, Frame, Gap, GpuCore, Source
from hangscope.sources.process_waits.chains import Chain
from hangscope.verdict_words import CauseKind as CauseKind
from hangscope.verdict_words import Outcome, RetryAnswer, Word, still_runs

SCHEMA = "hangscope.diagnosis/1"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence with where it was read. `detail` are lines to show under it (frames, a quoted log line)."""

    text: str
    sources: tuple[Source, ...] = ()
    detail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogFact:
    """A log line that the verdict rests on, as it is there, with what it names."""

    quote: str
    source: Source
    kind: str | None = None
    rank: int | None = None
    node: str | None = None
    peer_rank: int | None = None
    peer: str | None = None
    """The peer's host or address."""
    code: int | None = None


class SeenIn(Word):
    """What showed a line of code."""

    STACK = "stack"
    """The rank's training thread is there."""
    CHILD = "child"
    """A process that the rank started, and waits for, is there."""
    TRACEBACK = "traceback"
    """The rank raised there."""
    CRASH = "crash"
    """A fatal signal ended the rank there."""
    CALL = "call"
    """The rank called the operation there that it is in, or that differs from its group's."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line that the user can change. `code` is its text, `around` that of the lines near it, where they were saved.

    `frames` are innermost first, and begin inside the line where a library was called from it; `through` is the
    innermost of them that is of an installed package. Where no line is the user's, it is the line of such a package.
    """

    file: str
    line: int
    function: str
    seen_in: SeenIn
    code: str | None = None
    frames: tuple[Frame, ...] = ()
    around: tuple[tuple[int, str], ...] = ()
    # The process that is there, where it is one that the rank started.
    pid: int | None = None
    # Whether a second look found it at another line of the same function.
    moves: bool = False
    through: Frame | None = None

    @property
    def frame(self) -> Frame:
        return Frame(self.function, self.file, self.line)


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank that others wait for, while it waits for no one."""

    rank: int
    node: str | None
    local_rank: int | None
    gpu: str | None
    pid: int | None
    why: str
    where: Place | None = None
    storage: FileWait | None = None
    """The file that it is blocked on."""
    role: Role | None = None
    """What it is for its engine."""


@dataclass(frozen=True, slots=True)
class UnrankedCulprit:
    """What a line accuses whose rank the evidence does not tell: at least one of these says which it is.

    `device` is a GPU, NPU or network device as its driver calls it, `task` a runtime's own number or name.
    """

    node: str | None
    local_rank: int | None
    pid: int | None
    device: str | None
    task: str | None
    role: Role | None
    why: str


@dataclass(frozen=True, slots=True)
class ActorCulprit:
    """An actor, a task or a driver of a Ray cluster that others wait for. `label` is how people know it, `task` what it
    runs; a rank where it is one of torch.distributed's."""

    label: str
    class_name: str | None
    name: str | None
    actor_id: str | None
    task: str | None
    node: str | None
    pid: int | None
    rank: int | None
    why: str
    where: Place | None = None


@dataclass(frozen=True, slots=True)
class Victim:
    """A rank that waits. `chain` is the path of ranks that leads from it to the root, itself first."""

    rank: int
    waits_for: tuple[int, ...]
    group: str | None
    operation: str | None
    chain: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OperationInFlight:
    """The operation at the root of the hang, over all members of its group."""

    group: str
    members: tuple[int, ...]
    seq: int | None
    name: str
    bytes: int | None
    dtypes: tuple[str, ...]
    # rank → "not launched", "scheduled", "started", "completed", "unknown".
    state_by_rank: Mapping[int, str]
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class LastCompleted:
    """The last operation that every member of the group finished."""

    group: str
    seq: int | None
    name: str
    frames: tuple[Frame, ...]
    at_ns: int | None


@dataclass(frozen=True, slots=True)
class LinkEnd:
    rank: int
    node: str | None
    nic: str | None


@dataclass(frozen=True, slots=True)
class Link:
    """The connection over which bytes do not arrive."""

    sender: LinkEnd
    receiver: LinkEnd
    channel: int | None
    evidence: str


@dataclass(frozen=True, slots=True)
class FirstReported:
    """Where the timeout, or a lost peer, was first reported. Seldom the culprit."""

    rank: int
    node: str | None
    at_ns: int | None
    operation: str | None
    # Whether the time is by a log's own clock, which names no zone.
    local_time: bool = False
    # Whether it was a timeout; else an operation failed, as where a peer is gone.
    timeout: bool = True


@dataclass(frozen=True, slots=True)
class RuledOut:
    """A kind that the evidence excludes, and by what."""

    kind: CauseKind
    why: str


@dataclass(frozen=True, slots=True)
class AlsoPossible:
    """An explanation that fits nearly as well."""

    kind: CauseKind
    culprits: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Lateness:
    """How much one rank kept the others waiting, for kind "slow" (and as context elsewhere)."""

    rank: int
    late_ms_median: float
    share_of_step: float
    times_last: int
    operations: int


@dataclass(frozen=True, slots=True)
class Completeness:
    """How much of the evidence is there: ranks with each kind of source, of all ranks."""

    ranks: int
    dumps: int
    stacks: int
    logs: int
    nccl_logs: int
    missing_dumps: tuple[int, ...] = ()
    missing_nccl_logs: tuple[int, ...] = ()
    clock_skew_ms: float | None = None
    gpu_cores: int = 0


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """One thing that the verdict names, beside all others of its kind in the fleet's history."""

    kind: str
    name: str
    named: int
    """Other jobs in which it was the culprit."""
    jobs: int
    """Other jobs in which it took part."""
    cluster_named: int | None
    cluster_jobs: int | None
    says: str


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One line of the table that decides between machine and code."""

    what: str
    counted: str
    speaks_for: str
    holds: bool


@dataclass(frozen=True, slots=True)
class SeenBefore:
    """The issue on the server that has the same fingerprint."""

    issue: int
    incidents: int
    """Of other jobs."""
    since_s: float | None
    url: str


@dataclass(frozen=True, slots=True)
class History:
    """What a server's memory of other jobs says about this hang. It changes nothing else in the verdict but
    `retry`."""

    server: str
    track_records: tuple[TrackRecord, ...]
    answer: str
    """"hardware", "code", "network", "storage", "outage" or "not decided"."""
    rows: tuple[HistoryRow, ...]
    commands: tuple[str, ...] = ()
    """The experiment that would decide it."""
    outcomes: tuple[str, ...] = ()
    """What each outcome of it would mean."""
    seen_before: SeenBefore | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Whether the same job is worth starting again. Nothing is done by itself."""

    answer: RetryAnswer
    nodes: tuple[str, ...]
    """Those to avoid, where the answer is "elsewhere"."""
    why: str


HISTORY_GAP = "what history says"
"""What is missing where a server was asked and did not answer."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer to "what hung this job?"."""

    hang: bool
    kind: CauseKind
    culprits: tuple[Culprit, ...]
    victims: tuple[Victim, ...]
    operation: OperationInFlight | None
    last_completed: LastCompleted | None
    link: Link | None
    first_reported: FirstReported | None
    confidence: str
    confidence_rule: str
    summary: str
    why: tuple[Finding, ...]
    ruled_out: tuple[RuledOut, ...]
    next_steps: tuple[str, ...]
    evidence: tuple[Finding, ...]
    gaps: tuple[Gap, ...]
    outcome: Outcome = Outcome.HANG
    also_possible: tuple[AlsoPossible, ...] = ()
    # What happened in a few words, for the first line: ``rank 14 never launched all_to_all #45265``.
    headline: str = ""
    # How long the longest-waiting victim had waited when the evidence was taken.
    waiting_s: float | None = None
    # Whether that is only for how long it was seen to wait: when it began, nothing says.
    waiting_is_least: bool = False
    lateness: tuple[Lateness, ...] = ()
    nodes: Mapping[int, str] = field(default_factory=dict)
    completeness: Completeness | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    facts: tuple[LogFact, ...] = ()
    kinds: Mapping[int, CauseKind] = field(default_factory=dict)
    """Rank → what it is accused of by itself; the verdict's own kind is that of the first cause."""
    gpu_cores: tuple[GpuCore, ...] = ()
    """What ranks' GPUs ran when they were asked; those of other ranks are not known."""
    # Rank → which process of an engine it is; and the processes of the engine that are no ranks.
    roles: Mapping[int, Role] = field(default_factory=dict)
    others: tuple[EngineProcess, ...] = ()
    # The actors, tasks or drivers of a Ray cluster that are accused, also where they are no ranks.
    actors: tuple[ActorCulprit, ...] = ()
    program_waits: Mapping[int, Chain] = field(default_factory=dict)
    """Rank → the chain of programs that it waits for."""
    # What the verdict names whose rank is not known. In the JSON they stand among the culprits.
    unranked: tuple[UnrankedCulprit, ...] = ()
    history: History | None = None
    retry: Retry | None = None
    """None where the job goes on, or ended well."""

    @property
    def is_likely(self) -> bool:
        """Whether it is more than a guess."""
        return self.confidence != "low"

    @property
    def exit_status(self) -> int:
        """0 no hang; 1 a hang or a failure with a named cause; 3 one whose cause the evidence does not name, or where
        nobody can tell whether all is well.

        A mismatch, a shift or a slow rank that did not hang anything is still a finding, but the job went on: 0. Where
        ranks wait for one that works (WAIT), only time tells whether it is a hang: 3.
        """
        if self.outcome == Outcome.WAIT:
            return 3
        if still_runs(self.outcome):
            return 0
        return 3 if self.kind in (CauseKind.UNKNOWN, CauseKind.NONE) else 1
