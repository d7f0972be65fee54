"""A Ray cluster as it was when the evidence was taken: processes with their stacks, actors, and tasks that are open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from hangscope.model.basics import Frame, Source


class TaskState(IntEnum):
    """How far a task has come, by Ray's own numbers (2.9 to 2.60)."""

    NOT_KNOWN = 0
    WAITS_FOR_ARGUMENTS = 1
    WAITS_FOR_A_NODE = 2
    """No node has what it asks for; of an actor's task: the actor is not there yet."""
    WAITS_FOR_STORE_MEMORY = 3
    FETCHES_ARGUMENTS = 4
    SUBMITTED = 5
    FETCHES_ACTOR_ARGUMENTS = 6
    QUEUED_AT_ACTOR = 7
    RUNNING = 8
    RUNNING_IN_GET = 9
    RUNNING_IN_WAIT = 10
    FINISHED = 11
    FAILED = 12

    @property
    def is_running(self) -> bool:
        return TaskState.RUNNING <= self <= TaskState.RUNNING_IN_WAIT


@dataclass(frozen=True, slots=True)
class RayThread:
    """One thread, innermost frame first. `call` is "ray.get" or "ray.wait" where it is in one, and `awaited` the tasks
    whose results that call was given, None where its memory did not show them."""

    name: str
    frames: tuple[Frame, ...]
    active: bool = False
    call: str = ""
    awaited: tuple[str, ...] | None = None
    event_loop: bool = False
    """It runs the coroutines of an async actor."""
    switches: int | None = None
    """How often it had gone to sleep by then, as the kernel counts."""


@dataclass(frozen=True, slots=True)
class RayProcess:
    """A worker or a driver. `samples` are looks at all its threads, some seconds apart; `code` the text of lines that
    they show, by (file, line)."""

    pid: int
    node: str
    driver: bool
    title: str
    source: Source
    job: str = ""
    rank: int | None = None
    state: str | None = None
    works: bool | None = None
    cpu_share: float | None = None
    samples: tuple[tuple[RayThread, ...], ...] = ()
    no_stack: str = ""
    code: Mapping[tuple[str, int], str] = field(default_factory=dict)


class ActorEnd(Enum):
    """How an actor died."""

    ON_PURPOSE = "on purpose"
    """Out of scope, ray.kill, exit_actor, or with its driver."""
    MEMORY = "memory"
    """Ray's memory monitor, or the kernel, killed it."""
    NODE = "node"
    CONSTRUCTOR = "constructor"
    ENVIRONMENT = "environment"
    """Its runtime environment could not be made."""
    UNSCHEDULABLE = "unschedulable"
    SILENT = "silent"
    """Its process went away without a word, as by SIGKILL or a crash."""
    EXIT = "exit"
    """It ended by itself with a status."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RayActor:
    """`state` is Ray's word: ALIVE, PENDING_CREATION, RESTARTING, DEAD, DEPENDENCIES_UNREADY. `death` says how it died
    in Ray's words."""

    id: str
    class_name: str
    name: str
    job: str
    state: str
    node: str | None
    pid: int | None
    restarts: int = 0
    death: str = ""
    ended_by: ActorEnd | None = None
    exit_code: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    started_at_s: float | None = None
    ended_at_s: float | None = None

    @property
    def label(self) -> str:
        """As people know it: ``actor Learner 'learner-2'``."""
        return f"actor {self.class_name} '{self.name}'" if self.name else f"actor {self.class_name}"


@dataclass(frozen=True, slots=True)
class RayTask:
    """A task that has not ended. `kind` is NORMAL_TASK, ACTOR_TASK, ACTOR_CREATION_TASK or DRIVER_TASK."""

    id: str
    name: str
    kind: str
    job: str
    actor: str
    parent: str
    state: TaskState
    node: str | None = None
    pid: int | None = None
    since_ns: int = 0
    created_ns: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_driver(self) -> bool:
        return self.kind == "DRIVER_TASK"

    @property
    def method(self) -> str:
        """The function's own name: of ``bee:Trainer.step`` it is step."""
        return self.name.rpartition(":")[2].rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class RayNodeState:
    name: str
    alive: bool
    death: str = ""
    total: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RayCluster:
    """One job, or several, on one cluster. `source` is the cluster's own word, None where only nodes' files are."""

    processes: tuple[RayProcess, ...] = ()
    actors: Mapping[str, RayActor] = field(default_factory=dict)
    tasks: Mapping[str, RayTask] = field(default_factory=dict)
    nodes: tuple[RayNodeState, ...] = ()
    drivers: Mapping[str, int] = field(default_factory=dict)
    """Job → its driver's pid, of jobs that run."""
    pending_groups: tuple[Mapping[str, float], ...] = ()
    """What placement groups ask for that no node could give so far, each summed up."""
    at_s: float | None = None
    ended_during_capture: int = 0
    """Tasks that ended while it was looked."""
    source: Source | None = None
