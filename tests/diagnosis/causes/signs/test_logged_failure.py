"""Pasted logs, end to end, a class of failures each: the first cause and not the last word, and the line that says so."""
# ruff: noqa: E501  (log lines are quoted whole)

from __future__ import annotations

import pytest

from kits.pasted_logs import short, shown, timeout, verdict_on

AGENT = "site-packages/torch/distributed/elastic"


# ---- who ended whom --------------------------------------------------------------------------------------------------

CLOSED_TERMINALS = {
    "torch 2.x, cut inside the launcher's traceback": f"""
W0918 07:44:02.611000 51207 {AGENT}/agent/server/api.py:719] Received 1 death signal, shutting down workers
W0918 07:44:02.612000 51207 {AGENT}/multiprocessing/api.py:900] Sending process 51283 closing signal SIGHUP
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/opt/lib/python3.11/{AGENT.replace("elastic", "run.py")}", line 896, in <module>
    main()
""",
    "torch 1.x, between progress bars": """
 41%|████      | 410/1000 [10:11<14:20,  1.46s/it]
WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers
WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 8312 closing signal SIGHUP
 41%|████      | 411/1000 [10:12<14:20,  1.46s/it]
 41%|████      | 412/1000 [10:14<14:20,  1.46s/it]
torch.distributed.elastic.multiprocessing.api.SignalException: Process 8290 got signal: 1
""",
    "the end of it alone": f"""
W0918 07:44:02.612000 51207 {AGENT}/multiprocessing/api.py:900] Sending process 51283 closing signal SIGHUP
E0918 07:44:03.612000 51207 {AGENT}/multiprocessing/api.py:874] failed (exitcode: -1) local_rank: 0 (pid: 51284) of binary: /usr/bin/python
""",
}


@pytest.mark.parametrize("text", CLOSED_TERMINALS.values(), ids=CLOSED_TERMINALS)
def test_a_closed_terminal_is_nobodys_fault(text: str) -> None:
    """SIGHUP to the launcher: nobody is accused, and the advice is to start it without a terminal."""
    found = verdict_on(text)
    assert short(found) == ("crash", "unknown", [])
    assert "SIGHUP" in found.headline and "terminal" in found.headline
    assert "tmux" in found.next_steps[0] and "recorder on" not in "".join(found.next_steps)


def test_who_ends_a_launcher_says_nothing_of_the_job() -> None:
    """SIGTERM comes from a scheduler or a person, who may have seen that it hangs."""
    text = f"W0918 07:44:02.611000 51207 {AGENT}/agent/server/api.py:719] Received Signals.SIGTERM death signal, shutting down workers\n"
    found = verdict_on(text)
    assert short(found) == ("unknown", "unknown", [])
    assert "SIGTERM" in found.headline and "scheduler" in found.next_steps[0]


LAUNCHERS_KILLS = {
    "srun that says so": (
        """
srun: error: gpu-n24: task 5: Exited with exit code 1
srun: Terminating StepId=8842.0
srun: error: gpu-n24: tasks 4,6-7: Killed
srun: error: gpu-n23: tasks 0-3: Killed
""",
        [5],
    ),
    "srun that does not": (
        """
srun: error: gpu-n24: task 5: Segmentation fault
srun: error: gpu-n23: task 1: Killed
""",
        [5],
    ),
    "torchrun": (
        f"""
W1126 19:03:14.210000 22395 {AGENT}/multiprocessing/api.py:900] Sending process 22396 closing signal SIGTERM
E1126 19:03:14.390000 22395 {AGENT}/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 0 (pid: 22396) of binary: /usr/bin/python
E1126 19:03:14.390000 22395 {AGENT}/multiprocessing/api.py:874] failed (exitcode: -11) local_rank: 3 (pid: 22399) of binary: /usr/bin/python
""",
        [],
    ),
}


