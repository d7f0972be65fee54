"""Accusations that rest on lines of failure in logs: what they say about who, where and what, and how that is said."""

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hangscope.diagnosis.accusation import Accusation, Accused, Doubt, Grounds
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Words
from hangscope.diagnosis.causes.shared.advice import COLLECT, SWITCH_ON
from hangscope.diagnosis.causes.shared.port_steps import link_steps
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.findings import quoted
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind
from hangscope.model import AFTER_HANG, CONTAINER, PREEMPTION, TIME_LIMIT, Failure, FailureKind, Trait
from hangscope.text import numbered, sentence, short

_SHOWN = 4
_WITHOUT_RECORDER = (
    *("JAX", "TPU", "Gloo", "Horovod", "Neuron", "MPI", "Mooncake", "NIXL"),
    *("Kubernetes", "NFS", "Lustre", "Ceph", "BeeGFS", "GPFS"),
)
"""Programs and machines whose lines no flight recorder would add to."""


@dataclass(frozen=True, slots=True)
class FailureLines:
    """The lines, the one that it is about first; and each accused rank's own line, where there is one."""

    lines: tuple[Failure, ...]
    own: Mapping[int, Failure] = field(default_factory=dict)

    @property
    def first(self) -> Failure:
        return self.lines[0]


def naming_ranks(
    case: Case, grounds: Grounds, kind: CauseKind, lines: Sequence[Failure], named: Collection[tuple[int, ...]]
) -> Accusation[FailureLines]:
    """What PyTorch, or the agents, say by name; `named` are the sets of ranks that they name, accused if it is one."""
    ranks = next(iter(named)) if len(named) == 1 else ()
    first = lines[0]
    waits = [wait for wait in case.waits.all if wait.seq == first.seq] or case.waits.all
    wait = max(waits, key=lambda w: len(w.inside), default=None)
    operation = numbered(first.operation or "", first.seq)
    if not operation and wait is not None:
        operation = case.names.wait(wait)
    return Accusation(
        grounds,
        kind,
        FailureLines(tuple(lines)),
        [Accused(rank, kind, operation) for rank in ranks],
        wait,
        doubts=() if ranks else [Doubt.NO_RANK],
        explains=case.waits.all,
        hang=case.hang.says is Says.YES or kind is CauseKind.ABSENT,
    )


# ---- words -----------------------------------------------------------------------------------------------------------


_SENDERS = {
    -1: ": its terminal or ssh session was closed",
    -2: ": someone pressed Ctrl-C",
    -15: ": a scheduler or a person ended the job",
}
"""Who sends the signal that a launcher got."""
_LAST_STEPS = {
    -1: "start it where no terminal is needed: tmux, setsid or a scheduler; nohup does not help: torchrun handles "
    "to SIGHUP itself",
    -2: "find out who or what sent it",
    -15: "ask the scheduler why it ended the job: its time limit, preemption, scancel, the pod's events",
}
_CANCELLED = {
    "": "scancel, or a rule of the scheduler",
    AFTER_HANG: "it hung (--on-hang kill)",
    TIME_LIMIT: "its time limit was reached",
    PREEMPTION: "it was preempted",
}
"""Why Slurm cancels a job, by its own word."""
_AFTER_TIME_LIMIT = (
    "check whether the job still made progress: if so, raise --time or checkpoint on #SBATCH --signal=B:USR1@120; "
    "if not, it hung"
)


def was_signalled(failure: Failure) -> bool:
    """Whether somebody outside ended the job: the scheduler, or a signal that the launcher got or passes on."""
    return failure.kind in (FailureKind.LAUNCHER_SIGNAL, FailureKind.CANCELLED) or _passes_signal_on(failure)


def _passes_signal_on(failure: Failure) -> bool:
    """Whether a launcher sends what it only gets from outside."""
    return failure.kind == FailureKind.LAUNCHER_KILL and failure.code in (-1, -2)


