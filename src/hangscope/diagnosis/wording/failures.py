"""Failures that a log tells of: who, where, what, as far as the line says."""

import signal

from hangscope.diagnosis.accusation import Accusation
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.causes.advice import BY_FAILURE, COLLECT, SWITCH_ON
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.wording.network import link_steps
from hangscope.diagnosis.wording.others import Words
from hangscope.model import Failure
from hangscope.text import numbered, sentence, short

_WHAT = {
    "cuda_error": "hit a CUDA error",
    "xid": "reports a GPU error{code}",
    "ecc": "reports a GPU memory error (ECC)",
    "gpu_lost": "lost a GPU, which its driver does not reach",
    "gpu_oom": "ran out of GPU memory",
    "host_oom": "ran out of host memory and got killed",
    "signal": "ended by {code}",
    "exit": "ended with {code}",
    "exception": "ended with an exception",
    "nccl_system_error": "got a system or network error from NCCL",
    "nccl_remote_error": "lost a peer: that one's process exited, or the network failed",
    "nccl_internal_error": "got an internal error from NCCL",
    "node_resource": "did not get shared memory, a queue or an interface from its node",
    "ib_error": "got an InfiniBand completion error{code}",
    "socket_error": "lost a network connection",
    "wait_timeout": "waited in vain for its peers",
    "store_timeout": "waited in vain for a key of the store",
    "store_unreachable": "could not connect to the store",
    "rendezvous_timeout": "waited in vain in the rendezvous",
    "init_timeout": "waited in vain for the other ranks to join{joined}",
    "heartbeat_stuck": "reports a watchdog that got stuck in a CUDA or NCCL call, or without the GIL",
    "mismatch": "called something else than the others",
    "missing_ranks": "did not come",
    "never_seen": "was never seen, and the others wait for it",
    "elsewhere": "looks elsewhere for the others, who wait for it",
    "launcher_kill": "got stopped by the launcher",
    "node_lost": "ended with its node",
    "other": "reports a failure",
}


def failure(case: Case, a: Accusation) -> Words:
    assert isinstance(a.detail, Failure)
    found = a.detail
    what = _WHAT[found.kind].format(code=_code(found), joined=f" ({found.detail} did)" if found.detail else "")
    named = case.names.ranks(a.ranks) if a.ranks else _whose(case, found)
    if found.kind == "mismatch" and not a.ranks:
        named, what = ranks_text(found.ranks) if len(found.ranks) > 1 else "the ranks", "called different things"
    operation = a.accused[0].operation if a.accused else numbered(found.operation or "", found.seq)
    inside = f" in {operation}" if operation else ""
    if a.kind == "unknown" and found.effect:
        inside += ": an effect, the cause is not in this evidence"
    peer = f"rank {found.peer_rank}" if found.peer_rank not in (None, *found.ranks) else found.peer_node
    around = f" (around rank {found.ranks[0]})" if len(found.ranks) == 1 and found.rank is None and not a.ranks else ""
    text = f"{what}{inside}{around}" + (f" (peer {peer})" if peer is not None else "")
    steps = link_steps(case, a.link) or [f"{named}: {step}" for step in (BY_FAILURE.get(found.kind),) if step]
    if not case.job.dumps and not case.job.under_run:
        steps = [SWITCH_ON, *steps] if a.kind == "unknown" else [*steps, SWITCH_ON]
    return Words(
        f"{ranks_text(a.ranks) if a.ranks else named} {text}",
        f"{sentence(named)} {text}: {short(found.text, 240)}",
        {x.rank: x.text or f"{what}{inside}" for x in a.accused},
        steps or [COLLECT],
    )


def _code(found: Failure) -> str:
    """An exit status with the signal behind it; other numbers as they are."""
    code = found.code
    if found.kind not in ("signal", "exit"):
        return "" if code is None else f" {code}"
    if code is None:
        return "a signal" if found.kind == "signal" else "a failure"
    number = -code if code < 0 else code - 128
    known = number in signal.valid_signals() and (code < 0 or code > 128)
    name = signal.Signals(number).name if known else ""
    return name if code < 0 and name else f"exit status {code}" + (f" ({name})" if name else "")


def _whose(case: Case, found: Failure) -> str:
    node = f" on {found.node}" if found.node is not None else ""
    pid = f", pid {found.pid}" if found.pid is not None else ""
    if found.rank is not None:
        return case.names.ranks([found.rank]) + ("" if found.rank in case.job.nodes else node) + pid
    if found.local_rank is not None:
        return f"local rank {found.local_rank}{node or ' of a node that the line does not name'}{pid}"
    if found.pid is not None:
        return f"the process with pid {found.pid}{node}"
    return f"a process{node}" if node else "a rank that the line does not name"