@pytest.mark.parametrize(("text", "accused"), LAUNCHERS_KILLS.values(), ids=LAUNCHERS_KILLS)
def test_whom_a_launcher_killed_is_not_the_cause(text: str, accused: list[int]) -> None:
    """The first task that failed by itself is."""
    found = verdict_on(text)
    assert short(found) == ("crash", "dead", accused)
    assert "SIGKILL" not in found.headline


# ---- the first cause before the last word ----------------------------------------------------------------------------

HANGS_THAT_END = {
    "Killed, behind eight timeouts": "".join(timeout(rank) for rank in range(8)) + "Killed\n",
    "C++ that carries the watchdog's text": """
terminate called after throwing an instance of 'std::runtime_error'
  what():  [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=61, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1806327 milliseconds before timing out.
Aborted (core dumped)
""",
    "the watchdog's abort of a rank that is not quoted": timeout(0)
    + timeout(1)
    + f"E1126 19:03:14.390000 22395 {AGENT}/multiprocessing/api.py:874] failed (exitcode: -6) local_rank: 3 (pid: 22399) of binary: /usr/bin/python\n",
    "SGLang's watchdog, then Killed": "".join(
        f"[2025-03-05 10:00:00 TP{rank}] Watchdog timeout (self.watchdog_timeout=300)\n" for rank in range(8)
    )
    + "Killed\n",
    "DeepEP, whose kernel then traps": """
DeepEP dispatch NVL receiver timeout, channel: 5, RDMA: 1, nvl: 0, src RDMA: 1, src nvl: 7, start: 0, end: 0
[rank8]: RuntimeError: Failed: CUDA error /w/deep_ep.cpp:77 'unspecified launch failure'
""",
}


@pytest.mark.parametrize("text", HANGS_THAT_END.values(), ids=HANGS_THAT_END)
def test_a_hang_that_ended_is_a_hang(text: str) -> None:
    """However the process went down in the end, and nobody is accused of that."""
    found = verdict_on(text)
    assert short(found) == ("hang", "unknown", [])


CUT_TRACEBACKS = {
    "vLLM's engine, which did not start for a worker's error": (
        """
(VllmWorker rank=7 pid=410) ERROR 07-21 08:15:23 [multiproc_executor.py:487] RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)
[rank0]:[W721 08:15:24.785450177 ProcessGroupNCCL.cpp:1476] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.
ERROR 07-21 08:15:27 [core.py:586] Traceback (most recent call last):
ERROR 07-21 08:15:27 [core.py:586]   File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core.py", line 577, in run_engine_core
ERROR 07-21 08:15:27 [core.py:586]     engine_core = EngineCoreProc(*args, **kwargs)
""",
        ("crash", "gpu", [7]),
        "unhandled cuda error",
    ),
    "SGLang's scheduler, which waited for the store": (
        """
[rank1]:[W619 08:12:44.518035523 socket.cpp:485] [c10d] waitForInput: socket SocketImpl(fd=100, addr=[n0]:51822, remote=[n0.example]:20000) timed out after 1800000ms
[2025-06-19 08:12:44 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py", line 2546, in run_scheduler_process
    scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank, pp_rank, dp_rank)
""",
        ("hang", "unknown", []),
        "n0.example:20000",
    ),
    "a trainer whose watchdog spoke": (
        timeout(0)
        + """
Traceback (most recent call last):
  File "/w/train.py", line 30, in <module>
    main()
""",
        ("hang", "unknown", []),
        "all_reduce",
    ),
}


@pytest.mark.parametrize(("text", "says", "line"), CUT_TRACEBACKS.values(), ids=CUT_TRACEBACKS)
def test_a_cut_traceback_is_the_weakest_evidence(text: str, says: tuple[str, str, list[int]], line: str) -> None:
    """Whatever else the paste tells comes before it."""
    found = verdict_on(text)
    assert short(found) == says
    assert "cut off" not in found.headline and line in shown(found)


