"""A server as engines start them: an API server, an engine core and workers, each with the title that its engine gives.

    python engine_server.py MODE [--engine vllm|sglang] [--workers 4] [--replicas 1] [--seconds 15]

The workers play NCCL to the real profiler plugin (plain_nccl.py); nothing of torch is needed. A replica is an engine of
its own, whose workers count from 0 again, as vLLM's replicas of a dense model do.

MODE: healthy  requests go on for --seconds, then all ends well
      idle     twenty operations, then no request for --seconds
      sleep    worker 2 of the last replica sleeps in `schedule_requests` before operation 20
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import select
import signal
import sys
import time

import plain_nccl

_TITLE_BYTES = 128


def set_title(text: str) -> None:
    """As setproctitle does: the memory in which the kernel finds the command line is written over."""
    libc = ctypes.CDLL(None)
    with open("/proc/self/stat", encoding="ascii") as stream:
        fields = stream.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    room = end - start
    raw = text.encode()[: room - 1]
    ctypes.memmove(start, raw.ljust(room, b"\0"), room)
    libc.prctl(15, raw[:15], 0, 0, 0)  # PR_SET_NAME


def child(role: str, work) -> int:
    """Fork a process with that title; it ends with its parent."""
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(plain_nccl.PR_SET_PDEATHSIG, signal.SIGKILL)
        set_title(role)
        work()
        os._exit(0)
    return pid


def wait_for_requests(pids: list[int]) -> None:
    """The API server's loop: it polls, and looks after its children."""
    left = set(pids)
    while left:
        select.select([], [], [], 0.2)
        for pid in list(left):
            if os.waitpid(pid, os.WNOHANG)[0]:
                left.discard(pid)


def step_workers(pids: list[int]) -> None:
    """The engine core's loop: it waits for its workers' answers."""
    for pid in pids:
        os.waitpid(pid, 0)


class Worker(plain_nccl.Rank):
    """A worker of a replica. `sick` is whether it is the one that hangs."""

    def __init__(self, given, rank, shared, replica):
        plain_nccl.USED = 0xC0FFEE0000000001 + 16 * replica
        plain_nccl.UNUSED = 0xC0FFEE0000000002 + 16 * replica
        last = replica == given.replicas - 1
        mode = given.mode if given.mode != "sleep" or last else "healthy"
        alone = argparse.Namespace(mode=mode, ranks=given.workers, nvlink=True, seconds=given.seconds)
        super().__init__(alone, rank, shared)


def titles(engine: str, replicas: int, replica: int, worker: int) -> tuple[str, str]:
    """Of the engine core and of one worker."""
    if engine == "sglang":
        place = f"_DP{replica}_TP{worker}" if replicas > 1 else f"_TP{worker}"
        return "sglang::data_parallel_controller", f"sglang::scheduler{place}"
    return f"VLLM::EngineCore_DP{replica}", f"VLLM::Worker_TP{worker}"


def engine_core(given, replica: int) -> None:
    shared = mmap.mmap(-1, 8 * 2 * given.workers)
    workers = []
    for number in range(given.workers):
        name = titles(given.engine, given.replicas, replica, number)[1]
        workers.append(child(name, lambda number=number: Worker(given, number, shared, replica).run()))
    step_workers(workers)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["healthy", "idle", "sleep"])
    parser.add_argument("--engine", choices=["vllm", "sglang"], default="vllm")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--padding", help="room for a title in the command line")
    given = parser.parse_args()
    if given.padding is None:
        os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:], "--padding", "x" * _TITLE_BYTES])
    set_title("VLLM::APIServer" if given.engine == "vllm" else "sglang::http_server")
    print(f"serving as pid {os.getpid()} at {time.time():.0f}", flush=True)
    cores = []
    for replica in range(given.replicas):
        name = titles(given.engine, given.replicas, replica, 0)[0]
        cores.append(child(name, lambda replica=replica: engine_core(given, replica)))
    wait_for_requests(cores)
    return 0


if __name__ == "__main__":
    sys.exit(main())