def failure_words(case: Case, accusation: Accusation[FailureLines]) -> Words:
    failure = accusation.facts.first
    ranks = accusation.ranks
    who, what = _who_and_what(case, accusation)
    operation = (
        accusation.accused[0].operation if accusation.accused else numbered(failure.operation or "", failure.seq)
    )
    did = f"{what} in {operation}" if operation else what
    if failure.library and failure.detail and failure.detail not in did:
        did += f" ({failure.detail})"
    if failure.effect and accusation.kind is CauseKind.UNKNOWN and not was_signalled(failure):
        did += ": a symptom; cause unknown"
    text = f"{did}{_around(failure) if not ranks else ''}{_peer(failure, did)}"
    own = {rank: short(line.text, 120) for rank, line in accusation.facts.own.items()}
    return Words(
        headline=f"{ranks_text(ranks) if ranks and not failure.kind.is_of(Trait.OF_NODE) else who} {text}",
        summary=f"{sentence(who)} {text}: {short(failure.text, 240)}",
        why=[quoted(line) for line in accusation.facts.lines[:_SHOWN]],
        each={rank: own.get(rank) or did for rank in ranks},
        steps=_steps(case, accusation, who),
        link=failure.text,
    )


def _who_and_what(case: Case, accusation: Accusation[FailureLines]) -> tuple[str, str]:
    failure = accusation.facts.first
    ranks = accusation.ranks
    if failure.kind == FailureKind.MISMATCH and not ranks:
        return ranks_text(failure.ranks) if len(failure.ranks) > 1 else "the ranks", "made different calls"
    if failure.kind.is_of(Trait.TAKEN_TWICE):
        return _taken_twice(accusation.facts.lines, failure.kind)
    if failure.kind in _GONE_WITH and (failure.kind == FailureKind.NODE_SILENT or ranks):
        return _gone_with(accusation.facts.lines, failure.kind)
    if failure.kind == FailureKind.EVICTED and ranks:
        return _whose(case, failure), f"{_what(failure)} ({ranks_text(ranks)} ran in it)"
    return case.names.ranks(ranks) if ranks else _whose(case, failure), _what(failure)


_GONE_WITH = {
    FailureKind.NODE_SILENT: ("has gone silent", "have gone silent"),
    FailureKind.NODE_FAILED: ("failed", "failed"),
}
"""What became of nodes, of one and of several, that took their ranks along."""


def _gone_with(lines: Sequence[Failure], kind: FailureKind) -> tuple[str, str]:
    """(which nodes, what became of them)."""
    gone = [line for line in lines if line.kind == kind]
    nodes = sorted({line.node for line in gone if line.node is not None})
    ranks = ranks_text(sorted({line.rank for line in gone if line.rank is not None}))
    one, several = _GONE_WITH[kind]
    if len(nodes) == 1:
        return f"node {nodes[0]}", f"{one}, and {ranks} with it"
    return f"nodes {', '.join(nodes[:_SHOWN])}", f"{several}, and {ranks} with them"


def _what(failure: Failure) -> str:
    joined = f" ({failure.detail} did)" if failure.detail else ""
    store = f" at {failure.detail}" if failure.detail and failure.peer_node else ""
    gpu = f" ({failure.detail})" if failure.detail else ""
    detail = (
        _why_cancelled(failure) if failure.kind == FailureKind.CANCELLED else failure.detail or short(failure.text, 120)
    )
    sender = _SENDERS.get(failure.code or 0, "")
    kind = FailureKind.LAUNCHER_SIGNAL if _passes_signal_on(failure) else failure.kind
    return kind.says.format(code=_code(failure), joined=joined, store=store, detail=detail, sender=sender, gpu=gpu)


def _why_cancelled(failure: Failure) -> str:
    reason = failure.detail or ""
    return _CANCELLED.get(reason, reason)


def _taken_twice(lines: Sequence[Failure], kind: FailureKind) -> tuple[str, str]:
    """(which ranks, what they took twice); each set of ranks on one GPU together."""
    if kind == FailureKind.SAME_RANK:
        ranks = sorted({rank for line in lines if line.kind == kind for rank in line.ranks})
        return "several processes", kind.says.format(ranks=ranks_text(ranks))
    together: dict[tuple[str | None, str | None], set[int]] = {}
    for line in lines:
        if line.kind == kind:
            together.setdefault((line.node, line.detail), set()).update(line.ranks)
    who = " and ".join("/".join(map(str, sorted(ranks))) for ranks in list(together.values())[:_SHOWN])
    node = next((f" of {node}" for node, _ in together if node), "")
    return f"ranks {who}", kind.says.format(node=node)


