"""What to do next, as far as it does not depend on the job: sentences that the wording of verdicts picks from."""

from __future__ import annotations

SWITCH_ON = (
    "switch the flight recorder on: put `hangscope run --` in front of the launch command, or set "
    "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_FR_BUFFER_SIZE=2000 (entries, not bytes) and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1; `hangscope env` prints the full set"
)
COLLECT = "collect the dumps and logs of all ranks: `hangscope collect` brings the nodes together"
UNDER_RUN = "run under `hangscope run`"
ANNOUNCE = (
    "where it is on purpose (evaluation, a checkpoint), announce it in the code with `hangscope.expect_pause()`, or "
    "give a longer --stall-after"
)
KERNEL = (
    "a GPU",
    "whether a kernel never started or bytes do not arrive is not recorded (timing was off)",
    "set TORCH_NCCL_ENABLE_TIMING=1, so that the recorder tells started from scheduled",
)
ROOT = (
    "another root or peer",
    "the root of a call is not recorded, and one rank may have passed another",
    "code: print src or dst of this call on every rank, they must agree; then look at the network",
)
"""Where everybody is inside an operation: what may be wrong beside the network, why it is not known, what to do."""

_KEY = "code: see which rank sets the key that the others wait for, and what it does instead"
_PEERS = (
    "code: compare sends and receives on every rank: their order, peers, tags and number; somebody has to send first"
)
_STORE = "see whether all ranks pass the same MASTER_ADDR, MASTER_PORT and world_size, and reach each other"
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

BY_FAILURE = {
    "cuda_error": "run with CUDA_LAUNCH_BLOCKING=1 to see the failing call; nvidia-smi -q, dmesg | grep -i xid",
    "xid": "drain the node, then nvidia-smi -q, dmesg | grep -i xid and a GPU reset",
    "ecc": "drain the node, then nvidia-smi -q -d ECC,ROW_REMAPPER and a GPU reset",
    "gpu_lost": "drain the node, then nvidia-smi, dmesg | grep -i -E 'xid|nvrm' and a restart of the node",
    "gpu_oom": "lower the batch or the sequence on this rank; see whether its data is larger than the others'",
    "host_oom": "dmesg | grep -i oom on the node; lower its memory or its loaders' workers",
    "signal": "dmesg | grep -i -E 'oom|xid|segfault' on the node, the scheduler's log",
    "exit": "read its own log, up to its first error",
    "exception": "read its own log, up to its first error",
    "nccl_system_error": "NCCL_DEBUG=INFO names the interface; check that it is up and that peers reach it",
    "nccl_remote_error": "look for the rank that ended first: its log, its exit status, dmesg on its node",
    "node_resource": "df -h /dev/shm and ulimit -l, -n there; in containers --shm-size or --ipc=host",
    "ib_error": "ibstat, rdma statistic and the switch port's counters on both ends",
    "socket_error": "look for the peer that went away, then at the network between the two nodes",
    "store_unreachable": "see whether the process behind MASTER_ADDR runs, and whether this node reaches MASTER_PORT",
    "store_timeout": "see which rank never set the key: one that is late, or ended, before this point",
    "rendezvous_timeout": "see which node did not start, and whether all reach MASTER_ADDR and MASTER_PORT",
    "init_timeout": "see which rank or node did not start, and whether all reach MASTER_ADDR and MASTER_PORT",
    "mismatch": "compare the calls of the named ranks with the others'",
    "missing_ranks": "see what the named ranks do instead",
    "elsewhere": "give all ranks the same MASTER_ADDR and MASTER_PORT, or init_method",
    "never_seen": (
        "see why it was not started, or ended at once; or lower world_size (WORLD_SIZE, --ntasks) to what is started"
    ),
    "node_lost": "the scheduler's log and the node's health checks",
}
