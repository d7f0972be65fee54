"""Wordings of PyTorch, NCCL, Gloo, CUDA, launchers and engines that a reader of its own takes apart.

Their messages go on over several lines, or count together, so code reads them (`hangscope.reader.logs`). The rows say what
kind of failure comes out, which words lines of theirs hold, and an example: whether a large tree's files are looked at,
and the pages of docs/errors, follow from them.
"""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording


def _row(kind: FailureKind, library: str, words: tuple[str, ...], example: str, seen: str, page: str = "") -> Wording:
    return Wording(kind, "", words, example, seen, library=library, page=page)


READ_ELSEWHERE: tuple[Wording, ...] = (
    _row(
        FailureKind.OTHER,
        "PyTorch",
        ("Watchdog caught",),
        "[rank3]:[E1115 02:30:11.204 ProcessGroupNCCL.cpp:685] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600031 milliseconds before "
        "timing out.",
        "PyTorch 1.9-2.15; 2021-2026",
        "watchdog-caught-collective-operation-timeout",
    ),
    _row(
        FailureKind.HEARTBEAT_STUCK,
        "PyTorch",
        ("eartbeat monitor timed out",),
        "[rank2]:[F1115 02:40:11.204 ProcessGroupNCCL.cpp:1550] [PG ID 0 PG GUID 0(default_pg) Rank 2] [PG ID 0 PG GUID "
        "0(default_pg) Rank 2] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog "
        "hang. Heartbeat monitor timed out! Process will be terminated after dumping debug info.",
        "PyTorch 2.2-2.15; 2024-2026",
        "heartbeat-monitor-timed-out",
    ),
    _row(
        FailureKind.MISMATCH,
        "PyTorch",
        ("mismatch between collectives",),
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=3104, OpType=ALLREDUCE, TensorShape=[8], TensorDtypes=Float), but Rank 0 is "
        "running collective: CollectiveFingerPrint(SequenceNumber=3104, OpType=BROADCAST, TensorShape=[8], "
        "TensorDtypes=Float).",
        "PyTorch 1.11-2.15, TORCH_DISTRIBUTED_DEBUG=DETAIL; 2021-2026",
        "detected-mismatch-between-collectives-on-ranks",
    ),
    _row(
        FailureKind.STORE_UNREACHABLE,
        "PyTorch",
        ("client socket has",),
        "[E1115 02:30:11.204 socket.cpp:1011] [c10d] The client socket has timed out after 60000ms while trying to connect to "
        "(10.20.0.5, 29500).",
        "PyTorch 1.12-2.15; 2022-2026",
        "the-client-socket-has-timed-out",
    ),
    _row(
        FailureKind.NCCL_SYSTEM_ERROR,
        "NCCL",
        ("unhandled system error",),
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error (run with NCCL_DEBUG=INFO for details), "
        "NCCL version 2.21.5",
        "PyTorch 1.8-2.15; 2021-2026",
        "nccl-error-unhandled-system-error",
    ),
    _row(
        FailureKind.CUDA_ERROR,
        "NCCL",
        ("unhandled cuda error",),
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error (run with NCCL_DEBUG=INFO for details), "
        "NCCL version 2.21.5",
        "PyTorch 1.8-2.15; 2021-2026",
        "nccl-error-unhandled-cuda-error",
    ),
    _row(
        FailureKind.NCCL_REMOTE_ERROR,
        "NCCL",
        ("remote process exited",),
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1331, remote process exited or there was a "
        "network error, NCCL version 2.18.1",
        "PyTorch 2.0-2.15; 2023-2026",
        "nccl-error-remote-process-exited-or-there-was-a-network-error",
    ),
    _row(
        FailureKind.IB_ERROR,
        "NCCL",
        ("Got completion from",),
        "gpu-07:812:901 [2] transport/net_ib.cc:1298 NCCL WARN NET/IB: Got completion from peer 10.20.0.5<49214> with "
        "status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_3",
        "NCCL 2.10-2.30; 2021-2026",
        "got-completion-from-peer-with-status-12",
    ),
    _row(
        FailureKind.SAME_GPU,
        "NCCL",
        ("Duplicate GPU",),
        "gpu-07:812:812 [0] init.cc:1046 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 9b000",
        "NCCL 2.10-2.30; 2021-2026",
        "duplicate-gpu-detected",
    ),
    _row(
        FailureKind.SOCKET_ERROR,
        "Gloo",
        ("onnection closed by peer",),
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.20.0.5]:41110",
        "PyTorch 1.4-2.15; 2020-2026",
        "connection-closed-by-peer",
    ),
    _row(
        FailureKind.WAIT_TIMEOUT,
        "Gloo",
        ("Timed out waiting",),
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
        "operation to complete",
        "PyTorch 1.4-2.15; 2020-2026",
        "timed-out-waiting-for-recv-operation-to-complete",
    ),
    _row(
        FailureKind.SIGNAL,
        "torchrun",
        ("failed (exitcode",),
        "E1115 15:10:49.013000 8190 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 2 "
        "(pid: 819025) of binary: /usr/bin/python3",
        "PyTorch 1.9-2.15; 2021-2026",
        "failed-exitcode-9-local-rank",
    ),
    _row(
        FailureKind.HOST_OOM,
        "Slurm",
        ("oom_kill", "oom-kill"),
        "slurmstepd: error: Detected 1 oom_kill event in StepId=48121.0. Some of the step tasks have been OOM Killed.",
        "Slurm 20-25; 2020-2026",
        "detected-1-oom-kill-event",
    ),
    _row(
        FailureKind.NODE_FAILED,
        "Slurm",
        ("Node failure on",),
        "salloc: error: Node failure on worker-1",
        "Slurm 20-25, srun and salloc; soperator#854; 2020-2026",
    ),
    _row(
        FailureKind.XID,
        "NVIDIA",
        ("NVRM: Xid",),
        "[1234567.891] NVRM: Xid (PCI:0000:9d:00): 79, pid=81233, name=python3, GPU has fallen off the bus.",
        "NVIDIA drivers 418-580; 2018-2026",
        "xid-79-gpu-has-fallen-off-the-bus",
    ),
    _row(
        FailureKind.ENGINE_WAITS,
        "vLLM",
        ("cast block",),
        "INFO 11-18 02:30:11 [shm_broadcast.py:495] No available shared memory broadcast block found in 60 seconds. This "
        "typically happens when some processes are hanging or doing some time-consuming work (e.g. compilation, weight/kv "
        "cache quantization).",
        "vLLM 0.6-0.21; 2024-2026",
        "no-available-shared-memory-broadcast-block-found",
    ),
    _row(
        FailureKind.NODE_LOST,
        "Kubernetes",
        ("NodeNotReady", "NodeLost", "NodeShutdown", "became unreachable"),
        "  Warning  NodeNotReady  3m   node-controller  Node is not ready",
        "kubernetes 1.14-1.30; 2019-2026",
    ),
    _row(
        FailureKind.EVICTED,
        "Kubernetes",
        ("Preempt",),
        "  Normal   Preempted  3m   default-scheduler  Preempted by pod 5f3a7e0c on node gpu-3",
        "kubernetes 1.20-1.30; 2021-2026",
    ),
    _row(
        FailureKind.EVICTED,
        "Kubernetes",
        ("low on resource",),
        "The node was low on resource: ephemeral-storage. Threshold quantity: 100Gi, available: 90Gi.",
        "kubernetes 1.14-1.30; 2019-2026",
    ),
    _row(
        FailureKind.HOST_OOM,
        "Kubernetes",
        ("OOMKilled",),
        "      Reason:       OOMKilled",
        "kubernetes 1.14-1.30; 2019-2026",
    ),
    _row(
        FailureKind.KV_TRANSFER,
        "Mooncake",
        ("transfer timeout",),
        "E1118 02:30:11.204 812 transfer_engine_py.cpp:511] Sync batch data transfer timeout after 30 s",
        "Mooncake 0.3; 2025-2026",
    ),
    _row(
        FailureKind.ENGINE_STUCK,
        "SGLang",
        ("atchdog timeout",),
        "[2026-10-21 03:12:44 TP2] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        "SGLang 0.4-0.5; 2025-2026",
    ),
    _row(
        FailureKind.MISSING_RANKS,
        "PyTorch",
        ("didn't join collective", "didn't finish collective"),
        "\t   - [2] finished collective #15, but didn't join collective #16 (count from 1)",
        "PyTorch 1.13-2.15, TORCH_NCCL_DESYNC_DEBUG; 2022-2026",
    ),
    _row(
        FailureKind.OTHER,
        "PyTorch",
        ("] started ", "] finished "),
        "\t     [0, 1, 3] started ALLREDUCE",
        "PyTorch 1.13-2.15, TORCH_NCCL_DESYNC_DEBUG; 2022-2026",
    ),
    _row(
        FailureKind.OTHER,
        "PyTorch",
        ("monitoredBarrier",),
        "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0",
        "PyTorch 1.9-2.15; 2021-2026",
    ),
    _row(
        FailureKind.MISMATCH,
        "PyTorch",
        ("appears not to match",),
        "[3]: params[0] in this process with sizes [4] appears not to match sizes of the same param in process 0.",
        "PyTorch 1.9-2.15; 2021-2026",
    ),
    _row(
        FailureKind.EXCEPTION,
        "Gloo",
        ("enforce fail at",),
        "  what():  [enforce fail at third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 32768 "
        "vs 16384. Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
        "PyTorch 1.4-2.15; 2020-2026",
    ),
    _row(
        FailureKind.LAUNCHER_KILL,
        "DeepSpeed",
        ("Killing subprocess",),
        "[2026-11-15 13:11:27,879] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 13266",
        "DeepSpeed 0.3-0.18; 2021-2026",
    ),
    _row(
        FailureKind.SIGNAL,
        "absl",
        ("*** SIG",),
        "*** SIGSEGV (@(nil)), see go/stacktraces#s15 received by PID 11743 (TID 12350) on cpu 17; stack trace: ***",
        "absl's and glog's failure handlers, in JAX, TPU and Ray; 2019-2026",
    ),
    _row(
        FailureKind.SIGNAL,
        "Kubernetes",
        ("Exit Code: ",),
        "      Exit Code:    137",
        "kubectl describe pod; 2018-2026",
    ),
    _row(
        FailureKind.EXCEPTION,
        "vLLM",
        ("encountered a fatal error",),
        "(EngineCore_DP0 pid=902) ERROR 10-21 03:15:12 [core.py:936] EngineCore encountered a fatal error.",
        "vLLM 0.8-0.21; 2025-2026",
    ),
    _row(
        FailureKind.CANCELLED,
        "hangscope",
        ("hangscope: ",),
        "hangscope: --on-hang kill: rank 1 gets SIGTERM, and SIGKILL after 3 s",
        "what `run` prints into a job's log",
    ),
)
