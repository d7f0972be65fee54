"""Processes that use NCCL and nothing of torch: what NCCL would tell its profiler plugin, told from Python by ctypes.

    python plain_nccl.py MODE [--ranks 4] [--number env|none] [--nvlink] [--seconds 20] [--shared FILE]

The plugin is the one that NCCL would load (NCCL_PROFILER_PLUGIN). Each process is a rank of a communicator that is in
use and of a second one that is not. An operation ends on a rank once all ranks have launched it, as in NCCL.

MODE: healthy    goes on for --seconds, then ends well
      idle       twenty operations, then nothing for --seconds: a server without requests
      sleep      rank 2 sleeps in `schedule_requests` before operation 20, and all others wait for it
      late       rank 2 comes --seconds late to the very first operation, and all goes on well then
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import signal
import struct
import sys
import time

COLL = 2
PROXY_OP = 8
PROXY_STEP = 16
SEND_WAIT = 9
RECV_WAIT = 10
IN_PROGRESS = 19
USED = 0xC0FFEE0000000001
UNUSED = 0xC0FFEE0000000002
PR_SET_PDEATHSIG = 1
VICTIM = 2
FAULT_AT = 20


class Plugin(ctypes.Structure):
    """`ncclProfiler_v4`, as NCCL 2.27 and later find it."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("init", ctypes.c_void_p),
        ("start", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)),
        ("stop", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
        ("record", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)),
        ("finalize", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
    ]


INIT = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_int),
    ctypes.c_char_p,
    ctypes.c_uint64,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_void_p,
)


class Communicator:
    def __init__(self, plugin: Plugin, hash_: int, ranks: int, rank: int) -> None:
        self._plugin = plugin
        self._rank = rank
        self._ranks = ranks
        self._context = ctypes.c_void_p()
        mask = ctypes.c_int()
        INIT(plugin.init)(ctypes.byref(self._context), ctypes.byref(mask), None, hash_, 1, ranks, rank, None)
        self._texts = [ctypes.create_string_buffer(text) for text in (b"AllReduce", b"ncclFloat32", b"RING", b"SIMPLE")]

    def _start(self, type_: int, parent: int | None, rest: bytes) -> int | None:
        event = ctypes.create_string_buffer(struct.pack("<BxxxxxxxQi4x", type_, parent or 0, self._rank) + rest, 256)
        handle = ctypes.c_void_p()
        self._plugin.start(self._context, ctypes.byref(handle), event)
        return handle.value

    def launch(self, seq: int) -> int | None:
        func, datatype, algorithm, protocol = (ctypes.addressof(text) for text in self._texts)
        rest = struct.pack("<QQQQQi4xQBB6xQQ", seq, func, 0, 0, 1024, 0, datatype, 2, 16, algorithm, protocol)
        operation = self._start(COLL, None, rest)
        self._plugin.stop(operation)
        return operation

    def transfer(self, operation: int | None, *, sends: bool, steps: int) -> int | None:
        """One direction of the ring, to the next rank or from the one before."""
        peer = (self._rank + (1 if sends else -1)) % self._ranks
        rest = struct.pack("<iB3xiiii", os.getpid(), 0, peer, steps, 4096, sends)
        transfer = self._start(PROXY_OP, operation, rest)
        self._plugin.record(transfer, IN_PROGRESS, None)
        return transfer

    def step(self, transfer: int | None, number: int, state: int) -> int | None:
        step = self._start(PROXY_STEP, transfer, struct.pack("<i", number))
        self._plugin.record(step, state, ctypes.create_string_buffer(16))
        return step

    def stop(self, handle: int | None) -> None:
        self._plugin.stop(handle)


def schedule_requests(seconds: float) -> None:
    time.sleep(seconds)


class Rank:
    """`shared` is memory of all ranks: how far each is with the operations, and after which one they end."""

    def __init__(self, given: argparse.Namespace, rank: int, shared: mmap.mmap) -> None:
        self._given = given
        self._rank = rank
        self._shared = shared
        plugin = Plugin.in_dll(ctypes.CDLL(os.environ["NCCL_PROFILER_PLUGIN"]), "ncclProfiler_v4")
        self._used = Communicator(plugin, USED, given.ranks, rank)
        unused = Communicator(plugin, UNUSED, given.ranks, rank)
        unused.launch(0)

    def all_reduce(self, seq: int) -> None:
        operation = self._used.launch(seq)
        if self._given.nvlink:
            self._put(0, self._rank, seq + 1)
            while min(self._get(0, rank) for rank in range(self._given.ranks)) <= seq:
                time.sleep(0.002)
        else:
            self._ring(operation, seq)

    def _ring(self, operation: int | None, seq: int) -> None:
        """A rank sends in a step what it received in the step before: so all come to wait for who is missing."""
        steps = self._given.ranks - 1
        before = (self._rank - 1) % self._given.ranks
        used = self._used
        sending = used.transfer(operation, sends=True, steps=steps)
        receiving = used.transfer(operation, sends=False, steps=steps)
        for number in range(steps):
            used.stop(used.step(sending, number, SEND_WAIT))  # a socket takes it at once
            self._put(0, self._rank, seq * steps + number + 1)
            step = used.step(receiving, number, RECV_WAIT)
            while self._get(0, before) <= seq * steps + number:
                time.sleep(0.002)
            used.stop(step)
        used.stop(sending)
        used.stop(receiving)

    def _get(self, table: int, rank: int) -> int:
        return int(struct.unpack_from("<Q", self._shared, 8 * (table * self._given.ranks + rank))[0])

    def _put(self, table: int, rank: int, value: int) -> None:
        struct.pack_into("<Q", self._shared, 8 * (table * self._given.ranks + rank), value)

    def run(self) -> None:
        given = self._given
        end = time.monotonic() + given.seconds
        if given.mode == "late" and self._rank == VICTIM:
            schedule_requests(given.seconds)
        for seq in range(1 << 30):
            if seq == FAULT_AT and given.mode == "idle":
                time.sleep(given.seconds)
                return
            if seq == FAULT_AT and given.mode == "sleep" and self._rank == VICTIM:
                print(f"fault at {time.time()}", flush=True)
                schedule_requests(600)
            if given.mode == "late" and seq == 2 * FAULT_AT:
                return
            if given.mode == "healthy" and self._ends(end, seq):
                return
            self.all_reduce(seq)
            time.sleep(0.05)

    def _ends(self, end: float, seq: int) -> bool:
        """Rank 0 says after which operation all end."""
        if self._rank == 0 and time.monotonic() > end and not self._get(1, 0):
            self._put(1, 0, seq + 2)
        return 0 < self._get(1, 0) <= seq


def one_rank(given: argparse.Namespace) -> int:
    """A launcher such as mpirun started this process, and the others as well."""
    with open(given.shared, "r+b") as stream:
        shared = mmap.mmap(stream.fileno(), 8 * 2 * given.ranks)
    Rank(given, int(os.environ[given.number]), shared).run()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["healthy", "idle", "sleep", "late"])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--number", default="none", help="variable that says which rank a process is; none for none")
    parser.add_argument("--nvlink", action="store_true", help="nothing goes over the network")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--shared", help="this process is one rank, which --number names; the others share this file")
    given = parser.parse_args()
    if given.shared is not None:
        return one_rank(given)
    shared = mmap.mmap(-1, 8 * 2 * given.ranks)
    children = []
    for rank in range(given.ranks):
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if given.number != "none":
                os.environ[given.number] = str(rank)
            Rank(given, rank, shared).run()
            os._exit(0)
        children.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)


if __name__ == "__main__":
    sys.exit(main())