def test_a_cut_traceback_alone_is_told() -> None:
    """Where there is nothing else, it is what there is."""
    found = verdict_on('Traceback (most recent call last):\n  File "/w/train.py", line 30, in <module>\n    main()\n')
    assert short(found)[:2] == ("crash", "dead")
    assert found.confidence == "low"


# ---- the start -------------------------------------------------------------------------------------------------------

STARTS = {
    "4 of 8 joined": (
        "torch.distributed.DistStoreError: Timed out after 1801 seconds in store based barrier on rank: 7, key: store_based_barrier_key:1 (world_size=8, num_workers_joined=4, timeout=0:30:00 error=timeout)\n",
        "4 of 8",
    ),
    "clients joined": (
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/3 clients joined.\n",
        "1/3",
    ),
    "a store that did not answer": (
        "[rank7]:[W619 08:12:44.529286612 socket.cpp:485] [c10d] waitForInput: socket SocketImpl(fd=100, addr=[n1]:51806, remote=[n0.example]:20000) timed out after 1800000ms\n",
        "n0.example:20000 for 1800 s",
    ),
}


@pytest.mark.parametrize(("text", "says"), STARTS.values(), ids=STARTS)
def test_a_start_that_hangs_says_where_and_how_many(text: str, says: str) -> None:
    """Whoever reports it waited; who did not come is not in the text, and a recording has nothing to add."""
    found = verdict_on(text)
    assert short(found) == ("hang", "unknown", [])
    assert says in found.headline
    assert "recorder on" not in "".join(found.next_steps)


def test_who_did_not_come_is_named_where_it_follows() -> None:
    """Three of four ranks added themselves to the barrier."""
    lines = [f"Added key: store_based_barrier_key:1 to store for rank: {rank}" for rank in (0, 1, 3)]
    waits = "Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 (world_size=4, worker_count=3, timeout=0:30:00)"
    assert short(verdict_on("\n".join([*lines, waits, ""]))) == ("hang", "absent", [2])


TAKEN_TWICE = {
    "NCCL's own lines": (
        """
n3:41880:42398 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 4 and rank 6 both on CUDA device 1000
n3:41881:42399 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 5 and rank 7 both on CUDA device 2000
""",
        "ranks 4/6 and 5/7 share a GPU",
        "CUDA_VISIBLE_DEVICES",
    ),
    "PyTorch's last error": (
        """
[rank1]: torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1970, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.20.5
[rank1]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
[rank1]: Last error:
[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000
""",
        "ranks 0/1 share a GPU",
        "CUDA_VISIBLE_DEVICES",
    ),
    "one rank twice": (
        "node7:3301:3355 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 0 of 4 ranks has already checked in\n",
        "several processes registered as rank 0",
        "NODE_RANK",
    ),
}


@pytest.mark.parametrize(("text", "says", "advice"), TAKEN_TWICE.values(), ids=TAKEN_TWICE)
def test_what_was_taken_twice_is_named(text: str, says: str, advice: str) -> None:
    """Which ranks share a GPU, or came with one number, and what to change."""
    found = verdict_on(text)
    assert short(found) == ("crash", "mismatch", [])
    assert says in found.headline and advice in found.next_steps[0]


# ---- lines that neighbours explain -----------------------------------------------------------------------------------

