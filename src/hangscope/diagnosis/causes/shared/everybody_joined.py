"""Operations that every member has joined and that do not finish, and what names the place where they are stuck."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from hangscope.diagnosis.accusation import Doubt, doubts_where
from hangscope.diagnosis.align.agreement import members_not_recorded
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.hardware import xids
from hangscope.diagnosis.hardware.nccl_rings import ways_in
from hangscope.diagnosis.hardware.port_paths import Path, Trouble
from hangscope.diagnosis.stuck_link import network_events
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.waits.progress import Place
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import KernelMessage, Kind, Operation, State, TransportEvent

# A completion that was flushed: a consequence of an earlier error on the same queue pair.
_FLUSHED = 5


@dataclass(frozen=True, slots=True)
class CutOff:
    """An operation that some members finished and others did not; the connection from one of those to one of these, as
    far as NCCL's log names it, and whether it is the only one."""

    wait: Wait
    edge: Path | None
    only: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """At most one of them is there. `everybody`: a collective that nobody finished. `pairs`: sends and receives whose
    other side was launched."""

    cut_off: CutOff | None = None
    everybody: Wait | None = None
    pairs: tuple[Wait, ...] = ()


def find_joined(case: Case) -> Joined:
    # That some finished is seen, whoever else belongs to the group.
    finished = [w for w in case.waits.all if w.finished and not w.blockers and not w.point_to_point]
    cut_off = [w for w in finished if not members_not_recorded(case.groups[w.group])]
    if cut_off:
        return Joined(cut_off=_cut_off(case, max(cut_off, key=lambda w: len(w.finished))))
    joined = [w for w in case.waits.all if case.all_joined(w).says is Says.YES]
    collective = [w for w in joined if not w.point_to_point and len(w.inside) > 1]
    if collective:
        return Joined(everybody=max(collective, key=lambda w: (w.age_s or 0.0, len(w.inside))))
    return Joined(pairs=tuple(wait for wait in joined if wait.point_to_point))


def is_anything_timed(case: Case, waits: Iterable[Wait]) -> bool:
    """Whether a recording of those inside tells whose GPU got there."""
    return any(case.progress.of[rank].timing for wait in waits for rank in wait.waiters)


# ---- some finished, some did not -------------------------------------------------------------------------------------


def _cut_off(case: Case, wait: Wait) -> CutOff:
    if wait.name.startswith(("all_to_all", "alltoall")):
        return CutOff(wait, None, False)  # it goes over pairs, not along the ring
    trees = wait.name.startswith(("all_reduce", "allreduce"))  # it may go over trees instead
    ways = ways_in(case.job, case.groups[wait.group], set(wait.waiters), set(wait.finished), trees=trees)
    return CutOff(wait, *case.ports.likeliest(*ways))


def is_cut_off_seen(case: Case, cut_off: CutOff) -> bool:
    """Whether something says that bytes stop, and not that a GPU did not get there: a ring, a clock, or one alone."""
    one_alone = len(cut_off.wait.waiters) == 1
    return cut_off.edge is not None or one_alone or is_anything_timed(case, [cut_off.wait])


# ---- a send and its receive, both launched ---------------------------------------------------------------------------


def surest_pair(case: Case, waits: tuple[Wait, ...]) -> tuple[Wait, Operation | None]:
    """One of the calls whose other side was launched: surest is a receive whose sender has finished the send."""
    pairs = [
        (other.place is not Place.COMPLETED, case.job.ops.column("kind")[row] != Kind.RECV, row)
        for wait in waits
        for row, other in wait.counterparts
        if other.row is not None or other.place is Place.COMPLETED
    ]
    call = case.job.ops[min(pairs)[2]] if pairs else None
    if call is None or call.source is None or call.destination is None:
        return waits[0], None
    return next(wait for wait in waits if call.row in wait.inside[0].rows), call


# ---- everybody is inside, nobody finished ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuErrors:
    """What the kernel reports of members' GPUs."""

    by_rank: Mapping[int, list[KernelMessage]]


@dataclass(frozen=True, slots=True)
class TransportWarning:
    """NCCL's first warning that names a device or a peer."""

    event: TransportEvent


def find_sign(case: Case) -> GpuErrors | TransportWarning | Trouble | None:
    """What names the place where everybody is stuck. An error of a GPU is why NCCL warns of a connection, and a warning
    says more than counters of errors at ports."""
    wait = case.once(find_joined).everybody
    if wait is None:
        return None
    errors = {rank: messages for rank in wait.waiters if (messages := xids.about(case.job, rank))}
    if errors:
        return GpuErrors(errors)
    warnings = naming_warnings(case, wait.waiters)
    return TransportWarning(warnings[0]) if warnings else case.ports.trouble(wait.waiters)


def naming_warnings(case: Case, ranks: Collection[int]) -> list[TransportEvent]:
    """The network warnings that name a device or a peer, on one of these ranks."""
    events = [event for event in network_events(case.job) if event.status != _FLUSHED]
    known = set(ranks)
    here = [event for event in events if event.rank is None or event.rank in known]
    return [e for e in here if e.hca is not None or e.peer_rank is not None or e.kind == "completion_error"]


def all_started(wait: Wait) -> bool:
    return all(unit.state is State.STARTED for unit in wait.inside)


def is_running(case: Case, wait: Wait) -> bool:
    """Whether every member's GPU is inside it, by the recordings or by cores of the GPUs."""
    return all_started(wait) or case.kernels.in_one_of_nccl(wait.waiters)


def doubts_of_everybody(case: Case, wait: Wait) -> list[Doubt]:
    return doubts_where({Doubt.NOT_TIMED: not is_running(case, wait), Doubt.MAY_RUN: not case.hang.age_known})


def all_inside(case: Case, wait: Wait, more: str = "") -> Finding:
    """``all 8 members of dp launched all_reduce #9, and none finished it``."""
    how = "started" if is_running(case, wait) else "launched"
    members = f"all {len(wait.inside)} members of {case.names.group(wait.group)}"
    return Finding(f"{members} {how} {case.names.wait(wait)}, and none finished it{more}", case.source(wait.waiters[0]))
