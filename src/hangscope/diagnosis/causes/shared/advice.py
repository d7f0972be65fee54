"""What to do next, as far as it does not depend on the cause: sentences that the words of verdicts pick from."""

import signal

from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.code_lines import line, user_frame
from hangscope.model import GLOO_SIZE, FailureKind, PythonError

SWITCH_ON = (
    "switch the flight recorder on: put `hangscope run --` in front of the launch command, or set "
    "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_FR_BUFFER_SIZE=2000 (entries, not bytes) and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1; `hangscope env` prints the full set"
)
UNDER_RUN_GLOO = "put `hangscope run --` in front of the launch command, so that stacks and calls are saved in time"
COLLECT = "collect the dumps and logs of all ranks: `hangscope collect` gathers them from all nodes"
SAME_GROUPS = "code: have every rank make the same groups in the same order, and none of them in a branch"
FIND_AGENT = FailureKind.AGENT_SILENT.step
UNDER_RUN = "run under `hangscope run`"
_KEY = "code: find the rank that should set the key that the others are waiting for, and what it is doing instead"
_PEERS = (
    "code: compare sends and receives on every rank: their order, peers, tags and number; one side has to send first"
)
_STORE = "check that all ranks pass the same MASTER_ADDR, MASTER_PORT and world_size and can reach each other"
BY_CALL = {
    "rendezvous": _STORE,
    "init_process_group": (
        f"{_STORE}; after a restart by torchrun, set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: the store it shares between "
        "starts still has the addresses of ranks that are gone"
    ),
    **dict.fromkeys(("store.get", "store.wait", "wait_for_workers"), _KEY),
    **dict.fromkeys(("recv", "send", "batch_isend_irecv", "w.wait", "recv_object_list", "send_object_list"), _PEERS),
}
"""By the call that everybody waits in."""


def recorder_was_off(case: Case) -> bool:
    """Whether a log says that the recorder was off: then that is the one thing to change."""
    return bool(case.job.facts.recorder_off) and not case.job.dumps


def recording_would_tell(case: Case, *, hang: bool) -> bool:
    """Whether a recording of collectives would say more: about ranks that wait for each other, and not about a process
    that ended by itself, a GPU that failed, or a job that runs."""
    return hang or any(report.kind == "timeout" for report in case.job.facts.watchdog)


def switch_on(case: Case) -> str:
    """How to have more recorded next time: NCCL's variables say nothing to a job on Gloo."""
    return UNDER_RUN_GLOO if runs_on_gloo(case) else SWITCH_ON


def runs_on_gloo(case: Case) -> bool:
    """Whether its recordings or its errors are Gloo's, and nothing of NCCL's was seen."""
    facts = case.job.facts
    of_nccl = any("gloo" not in event.text.lower() for event in facts.transport)  # Gloo loses connections, too
    if facts.communicators or facts.blackboxes or of_nccl or "nccl" in facts.versions:
        return False
    backends = {dump.backend for dumps in case.job.dumps.values() for dump in dumps if dump.backend}
    errors = any(error.type == GLOO_SIZE or "gloo" in error.message[:2000].lower() for error in facts.errors)
    reports = any("gloo" in (report.error or "")[:2000].lower() for report in facts.watchdog)
    return backends == {"gloo"} or (not backends and (errors or reports))


_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_CRASHED = tuple(
    sign * number + base
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
    for sign, base in ((-1, 0), (1, 128))
)
_INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)
_ASKED = (-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGHUP, 128 + signal.SIGHUP)
_ABORTED = (-signal.SIGABRT, 128 + signal.SIGABRT)


def ended_step(who: str, status: int | None) -> str:
    """Where to look for why a rank ended, by how it did: the kernel knows of some ends alone."""
    if status == 0:
        return f"code: find out why {who} finished before the others: fewer batches, an early return, sys.exit()"
    if status in _KILLED:
        return f"node: find out what killed {who}: dmesg | grep -i oom, its memory limit, the scheduler's log"
    if status in _CRASHED:
        return f"code: find out where {who} crashed: the last lines of its log, dmesg | grep -i segfault, a core"
    if status in _ABORTED:
        return f"code: read what {who} printed last: it aborted by itself (an assertion, an uncaught C++ exception)"
    if status in _INTERRUPTED:
        return f"code: find out who interrupted {who}: Ctrl-C, kill -INT, or a KeyboardInterrupt that the code raises"
    if status in _ASKED:
        return f"node: find out who asked {who} to end: the scheduler's log (preemption, time limit), a closed shell"
    if status is not None and 0 < status < 128:
        return f"code: read what {who} printed last: it ended by itself with status {status}"
    return f"node: find out what terminated {who}: dmesg | grep -i -E 'oom|xid|segfault', the scheduler's log"


def raised_step(who: str, error: PythonError) -> str:
    """The line that raised, as far as the user can change it."""
    frame = user_frame(error.frames[::-1]) or error.frames[-1]
    return f"code: {error.type} at {line(frame)} on {who}"


def out_of_memory_step(who: str) -> str:
    return f"node: {who} ran out of host memory: dmesg | grep -i oom; reduce its memory use or its data loader workers"
