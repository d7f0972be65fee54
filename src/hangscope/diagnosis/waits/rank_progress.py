"""How far one rank got: the values that all of `waits` speaks in."""

from dataclasses import dataclass, field
from enum import Enum

from hangscope.model import CallArguments, State, WatchdogReport

SENDS = ("send", "send_object_list")
RECEIVES = ("recv", "recv_object_list")


class Place(Enum):
    """Where a rank is with respect to one operation of one of its groups.

    INSIDE: it launched it, and this is what it waits in. QUEUED: it launched it, but is still inside something earlier.
    """

    COMPLETED = "completed"
    INSIDE = "inside"
    QUEUED = "queued"
    NOT_LAUNCHED = "not launched"
    NOT_KNOWN = "unknown"


class Scope(Enum):
    """What the silence of a rank's dump is worth."""

    WHOLE = "what it does not have, the rank never launched"
    CUT = "it breaks off: silent after the cut"
    EARLIER = "it was taken before its peers': silent about what they did since"
    DISPUTED = "it may be of another time: silent about all that it does not have"


@dataclass(frozen=True, slots=True)
class Unit:
    """One thing a rank launched and has not finished: a collective, a point-to-point call, or a batch of them.

    `rows` are the operations inside, and the last one is the unit's own; none where only a log speaks of it.
    `arguments`: what a call that no recorder has was given, where the rank was asked.
    """

    rank: int
    group: int
    seq: int | None
    name: str = "collective"
    state: State = State.UNKNOWN
    rows: tuple[int, ...] = ()
    point_to_point: bool = False
    report: WatchdogReport | None = None
    arguments: CallArguments | None = None

    @property
    def peer(self) -> int | None:
        """With which rank a call speaks that no recorder has."""
        if self.arguments is None or not self.point_to_point:
            return None
        return self.arguments.src if self.receives else self.arguments.dst

    @property
    def makes_group_of(self) -> tuple[int, ...]:
        """The ranks of the group that it is making, where the call was asked; else none."""
        return self.arguments.ranks or () if self.arguments is not None else ()

    @property
    def makes_group(self) -> str | None:
        """The name of that group: each rank counts the groups that it makes."""
        return self.arguments.group if self.arguments is not None else None

    @property
    def receives(self) -> bool:
        return self.arguments is not None and self.arguments.function in RECEIVES

    @property
    def row(self) -> int | None:
        return self.rows[-1] if self.rows else None

    @property
    def timed_out(self) -> bool:
        """Whether the rank's own watchdog says so. An asynchronous error may be reported for what had just finished."""
        return self.report is not None and self.report.kind == "timeout"

    def is_collective_of(self, group: int) -> bool:
        return self.group == group and not self.point_to_point and self.seq is not None


@dataclass(slots=True)
class RankProgress:
    """One rank's position in all its groups.

    `source` is "dump", "poll", "counters" or "none". `inside` is what it waits in: the oldest unfinished unit, and the
    oldest started one of every other group. `launched` and `completed` are, per group, its largest collective sequence
    numbers. `counted` are the groups of a cut dump for which the rank's counters say how far it got. `stale`: its peers
    completed what needs this rank and what its record has as unfinished, so its watchdog stopped noticing.
    """

    rank: int
    source: str
    inside: tuple[Unit, ...] = ()
    queued: tuple[Unit, ...] = ()
    launched: dict[int, int] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)
    first_kept: dict[int, int] = field(default_factory=dict)
    oldest_ns: int | None = None
    timing: bool = False
    scope: Scope = Scope.WHOLE
    counted: set[int] = field(default_factory=set)
    stale: bool = False

    @property
    def known(self) -> bool:
        return self.source != "none"

    @property
    def own_record(self) -> bool:
        """Whether its own dump shows what it did, up to the hang."""
        return self.source in ("dump", "poll") and self.scope is Scope.WHOLE

    def is_inside(self, group: int, seq: int) -> bool:
        return any(unit.group == group and unit.seq == seq for unit in self.inside)


def split_inside(units: list[Unit]) -> tuple[tuple[Unit, ...], tuple[Unit, ...]]:
    """What a rank is inside of: the oldest unfinished unit, and another group's oldest one if the GPU started it; and
    what it has queued behind these."""
    oldest = {unit.group: unit for unit in reversed(units)}
    inside = tuple(u for u in units if u is oldest[u.group] and (u is units[0] or u.state is State.STARTED))
    return inside, tuple(u for u in units if u not in inside)
