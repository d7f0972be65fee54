"""JAX on several hosts: the coordination service, XLA's rendezvous, its NCCL and its Gloo.

A task of the coordination service is a process of the job by the number that it gave to `jax.distributed.initialize`:
that number is its rank here. Replicas, partitions and the ranks of a clique count devices and are no ranks.
Read from jaxlib 0.4.20, 0.4.35 and 0.10.2, and printed by real jobs of three processes on CPU with 0.10.2.
"""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

_TASK = r"(?:/job:(?:jax_worker|pjrt_\w+)/(?:replica:\d+/)?task:)"
_LISTED = rf"^\s*(?:{_TASK}(?P<task>\d{{1,6}})|(?P<task2>\d{{1,6}}))\s*$|# of tasks that reached the barrier: (?P<came>\d+/\d+)"

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.MISSING_RANKS,
        r"Barrier timed out\. (?:Barrier_id|Id): (?P<op>[^\s:]{1,200}?)(?:::\d+)?\. ",
        ("Barrier timed out",),
        "DEADLINE_EXCEEDED: Barrier timed out. Id: after_restore::0. This usually happens because a task triggered the "
        "barrier too early or too slowly. Please look at the task logs (both timed out and first task) to debug "
        "further.\n# of tasks that reached the barrier: 2/4.\nThe first task at the barrier: 0. Some timed out task "
        "names:\n2\n3\n",
        "jaxlib 0.4.20 (Barrier_id, task names), 0.4.35 and 0.10.2; llama-2-jax, levanter; 2023-2026",
        library="JAX",
        operation="the barrier {op}",
        below=_LISTED,
        most_below=70,
        explains=True,
        names_ranks=True,
        page="jax-barrier-timed-out",
    ),
    Wording(
        FailureKind.HEARTBEAT_LOST,
        r"tasks are unhealthy \(stopped sending heartbeats\):",
        ("stopped sending heartbeats",),
        "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):\n1\nThe tasks have crashed. Check "
        "the task logs for an earlier error, or scheduler events (e.g. preemption, eviction) to debug further.\n",
        "jaxlib 0.4.20-0.10.2; a process killed, and one stopped, in jobs of our own; 2026",
        library="JAX",
        below=_LISTED,
        most_below=70,
        explains=True,
        names_ranks=True,
        page="jax-tasks-are-unhealthy",
    ),
    Wording(
        FailureKind.HEARTBEAT_LOST,
        rf"Task (?:{_TASK})?(?P<task>\d{{1,6}}) heartbeat timeout",
        ("heartbeat timeout",),
        "E1118 21:36:24.690158 26091 coordination_service.cc:1520] INTERNAL: Barrier failed because: task is set to ERROR: "
        "UNAVAILABLE: Task 1 heartbeat timeout. This indicates that the remote task has failed, got preempted, or crashed "
        "unexpectedly.",
        "jaxlib 0.4.20 (/job:jax_worker/replica:0/task:1), 0.10.2; jax#23599; 2024-2026",
        library="JAX",
        explains=True,
        names_ranks=True,
    ),
    Wording(
        FailureKind.RESTARTED,
        rf"{_TASK}?(?P<task>\d{{1,6}}) unexpectedly tried to connect with a different incarnation",
        ("different incarnation",),
        "ABORTED: /job:jax_worker/replica:0/task:3 unexpectedly tried to connect with a different incarnation. It has "
        "likely restarted.",
        "jaxlib 0.4.20-0.10.2",
        library="JAX",
        explains=True,
        names_ranks=True,
    ),
    Wording(
        FailureKind.COORDINATOR_LOST,
        r"Failed to send RPC to coordination service\. Either the leader|Leader incarnation ID mismatch"
        r"|missing heartbeat response from the coordinator",
        ("RPC to coordination service", "Leader incarnation", "response from the coordinator"),
        "UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was preempted/died/restarted "
        "unexpectedly or this task is experiencing network issues.",
        "jaxlib 0.4.20-0.10.2; jax#39095; 2023-2026",
        library="JAX",
        detail="JAX's coordination service, which runs in process 0",
        effect=True,
        explains=True,
        page="jax-failed-to-send-rpc-to-coordination-service",
    ),
    Wording(
        FailureKind.PORT_TAKEN,
        r"Failed to add port to server: No address added out of total \d+ resolved for '(?P<name>\S{1,80}):(?P<port>\d{1,5})'",
        ("Failed to add port to server",),
        "E1119 22:13:22.912737   21419 add_port.cc:83] Failed to add port to server: No address added out of total 1 resolved "
        "for '[::]:39369'",
        "jaxlib 0.10.2; process 0 of a job of our own, whose coordinator's port was taken; 2026",
        library="JAX",
        detail="port {port}",
        explains=True,
        of_writer=True,
    ),
    Wording(
        FailureKind.INIT_TIMEOUT,
        r"DEADLINE_EXCEEDED: (?P<what>Connect\(\) timed out after \S{1,20} with \d{1,6} attempts)",
        ("Connect() timed out after",),
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Connect() timed out after 0 with 1 attempts. Most recent "
        "failure was: DEADLINE_EXCEEDED: Deadline Exceeded",
        "jaxlib 0.3; alpa#826; 2022-2023",
        library="JAX",
        detail="{what}",
        effect=True,
        explains=True,
    ),
    Wording(
        FailureKind.INIT_TIMEOUT,
        r"waited too long for some tasks to show up|RPC: /(?:xla\.coordination|tensorflow)\.CoordinationService/RegisterTask",
        ("waited too long for some tasks", "CoordinationService/RegisterTask"),
        "DEADLINE_EXCEEDED: Failed to connect to distributed JAX controller: waited too long for some tasks to show up. "
        "This may be due to 1) some tasks crashed earlier before connecting, 2) some tasks were never scheduled, or 3) "
        "scheduling delays.",
        "jaxlib 0.4.35, 0.10.2; a job of our own in which one process never came; 2026",
        library="JAX",
        effect=True,
        explains=True,
    ),
    Wording(
        FailureKind.OTHER,
        r"Terminating process because (?:the JAX distributed service detected fatal errors|the coordinator detected "
        r"missing heartbeats)|Polled an error from coordination service|Shutdown barrier (?:in coordination service )?has failed"
        r"|Barrier failed (?:because|beacuse) (?:a task|service)|Stopping coordination service as",
        (
            "Terminating process because",
            "Polled an error from",
            "Shutdown barrier",
            "Barrier failed be",
            "Stopping coordination",
        ),
        "F0929 17:42:48.594200 1044529 client.h:77] Terminating process because the JAX distributed service detected fatal "
        "errors. This most likely indicates that another task died; see the other task logs for more details.",
        "jaxlib 0.4.20-0.10.2; 2023-2026",
        library="JAX",
        detail="JAX ended it because another process failed",
        effect=True,
        explains=True,
    ),
    Wording(
        FailureKind.WAIT_TIMEOUT,
        r"(?P<how>Termination timeout for|This thread has been waiting for) `(?P<op>[^`]{1,400})`"
        r"(?: of (?P<s>\d+) seconds exceeded| for (?P<s2>\d+) seconds and may be stuck)",
        ("Termination timeout for", "may be stuck"),
        "E external/xla/xla/service/rendezvous.cc:38] [id=3] This thread has been waiting for `initialize clique for rank "
        "6; clique=devices=[0,1,2,3]; stream=0` for 10 seconds and may be stuck. Expected 8 threads to join the "
        "rendezvous, but not all of them arrived on time.",
        "jaxlib 0.4.20-0.10.2; jax#22740; 2024-2026",
        library="JAX",
        detail="a rendezvous of XLA's threads",
        effect=True,
        warns=True,
    ),
    Wording(
        None,
        r"This thread is unstuck waiting for `",
        ("thread is unstuck",),
        "E external/xla/xla/service/rendezvous.cc:43] [id=3] This thread is unstuck waiting for `initialize clique for "
        "rank 6` after 12s. Perhaps the timeout is too short.",
        "jaxlib 0.10.2",
        library="JAX",
        recovers=True,
    ),
    Wording(
        FailureKind.CUDA_ERROR,
        r"NCCL operation (?P<call>nccl\w+)\(.{0,200}?failed: (?P<what>unhandled cuda error)",
        ("NCCL operation",),
        "INTERNAL: external/xla/xla/service/gpu/nccl_utils.cc:275: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) "
        "failed: unhandled cuda error",
        "jaxlib 0.4; jax#17399, pytorch/xla; 2021-2024",
        library="JAX",
        detail="{call}: {what}",
        of_writer=True,
    ),
    Wording(
        FailureKind.NCCL_SYSTEM_ERROR,
        r"NCCL operation (?P<call>nccl\w+)\(.{0,200}?failed: (?P<what>unhandled system error)",
        ("NCCL operation",),
        "INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "jaxlib 0.2-0.4; vision_transformer#127, jax#22747; 2021-2024",
        library="JAX",
        detail="{call}: {what}",
        of_writer=True,
    ),
    Wording(
        FailureKind.NCCL_REMOTE_ERROR,
        r"NCCL operation (?P<call>nccl\w+)\(.{0,200}?failed: (?P<what>remote process exited)",
        ("NCCL operation",),
        "INTERNAL: NCCL operation ncclCommGetAsyncError(comm, &err) failed: remote process exited or there was a network "
        "error",
        "jaxlib 0.4",
        library="JAX",
        detail="{call}: {what}",
        effect=True,
        of_writer=True,
    ),
    Wording(
        FailureKind.NCCL_INTERNAL_ERROR,
        r"NCCL operation (?P<call>nccl\w+)\(.{0,200}?failed: (?P<what>internal error|invalid usage|invalid argument)",
        ("NCCL operation",),
        "INTERNAL: external/xla/xla/service/gpu/nccl_utils.cc:305: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) "
        "failed: internal error - please report this issue to the NCCL developers.",
        "jaxlib 0.4; LWM#42; 2024",
        library="JAX",
        detail="{call}: {what}",
        of_writer=True,
    ),
    Wording(
        FailureKind.GPU_OOM,
        r"RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate request|XLA:TPU compile permanent error.{0,60}Ran out of memory)",
        ("RESOURCE_EXHAUSTED",),
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        "jaxlib 0.4; 2022-2026",
        library="JAX",
        of_writer=True,
    ),
)
