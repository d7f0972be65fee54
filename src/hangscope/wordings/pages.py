"""What docs/errors says of the commonest messages: what each means, what it does not, and what to run.

The pages are made of these and of the catalogue's rows by `python tests/error_pages.py --write`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """One message. `title` is its text as people paste it; `slug` is the page's name, and that of its row."""

    slug: str
    title: str
    means: str
    means_not: str
    run: tuple[str, ...]
    then: str


_ALL_LOGS = "hangscope diagnose logs/"
_UNDER = "hangscope run -- torchrun --nproc-per-node 8 train.py"
_SNAPSHOT = "hangscope snapshot"

PAGES: tuple[Page, ...] = (
    Page(
        "watchdog-caught-collective-operation-timeout",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=…, OpType=ALLREDUCE, …)",
        "A rank launched a collective and it did not complete within the group's timeout (10 minutes by default). The rank "
        "that prints it waited.",
        "It does not say who is at fault: the rank that prints it first is nearly always a victim. The culprit is a rank that "
        "never launched the operation, launched another one, or whose GPU or link stopped.",
        (_ALL_LOGS, _UNDER),
        "The logs name the operation; who did not come stands in the flight recorder's dumps, which `run` switches on.",
    ),
    Page(
        "heartbeat-monitor-timed-out",
        "Heartbeat monitor timed out! Process will be terminated after dumping debug info.",
        "PyTorch's watchdog thread has not moved for `TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC` (10 minutes): it is inside a call of "
        "CUDA or NCCL that does not return, or waits for Python's GIL.",
        "It does not mean that a collective timed out on this rank, nor that raising the heartbeat's timeout helps.",
        (_SNAPSHOT, _ALL_LOGS),
        "The stack of the rank while it is stuck says which call it is.",
    ),
    Page(
        "detected-mismatch-between-collectives-on-ranks",
        "Detected mismatch between collectives on ranks",
        "With `TORCH_DISTRIBUTED_DEBUG=DETAIL`, two ranks met in one collective with different operations, shapes or types.",
        "It does not say which of the two is wrong: the one that left out or added a call earlier is.",
        (_ALL_LOGS, _UNDER),
        "Dumps of all ranks show the first call that differs, and the line of code of each side.",
    ),
    Page(
        "the-client-socket-has-timed-out",
        "The client socket has timed out after 60000ms while trying to connect to (…, 29500)",
        "This process could not reach the store of rank 0 at `MASTER_ADDR:MASTER_PORT`: nothing listens there, a firewall or "
        "a route is in the way, or rank 0 has already ended.",
        "It is no error of NCCL's and not yet a hang: no collective has run.",
        (_ALL_LOGS, "hangscope doctor"),
        "Look at the log of rank 0 first, then at the address that each rank was given.",
    ),
    Page(
        "nccl-error-unhandled-system-error",
        "NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "A call to the operating system failed inside NCCL: a socket, shared memory, a network interface.",
        "It is not the cause itself: NCCL's own last line, above or below it, says what failed and often names the peer.",
        ("NCCL_DEBUG=INFO " + _UNDER, _ALL_LOGS),
        "Where many ranks print it, the one that prints it first, or does not print it at all, comes first.",
    ),
    Page(
        "nccl-error-unhandled-cuda-error",
        "NCCL error: unhandled cuda error",
        "A CUDA call failed inside NCCL: out of memory while it set up, an earlier error of a kernel, a GPU that is gone.",
        "It is not a network error, and the peers that report a lost connection behind it are its victims.",
        ("NCCL_DEBUG=INFO " + _UNDER, "nvidia-smi -q | grep -i -A2 xid"),
        "Look for an Xid in the kernel's log of that node at the same time.",
    ),
    Page(
        "nccl-error-remote-process-exited-or-there-was-a-network-error",
        "NCCL error: remote process exited or there was a network error",
        "This rank lost a peer: the peer's process ended, or the connection to it broke.",
        "The rank that prints it is a victim. It does not say which of the two happened.",
        (_ALL_LOGS,),
        "Find the rank that ended first: its log, its exit status, dmesg on its node.",
    ),
    Page(
        "got-completion-from-peer-with-status-12",
        "NET/IB : Got completion from peer … with status=12",
        "The network adapter got no acknowledgement from the peer after all retries (IBV_WC_RETRY_EXC_ERR): the link, the "
        "switch, the route or the peer itself is gone.",
        "The rank that prints it is one end of the pair and not the culprit. With NCCL 2.26 and 2.27 it may be the only trace "
        "of a dead link, as PyTorch then reports a plain timeout minutes later.",
        (_ALL_LOGS, "hangscope collect --hosts gpu-07,gpu-08"),
        "Compare the counters of both ports; a peer whose process ended explains it as well.",
    ),
    Page(
        "duplicate-gpu-detected",
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device …",
        "Two ranks of one node use the same GPU. NCCL refuses that.",
        "It is no hardware error.",
        ("hangscope doctor",),
        "Give each rank a GPU of its own: `torch.cuda.set_device(local_rank)`, or `CUDA_VISIBLE_DEVICES`.",
    ),
    Page(
        "connection-closed-by-peer",
        "[gloo/transport/tcp/pair.cc] Connection closed by peer",
        "A Gloo group lost a peer: its process ended, mostly a moment before.",
        "The rank that prints it is a victim, and the address is that of the one that is gone, or of one that gave up too.",
        (_ALL_LOGS,),
        "Find the rank that says something else, or nothing.",
    ),
    Page(
        "timed-out-waiting-for-recv-operation-to-complete",
        "[gloo/transport/tcp/unbound_buffer.cc] Timed out waiting 1800000ms for recv operation to complete",
        "A rank waited in a collective of Gloo's (a barrier, an object gathered on the CPU) for a peer that never came.",
        "It does not name the peer, and it is no network error.",
        (_ALL_LOGS, _UNDER),
        "The rank without this line is the one to look at.",
    ),
    Page(
        "failed-exitcode-9-local-rank",
        "failed (exitcode: -9) local_rank: 2 (pid: …) of binary",
        "torchrun saw a worker end by SIGKILL. Nothing inside of the process can have sent it: it was the kernel, for memory, "
        "or a person or scheduler.",
        "The local rank is the rank only on one node. torchrun reports the first worker that it noticed, not always the first "
        "that ended.",
        ("dmesg | grep -i oom", _ALL_LOGS),
        "Without a line of the kernel's, ask the scheduler and the container's limits.",
    ),
    Page(
        "detected-1-oom-kill-event",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=…",
        "The kernel killed a process of the step because the step used more memory than it had asked for.",
        "It does not say which process: a data loader's worker may be the one that was killed, and the rank dies later of "
        "that.",
        (_ALL_LOGS, "sacct -j 48121 --format=JobID,MaxRSS,State"),
        "Raise --mem, or lower the number of data loader workers.",
    ),
    Page(
        "xid-79-gpu-has-fallen-off-the-bus",
        "NVRM: Xid (PCI:0000:9d:00): 79, GPU has fallen off the bus",
        "The driver can no longer reach the GPU over PCIe. All processes that use it hang or fail.",
        "It is no error of the program, and a restart of the job alone does not mend it.",
        ("hangscope exclude hangs/job-48121",),
        "Drain the node; a restart of the machine brings the GPU back, or shows that it is broken.",
    ),
    Page(
        "no-available-shared-memory-broadcast-block-found",
        "No available shared memory broadcast block found in 60 seconds",
        "vLLM's engine waits for a worker to read its messages. While workers compile, tune or load it is printed for minutes "
        "by healthy servers.",
        "It is not a hang by itself, and it does not name the worker.",
        (_SNAPSHOT,),
        "If no request is answered any more, the stacks of the workers say which one is not in a collective.",
    ),
    Page(
        "jax-barrier-timed-out",
        "DEADLINE_EXCEEDED: Barrier timed out. Id: …",
        "Some processes of a JAX job did not come to a barrier of the coordination service in time. Below the message stand "
        "the tasks that did not come: their numbers are the `process_id` of `jax.distributed.initialize`.",
        "The process that prints it waited. A task that did not come may have crashed, be late, or never have been started.",
        (_ALL_LOGS,),
        "Read the log of the first task in the list, from its end.",
    ),
    Page(
        "jax-tasks-are-unhealthy",
        "The following tasks are unhealthy (stopped sending heartbeats)",
        "JAX's coordination service got no sign of these processes for its heartbeat timeout (100 s by default). They "
        "ended, were stopped, or cannot be reached.",
        "A process that waits for a collective still sends heartbeats: one that is only late is not in this list.",
        (_ALL_LOGS,),
        "Look at the exit status of that process, and at dmesg and the scheduler's events of its node.",
    ),
    Page(
        "jax-failed-to-send-rpc-to-coordination-service",
        "Failed to send RPC to coordination service. Either the leader task was preempted/died/restarted unexpectedly or …",
        "This process lost the coordination service, which runs inside of process 0: that one ended, or the network to it.",
        "It does not say which of the two, and the process that prints it is a victim.",
        (_ALL_LOGS,),
        "Read the log of process 0.",
    ),
    Page(
        "horovod-one-or-more-tensors-were-submitted",
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks",
        "Horovod's stall inspector, in rank 0: some ranks have submitted a tensor and the others have not, for 60 seconds.",
        "It is not the end of the job: a rank that validates or writes a checkpoint comes later. The lines below say which "
        "ranks are missing.",
        (_ALL_LOGS, _SNAPSHOT),
        "The missing ranks' stacks say what they do instead.",
    ),
    Page(
        "ei0002",
        "EI0002: The wait execution of the Notify register times out",
        "Ascend: an operation of HCCL's waited for a peer's notification for `HCCL_EXEC_TIMEOUT` (1800 s).",
        "The remote rank in the line is counted in its group, and may itself have waited. Where HCCL prints a `Cluster "
        "Exception Location`, that is the root.",
        (_ALL_LOGS,),
        "Collect the plog of every process: `~/ascend/log`.",
    ),
    Page(
        "ei0006",
        "EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time",
        "Ascend: HCCL could not connect to a peer within `HCCL_CONNECT_TIMEOUT` (120 s).",
        "The rank that prints it waited: the peer is late, has ended, or made no such call.",
        (_ALL_LOGS,),
        "The rank without this line, or with another error before it, is the one to look at.",
    ),
    Page(
        "hw-exception-by-gpu-node",
        "HW Exception by GPU node-… reason :GPU Hang",
        "AMD: the driver saw that a GPU no longer moves, and ended all processes that use it.",
        "The number is that of the KFD node, not a rank and not the GPU's index. `Aborted` behind it is its effect.",
        ("dmesg | grep amdgpu",),
        "One GPU that appears again and again is broken; one kernel that appears again and again is a bug.",
    ),
    Page(
        "orte-has-lost-communication-with-a-remote-daemon",
        "ORTE has lost communication with a remote daemon",
        "mpirun lost its daemon on the node named `Remote daemon`: the node or its container is gone, or the network to it.",
        "It does not say that a rank failed; the ranks there went with the daemon.",
        (_ALL_LOGS,),
        "Look at that node: dmesg (out of memory), the pod's events.",
    ),
    Page(
        "transport-retry-count-exceeded",
        "Transport retry count exceeded on mlx5_0:1/IB",
        "UCX: the network adapter got no acknowledgement from the peer after all retries.",
        "The host in front is one end; the other end is in the line below (`dgid` or `rlid`). A peer that ended looks the same.",
        (_ALL_LOGS, "hangscope collect --hosts gpu-07,gpu-08"),
        "Compare both ports' counters, and look whether the peer's process was still there.",
    ),
    Page(
        "nfs-server-not-responding",
        "nfs: server … not responding, still trying",
        "The kernel waits for a file server. Every process that reads or writes there stands still, and cannot be killed.",
        "It is no error of the job, and it ends by itself once the server answers (`nfs: server … OK`).",
        (_SNAPSHOT,),
        "Check the server and the network to it.",
    ),
)
