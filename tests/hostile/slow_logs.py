"""Logs that are meant to be slow: everything that a line can name is different in each, or the same in all."""

# ruff: noqa: E501 - one family stands in one line, as what it writes does

from __future__ import annotations

import random
from pathlib import Path

from hostile.slow_families import FAMILIES, family, fill, log

OPS = ("ALLREDUCE", "_ALLGATHER_BASE", "BROADCAST", "REDUCE", "ALLTOALL_BASE", "_REDUCE_SCATTER_BASE", "BARRIER")


def stamp(n: int) -> str:
    return f"{n // 3600 % 24:02d}:{n // 60 % 60:02d}:{n % 60:02d}.{n % 1_000_000:06d}"


def watchdog(rank: int, seq: int, op: str = "ALLREDUCE", at: int = 0, group: int = 0, size: int = 100) -> str:
    """One message of PyTorch's watchdog."""
    return (
        f"[rank{rank}]:[E1116 {stamp(at)} {1000 + rank} ProcessGroupNCCL.cpp:629] [PG ID {group} PG GUID {group}(pg{group})"
        f" Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={size}, "
        f"NumelOut={size}, Timeout(ms)=600000) ran for 600089 milliseconds before timing out.\n"
    )


def status(rank: int, group: int, enqueued: int, completed: int) -> str:
    return (
        f"[rank{rank}]:[E1116 10:00:00.000001 {rank} ProcessGroupNCCL.cpp:700] [PG ID {group} PG GUID {group}(pg{group}) "
        f"Rank {rank}] failure detected by watchdog at work sequence id: {completed + 1} PG status: last enqueued work: "
        f"{enqueued}, last completed work: {completed}\n"
    )


# ---- PyTorch's watchdog ----------------------------------------------------------------------------------------------