def _steps(case: Case, accusation: Accusation[FailureLines], who: str) -> list[str]:
    failure = accusation.facts.first
    if failure.kind == FailureKind.CANCELLED and failure.detail == TIME_LIMIT:
        return [_AFTER_TIME_LIMIT]
    if failure.detail == AFTER_HANG:
        return ["diagnose what was saved at the time: the log names the incident's directory"]
    if was_signalled(failure):
        return [_LAST_STEPS.get(failure.code or 0, _LAST_STEPS[-15])]
    step = failure.kind.step
    steps = link_steps(case, accusation.way) or ([f"{who}: {step}"] if step else [])
    if (failure.kind.is_of(Trait.ENGINE | Trait.BEFORE_RECORDING) or failure.library in _WITHOUT_RECORDER) and steps:
        return steps
    if not case.job.dumps and not case.job.under_run:
        return [SWITCH_ON, *steps] if accusation.kind is CauseKind.UNKNOWN else [*steps, SWITCH_ON]
    return steps or [COLLECT]


def _around(failure: Failure) -> str:
    one = len(failure.ranks) == 1 and failure.rank is None
    return f" (around rank {failure.ranks[0]})" if one else ""


def _peer(failure: Failure, said: str) -> str:
    peer = failure.peer_node
    if failure.peer_rank is not None and failure.peer_rank not in failure.ranks:
        peer = f"rank {failure.peer_rank}"
    return f" (peer {peer})" if peer is not None and peer not in said else ""


def _code(failure: Failure) -> str:
    """An exit status with the signal behind it; other numbers as they are."""
    code = failure.code
    if failure.kind not in (
        FailureKind.SIGNAL,
        FailureKind.EXIT,
        FailureKind.LAUNCHER_SIGNAL,
        FailureKind.LAUNCHER_KILL,
    ):
        return "" if code is None else f" {code}"
    if code is None:
        return "a failure" if failure.kind == FailureKind.EXIT else "a signal"
    number = -code if code < 0 else code - 128
    known = number in signal.valid_signals() and (code < 0 or code > 128)
    name = signal.Signals(number).name if known else ""
    if code < 0 and name:
        return name
    return f"exit status {code} ({name})" if name else f"exit status {code}"


def _device(failure: Failure) -> str | None:
    """What a line is about that is no process: a scheduler, a launcher, a GPU, an actor, a pod."""
    if failure.kind == FailureKind.CANCELLED:
        return "hangscope" if failure.detail == AFTER_HANG else "Slurm"
    if was_signalled(failure):
        return "the launcher"
    if failure.kind == FailureKind.ACTOR_DIED:
        return f"the Ray actor {failure.detail} (pid {failure.pid}){_on_node(failure)}"
    if failure.kind in (FailureKind.EVICTED, FailureKind.POD_PENDING, FailureKind.POD_STOPPED):
        return f"the pod {failure.node}" if failure.node else "a pod"
    return _machine(failure) if failure.rank is None else None


def _machine(failure: Failure) -> str | None:
    """The same of a line that names no rank."""
    if failure.kind == FailureKind.AGENT_SILENT:
        return f"hangscope's agent{_on_node(failure)}"
    if failure.kind.is_of(Trait.MACHINE):
        return f"node {failure.node}" if failure.node else "a node"
    if failure.kind == FailureKind.GPU_LOST:
        return failure.node or "a node"
    if failure.kind == FailureKind.XID and failure.detail:
        return f"GPU {failure.detail}{_on_node(failure)}"
    return failure.detail if failure.detail == CONTAINER else failure.kind.speaker or None


def _on_node(failure: Failure) -> str:
    return f" on {failure.node}" if failure.node is not None else ""


def _whose(case: Case, failure: Failure) -> str:
    """Whose line it is, as far as it says."""
    node = _on_node(failure)
    pid = f", pid {failure.pid}" if failure.pid is not None else ""
    if (device := _device(failure)) is not None:
        return device
    if failure.rank is not None:
        return case.names.ranks([failure.rank]) + ("" if failure.rank in case.job.nodes else node) + pid
    if failure.local_rank is not None:
        return f"local rank {failure.local_rank}{node or ' of a node that the line does not name'}{pid}"
    if failure.role is not None:
        return f"{failure.role.says}{node}{pid}"
    if failure.pid is not None:
        return f"the process with pid {failure.pid}{node}"
    return f"a process{node}" if node else "a rank that the line does not name"
