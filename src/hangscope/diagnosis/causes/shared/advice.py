"""What to do next, as far as it does not depend on the cause: sentences that the words of verdicts pick from."""

from hangscope.diagnosis.case import Case
from hangscope.model import FailureKind

SWITCH_ON = (
    "switch the flight recorder on: put `hangscope run --` in front of the launch command, or set "
    "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_FR_BUFFER_SIZE=2000 (entries, not bytes) and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1; `hangscope env` prints the full set"
)
COLLECT = "collect the dumps and logs of all ranks: `hangscope collect` gathers them from all nodes"
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


def out_of_memory_step(who: str) -> str:
    return f"node: {who} ran out of host memory: dmesg | grep -i oom; reduce its memory use or its data loader workers"