EXPLAINED = {
    "Ray's actor": (
        """
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
	class_name: CriticModelRayActor
	actor_id: d1a9abd56150bb7e65d2a0ff01000000
	pid: 809253
	namespace: 5f7a7972
	ip: 10.96.31.18
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR
""",
        ("CriticModelRayActor", "809253", "10.96.31.18", "its worker process has died"),
    ),
    "Ray's node": (
        """
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
        class_name: Runner
        pid: 149258
        ip: 10.21.160.9
The actor is dead because its owner has died. Owner Ip address: 10.21.160.9 Owner worker exit type: SYSTEM_ERROR Worker exit detail: Owner's node has crashed.
""",
        ("10.21.160.9", "Owner's node has crashed"),
    ),
    "Ray's memory, wrapped": (
        """
ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on
memory.
Memory on the node (IP: 10.0.4.2, ID: 8f3) where the task (actor ID: 4a, name=W.__init__, pid=3311, memory used=210.10GB) was running was 478.20GB / 503.00GB
""",
        ("10.0.4.2", "3311", "478.20GB / 503.00GB"),
    ),
    "a program that is not there": (
        """
slurmstepd: error: execve(): torchrun: No such file or directory
srun: error: gpu-n2: task 1: Exited with exit code 2
""",
        ("execve(): torchrun: No such file", "gpu-n2"),
    ),
    "an evicted pod": (
        "  Warning  Evicted   112s  kubelet   Pod ephemeral local storage usage exceeds the total limit of containers 5Gi.\n",
        ("evicted", "exceeds the total limit of containers 5Gi"),
    ),
    "a pod's events": (
        "3m  Warning  NodeNotReady  pod/train-worker-3   Node is not ready\n",
        ("NodeNotReady", "train-worker-3"),
    ),
    "a container's end": (
        "    Last State:     Terminated\n      Reason:       Error\n      Exit Code:    137\n",
        ("a container ended by SIGKILL", "Exit Code:    137"),
    ),
}


@pytest.mark.parametrize(("text", "parts"), EXPLAINED.values(), ids=EXPLAINED)
def test_a_line_is_shown_with_the_neighbours_that_explain_it(text: str, parts: tuple[str, ...]) -> None:
    """Nobody is accused, and the recorder is not advised."""
    found = verdict_on(text)
    assert short(found) == ("crash", "dead", [])
    missing = [part for part in parts if part not in shown(found)]
    assert not missing
    assert "recorder on" not in "".join(found.next_steps)


GPUS = {
    "the driver": "[12345.8] NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus.\n",
    "a cloud's check": "GPU 00000000:B3:00.0: Detected Critical Xid Error\n",
    "the journal": "Mar  5 10:00:00 gpu-a17 kernel: NVRM: Xid (PCI:0000:b3:00): 94, pid=4711, name=python\n",
}


@pytest.mark.parametrize("text", GPUS.values(), ids=GPUS)
def test_a_gpu_is_named_by_its_address(text: str) -> None:
    """And not called a rank."""
    found = verdict_on(text)
    assert short(found) == ("crash", "gpu", [])
    assert "b3:00.0" in found.headline and "a rank" not in found.headline


ENGINES = {
    "vLLM without output": "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 12 reqs, Waiting: 4 reqs\n"
    * 3,
    "vLLM's worker does not answer": "TimeoutError: RPC call to sample_tokens timed out.\n",
    "TensorRT-LLM": "[TRT-LLM] [E] Hang detected on rank 3 in PyExecutor.\n",
}


@pytest.mark.parametrize("text", ENGINES.values(), ids=ENGINES)
def test_an_engine_that_stands_still_hangs(text: str) -> None:
    """Nobody is accused, and stacks are what tells more."""
    found = verdict_on(text)
    assert short(found) == ("hang", "unknown", [])
    assert "py-spy" in found.next_steps[0]


def test_an_engine_that_waits_may_still_start() -> None:
    """vLLM prints it while a worker compiles."""
    text = "(EngineCore_DP0 pid=2177) INFO 02-24 05:36:01 [shm_broadcast.py:542] No available shared memory broadcast block found in 60 seconds.\n"
    assert short(verdict_on(text)) == ("unknown", "unknown", [])
    assert short(verdict_on(text + "INFO:     Application startup complete.\n" * 2)) == ("ok", "none", [])


def test_errors_of_ports_are_no_verdict_on_a_job() -> None:
    """They name the network, and what became of the job is not said."""
    text = 'Errors for 0x1 "sw2"\n   GUID 0x1 port 3: [SymbolErrorCounter == 25]\n'
    found = verdict_on(text)
    assert short(found) == ("unknown", "network", [])
    assert "port 3 of sw2" in found.headline