log("watchdog_each_rank_in_its_own_operation", lambda n, _: watchdog(n, 1000 + n))
log("watchdog_each_rank_another_kind", lambda n, _: watchdog(n, 1000 + n, OPS[n % len(OPS)]))
log("watchdog_each_rank_in_its_own_group", lambda n, _: watchdog(n, 7, group=n))
log("watchdog_one_rank_in_many_operations", lambda n, _: watchdog(0, n))
log("watchdog_one_rank_in_many_groups", lambda n, _: watchdog(0, 7, group=n))
log("watchdog_all_in_one_operation", lambda n, _: watchdog(n, 7, at=n))
log("watchdog_one_operation_all_sizes", lambda n, _: watchdog(n, 7, size=n))
log(
    "watchdog_ranks_and_groups_at_random",
    lambda n, rng: watchdog(rng.randrange(3000), rng.randrange(99), rng.choice(OPS), n, rng.randrange(300)),
)
log("watchdog_chain_of_groups", lambda n, _: watchdog(n // 2, 7, group=(n + 1) // 2))
log("watchdog_ring_of_groups", lambda n, _: watchdog(n // 2 % 2000, 7, group=(n + 1) // 2 % 2000))
log("watchdog_sends_to_different_peers", lambda n, _: watchdog(n, n, "SEND" if n % 2 else "RECV", group=n % 50))
log("watchdog_backwards_in_time", lambda n, _: watchdog(n % 64, 7, at=80_000 - n))
log("watchdog_with_progress", lambda n, _: watchdog(n, 1000 + n) + status(n, 0, 1005 + n, 999 + n))
log("progress_alone", lambda n, _: status(n, n % 100, n + 9, n))
log(
    "watchdog_with_stack",
    lambda n, _: (
        watchdog(n, 7)
        + f"[rank{n}]: Stack trace of the failed collective:\n"
        + "".join(f"#{i} step_{n} from /w/train_{n}.py:{i}\n" for i in range(30))
    ),
)
log(
    "old_watchdog_without_tag",
    lambda n, _: (
        f"[E ProcessGroupNCCL.cpp:475] [Rank {n}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800000 milliseconds before timing out.\n"
    ),
)
log(
    "torchcomms_aborts",
    lambda n, _: (
        f"[TC][rank={n}][name=tp{n}] Aborting process on rank {n} due to timeout - the collective took too long\n"
    ),
)
log(
    "heartbeats",
    lambda n, _: (
        f"[rank{n}]:[F1116 {stamp(n)} ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank {n}] [Rank {n}] watchdog got stuck for 600 seconds\n"
    ),
)
log(
    "dump_signals",
    lambda n, _: (
        f"[rank{n}]:[E1116 {stamp(n)} ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0 Rank {n}] Received a dump signal due to a collective timeout from rank {n + 1} and we will try our best to dump the debug info.\n"
    ),
)
log(
    "desync_each_operation",
    lambda n, _: f"[{n}] finished collective #{n}, but didn't join collective #{n + 1} (count from 1)\n",
)
log(
    "desync_long_lists",
    lambda n, rng: (
        f"[{', '.join(str(rng.randrange(100_000)) for _ in range(2000))}] joined but didn't finish collective #{n} (count from 1)\n"
    ),
)
log(
    "desync_lagging_lists",
    lambda n, rng: (
        f"ranks [{', '.join(map(str, range(n, n + 3000)))}] are the lagging ranks that caused this timeout\n"
    ),
)
log(
    "barrier_lists",
    lambda n, _: (
        f"[Rank 0]: Ranks {', '.join(map(str, range(n, n + 3000)))} failed to pass monitoredBarrier in 60000 ms\n"
    ),
)
log(
    "mismatch_pairs",
    lambda n, _: (
        f"[rank{n}]: RuntimeError: Detected mismatch between collectives on ranks. Rank {n} is running collective: CollectiveFingerPrint(SequenceNumber={n}, OpType=ALLREDUCE, TensorShape=[{n}], TensorDtypes=Float), but Rank {n + 1} is running collective: CollectiveFingerPrint(SequenceNumber={n}, OpType=BROADCAST).Collectives differ in the following aspects: Op type: ALLREDUCEvs BROADCAST\n"
    ),
)
log(
    "ddp_mismatch_pairs",
    lambda n, _: (
        f"[rank{n}]: RuntimeError: DDP expects same model across all ranks, but Rank {n} has 161 params, while rank {n + 1} has inconsistent {n} params.\n"
    ),
)
log(
    "unique_id_pairs",
    lambda n, _: (
        f"[rank{n}]: torch.distributed.DistBackendError: [{n}] is setting up NCCL communicator and retrieving ncclUniqueId from [{n // 8}] via c10d key-value store by key '{n}', but store->get('{n}') got error: Connection reset by peer\n"
    ),
)

# ---- NCCL ------------------------------------------------------------------------------------------------------------


def init(host: str, pid: int, comm: int, rank: int, size: int, ident: int, more: str = "") -> str:
    return f"{host}:{pid}:{pid + 1} [0] NCCL INFO ncclCommInitRank comm 0x{comm:x} rank {rank} nranks {size} cudaDev {rank % 8} nvmlDev {rank % 8} busId {rank % 8}b000 commId 0x{ident:x}{more} - Init COMPLETE\n"


log("nccl_one_process_many_comms", lambda n, _: init("n1", 7, 4096 + n, 0, 8, n + 1))
log("nccl_each_process_its_own_comm", lambda n, _: init(f"n{n // 8}", n + 10, 4096 + n, 0, 8, n + 1))
log("nccl_one_comm_of_all", lambda n, _: init(f"n{n // 8}", n + 10, 4096, n, 20_000, 1))
log(
    "nccl_comms_of_all_sizes",
    lambda n, rng: init(f"n{n % 999}", n % 999 + 10, 4096 + n, rng.randrange(n + 1), n + 1, rng.randrange(500)),
)
log(
    "nccl_splits_in_a_chain",
    lambda n, _: init("n1", 7, 4096 + n, 0, 8, n + 1, f" parent 0x{4095 + n:x} splitCount {n} color {n % 5} key 0"),
)
log("nccl_same_rank_everywhere", lambda n, _: init(f"n{n}", n + 10, 4096 + n, 0, 9999, 1))
log(
    "nccl_channels",
    lambda n, _: (
        (init("n1", 7, 4096, 0, 8, 1) if n == 0 else "")
        + f"n1:7:8 [0] NCCL INFO Channel {n % 64:02d}/0 : {n}[{n % 8}] -> {n + 1}[0] [send] via NET/IB/{n % 8}\n"
    ),
)
log(
    "nccl_channels_of_many_comms",
    lambda n, _: (
        (init("n1", 7, 4096 + n, n % 8, 8, n + 1) if n % 4 == 0 else "")
        + f"n1:7:8 [0] NCCL INFO Channel {n % 64:02d}/0 : {n % 8}[{n % 8}] -> {(n + 1) % 8}[0] [send] via NET/IB/{n % 8}\n"
    ),
)
log(
    "nccl_rings",
    lambda n, _: (
        (init("n1", 7, 4096, 0, 8, 1) if n == 0 else "")
        + f"n1:7:8 [0] NCCL INFO Ring {n} : {n + 7} -> {n} -> {n + 1}\n"
    ),
)
log(
    "nccl_trees",
    lambda n, _: (
        (init("n1", 7, 4096, 0, 8, 1) if n == 0 else "")
        + "n1:7:8 [0] NCCL INFO Trees "
        + " ".join(f"[{i + n}] {i}/{i + 1}/{i + 2}->0->{i}" for i in range(300))
        + "\n"
    ),
)
log(
    "nccl_devices_in_one_line",
    lambda n, _: (
        f"n{n}:7:8 [0] NCCL INFO NET/IB : Using "
        + " ".join(f"[{i}]mlx5_{i}:1/RoCE" for i in range(2000))
        + f" [RO]; OOB eth0:10.0.0.{n}<0>\n"
    ),
)
log(
    "nccl_bootstrap_addresses",
    lambda n, _: f"n{n}:{n}:8 [0] NCCL INFO Bootstrap : Using eth{n}:10.{n >> 16}.{n >> 8 & 255}.{n & 255}<0>\n",
)
log(
    "nccl_queue_pairs",
    lambda n, _: f"n{n % 50}:7:8 [0] NCCL INFO NET/IB: IbDev {n % 8} Port 1 qpn {n} mtu 5 LID {n} subnet-prefix 0\n",
)
log(
    "nccl_completions_each_peer",
    lambda n, _: (
        f"n{n}:{n}:8 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.{n >> 16}.{n >> 8 & 255}.{n & 255}<{n}> with status=12 opcode=0 len=0 vendor err 129 (Send)\n"
    ),
)
log(
    "nccl_completions_of_ranks",
    lambda n, _: (
        init(f"n{n}", n + 10, 4096, n, 9999, 1)
        + f"n{n}:{n + 10}:8 [0] NCCL INFO Bootstrap : Using eth0:10.0.{n >> 8 & 255}.{n & 255}<0>\nn{n}:{n + 10}:8 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.{n + 1 >> 8 & 255}.{n + 1 & 255}<9> with status=12 opcode=0 len=0 vendor err 129 (Send)\n"
    ),
)
log(
    "nccl_sockets_each_host",
    lambda n, _: (
        f"n{n}:{n}:8 [0] misc/socket.cc:1 NCCL WARN socketProgress: Connection closed by remote peer m{n}<{n}>\n"
    ),
)
log(
    "nccl_async_events",
    lambda n, _: f"n{n % 99}:7:8 [0] net_ib.cc:1 NCCL WARN NET/IB : mlx5_{n}:1 Got async event : port error\n",
)
log(
    "nccl_one_process_warns",
    lambda n, _: (
        f"n1:7:8 [0] misc/socket.cc:{n} NCCL WARN Net : Call to recv from 10.0.0.{n % 250}<{n}> failed : Broken pipe\n"
    ),
)
log(
    "nccl_mismatch_warnings",
    lambda n, _: (
        f"n{n}:7:8 [0] enqueue.cc:1 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank {n}\n"
    ),
)
log(
    "nccl_proxy_warnings",
    lambda n, _: (
        f"n{n}:7:8 [0] proxy.cc:1 NCCL WARN [Proxy Service {n}] Failed to execute operation Connect from rank {n}, retcode 6\n"
    ),
)

# ---- Python ----------------------------------------------------------------------------------------------------------


def traceback(rank: int, depth: int, error: str, tag: bool = True) -> str:
    front = f"[rank{rank}]: " if tag else ""
    rows = ["Traceback (most recent call last):"]
    for n in range(depth):
        rows += [f'  File "/w/a{rank}_{n}.py", line {n + 1}, in f{n}', f"    f{n + 1}(x)"]
    return "".join(f"{front}{row}\n" for row in [*rows, error])


log("tracebacks_of_many_ranks", lambda n, _: traceback(n, 3, f"ValueError: {n}"))
log("tracebacks_of_one_rank", lambda n, _: traceback(0, 3, f"ValueError: {n}"))
log("tracebacks_without_tags", lambda n, _: traceback(n, 3, f"ValueError: {n}", tag=False))
log("traceback_thousands_deep", lambda n, _: traceback(n, 8000, f"RecursionError: {n}"))
log(
    "traceback_that_never_ends",
    lambda n, _: "Traceback (most recent call last):\n" if n == 0 else f'  File "/w/a.py", line {n}, in f\n    f()\n',
)
log(
    "tracebacks_chained",
    lambda n, _: (
        traceback(1, 2, f"KeyError: {n}")
        + "[rank1]: \n[rank1]: During handling of the above exception, another exception occurred:\n[rank1]: \n"
    ),
)
log("tracebacks_begin_and_never_end", lambda n, _: f"[rank{n % 900}]: Traceback (most recent call last):\n")
log("errors_in_one_line", lambda n, _: f"[rank{n}]: My{n}Error: value {n}\n")
log("errors_with_long_messages", lambda n, _: f"[rank{n}]: ValueError: {'x y ' * 2000}\n")
log(
    "distbackend_errors",
    lambda n, _: (
        f"[rank{n}]: torch.distributed.DistBackendError: NCCL error in: /p/NCCLUtils.cpp:{n}, remote process exited or there was a network error, NCCL version 2.20.5\n[rank{n}]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n[rank{n}]: Last error:\n[rank{n}]: socketProgress: Connection closed by remote peer m{n}<{n}>\n"
    ),
)
log(
    "gloo_errors",
    lambda n, _: (
        f"[rank{n}]: RuntimeError: [/p/gloo/transport/tcp/pair.cc:{n}] Connection closed by peer [10.0.{n % 250}.2]:{n}\n"
    ),
)
log("cuda_errors", lambda n, _: f"[rank{n}]: RuntimeError: CUDA error: an illegal memory access was encountered\n")
log(
    "oom_errors",
    lambda n, _: (
        f"[rank{n}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {n} MiB. GPU {n % 8} has a total capacity of 79 GiB\n"
    ),
)

# ---- launchers, kernel, frameworks -----------------------------------------------------------------------------------

log(
    "torchrun_tables",
    lambda n, _: (
        f"[{n % 40}]:\n  time      : 2026-11-16_10:00:{n % 60:02d}\n  host      : n{n}\n  rank      : {n} (local_rank: {n % 8})\n  exitcode  : -9 (pid: {n + 100})\n  error_file: <N/A>\n  traceback : Signal 9 (SIGKILL) received by PID {n + 100}\n"
    ),
)
log(
    "torchelastic_lines",
    lambda n, _: (
        f"E1116 10:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:1] failed (exitcode: -9) local_rank: {n % 8} (pid: {n}) of binary: /usr/bin/python\n"
    ),
)
log(
    "closing_signals",
    lambda n, _: (
        f"W1116 10:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:1] Sending process {n} closing signal SIGTERM\n"
    ),
)
log("srun_tasks", lambda n, _: f"srun: error: n{n}: task {n}: Killed\n")
log("srun_huge_lists", lambda n, _: f"srun: error: n{n}: tasks 0-{999_000 + n % 999}: Killed\n")
log(
    "srun_scattered_lists",
    lambda n, _: (
        f"srun: error: n{n}: tasks [{','.join(f'{i}-{i + 3}' for i in range(n, n + 8000, 8))}]: Exited with exit code 1\n"
    ),
)
log(
    "mpirun_signals",
    lambda n, _: f"mpirun noticed that process rank {n} with PID {n} on node n{n} exited on signal 9 (Killed).\n",
)
log(
    "hydra_blocks",
    lambda n, _: (
        f"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK {n} PID {n + 9} RUNNING AT n{n}\n=   KILLED BY SIGNAL: 9 (Killed)\n"
    ),
)
log(
    "deepspeed_exits",
    lambda n, _: (
        f"['python', '-u', 'main.py', '--local_rank={n}'] exits with return code = -9\nsigkill_handler] Killing subprocess {n}\n"
    ),
)
log(
    "lightning_children",
    lambda n, _: (
        f"[rank: {n}] Child process with PID {n} terminated with code -9. Forcefully terminating all other processes\n"
    ),
)
log("ray_prefixes", lambda n, _: f"(WorkerDict pid={n}, ip=10.{n >> 16}.{n >> 8 & 255}.{n & 255}) ValueError: {n}\n")
log(
    "ray_actors_died",
    lambda n, _: (
        f"ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: A\n\tpid: {n}\n\tip: 10.0.{n >> 8 & 255}.{n & 255}\n"
    ),
)
log(
    "raylet_workers",
    lambda n, _: (
        f"(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker ID: {n:x} Node ID: {n:x} Worker IP address: 10.0.{n >> 8 & 255}.{n & 255} Worker port: 1 Worker PID: {n} Worker exit type: SYSTEM_ERROR\n"
    ),
)
log("pods", lambda n, _: f"train-worker-{n}  0/1  OOMKilled  0  2h\nPod: ns.train-worker-{n} exited with code 137\n")
log(
    "kernel_xids",
    lambda n, _: (
        f"[{n}.{n % 999999:06d}] NVRM: Xid (PCI:0000:{n % 256:02x}:00): {n % 140}, pid={n}, name=python, GPU has fallen off the bus.\n"
    ),
    "messages.txt",
)
log(
    "kernel_xids_of_hosts",
    lambda n, _: (
        f"Nov 16 10:00:00 n{n} kernel: [{n}.0] NVRM: Xid (PCI:0000:9d:00): 79, pid={n}, name=python, GPU has fallen off the bus.\n"
    ),
    "kern.log",
)
log(
    "kernel_kills",
    lambda n, _: f"[{n}.000001] Memory cgroup out of memory: Killed process {n} (python) total-vm:1kB\n",
    "dmesg.txt",
)
log(
    "kernel_segfaults",
    lambda n, _: f"[{n}.000001] python[{n}]: segfault at 0 ip 0 sp 0 error 4 in libc.so\n",
    "dmesg.txt",
)

# ---- shapes of lines -------------------------------------------------------------------------------------------------

log("srun_labels", lambda n, _: f"{n % 5000}: loss={n}\n" if n % 9 else f"{n % 5000}: " + watchdog(n % 5000, 7))
log("pdsh_hosts", lambda n, _: f"gpu{n:05d}: ValueError: {n}\n")
log("compose_names", lambda n, _: f"name-{n}  | ValueError: {n}\n")
log("tee_prefixes", lambda n, _: f"[default{n}]:Traceback (most recent call last):\n[default{n}]:ValueError: {n}\n")
log(
    "docker_json",
    lambda n, _: f'{{"log":"[rank{n}]: ValueError: {n}\\n","stream":"stderr","time":"2026-11-16T10:00:00.{n:09d}Z"}}\n',
)
log("colours", lambda n, _: f"\x1b[31m[rank{n}]:\x1b[0m \x1b[1;31;40mValueError\x1b[0m: {n}\n")
log("open_escapes", lambda n, _: "\x1b[" * 500 + "\n")
log("entities_and_quotes", lambda n, _: f"&gt; &gt; &lt;b&gt; [rank{n}]: ValueError: &quot;{n}&quot; &amp;amp;\n")
log("progress_bars", lambda n, _: f"\r{n}%|####| {n}/99 [00:01<00:09] loss={n}")
log("glued_messages", lambda n, _: watchdog(n, 7).rstrip())
log("nothing_but_line_ends", lambda n, _: "\n" * 4096)
log("nothing_but_blanks", lambda n, _: " " * 4096)
log("nothing_but_brackets", lambda n, _: "[" * 4096)
log("nothing_but_digits_and_colons", lambda n, _: "1:" * 2048)
log("short_lines", lambda n, _: "a\n" * 512)
log("one_endless_word", lambda n, _: "watchdog" * 512)
log("wrapped_ends", lambda n, _: "milliseconds before timing out.\n")


@family
def wrapped_at_eighty(folder: Path, rng: random.Random, size: int) -> None:
    text = "".join(fill(size, rng, lambda n, _: watchdog(n, 1000 + n))).replace("\n", "")
    (folder / "job.log").write_text("\n".join(text[at : at + 80] for at in range(0, len(text), 80)))


@family
def wrapped_at_ten(folder: Path, rng: random.Random, size: int) -> None:
    text = "".join(fill(size, rng, lambda n, _: watchdog(n % 9, 7)))
    (folder / "job.log").write_text("\n".join(text[at : at + 10] for at in range(0, len(text), 10)))


@family
def bytes_at_random(folder: Path, rng: random.Random, size: int) -> None:
    (folder / "job.log").write_bytes(watchdog(1, 7).encode() + rng.randbytes(size))


@family
def a_log_of_each_rank(folder: Path, rng: random.Random, size: int) -> None:
    for rank in range(1000):
        text = watchdog(rank, 1000 + rank, rng.choice(OPS)) + traceback(rank, 12, f"ValueError: {rank}")
        (folder / f"rank_{rank}.log").write_text(text[: max(400, size // 1000)])


@family
def logs_of_many_attempts(folder: Path, rng: random.Random, size: int) -> None:
    del rng
    for number in range(1000):
        path = folder / f"attempt_{number % 50}" / str(number // 50)
        path.mkdir(parents=True)
        (path / "stderr.log").write_text((watchdog(number, number, at=number) * 9)[: size // 1000])


LOGS = tuple(FAMILIES)
