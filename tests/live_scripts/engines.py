"""Communication past the flight recorder, four ranks on one GPU: healthy, or one rank asleep. Needs a GPU and NCCL.

`engines.py KIND [--hang]`
  graph     under torchrun: an all_reduce that is captured in a CUDA graph and replayed
  pynccl    under torchrun: Gloo for control, NCCL by ctypes for data, with a second communicator that is never used
  weights   starts two programs of two ranks each, without torch.distributed: a trainer sends its weights to a server
            now and then, over a communicator that both share
"""

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Several ranks on one GPU: NCCL must take each for a node of its own (tests/record/README.md).
os.environ.update(
    NCCL_HOSTID=f"engines{os.getppid()}-{os.environ.get('RANK', '0')}",
    NCCL_NET="Socket",
    NCCL_IB_DISABLE="1",
    NCCL_SOCKET_IFNAME="lo",
    NCCL_P2P_DISABLE="1",
    NCCL_SHM_DISABLE="1",
    NCCL_MAX_NCHANNELS="2",
)

import torch

RANK = int(os.environ.get("RANK", "0"))
FOREVER_S = 1000.0
SECONDS = 25.0
SICK_STEP = 60
SICK_RANK = 2
FLOAT = 7
SUM = 0


def say_fault():
    os.write(1, f"fault at {time.time():.3f}\n".encode())


def fetch_prompts():
    say_fault()
    time.sleep(FOREVER_S)


def schedule_requests():
    say_fault()
    time.sleep(FOREVER_S)


def load_weights():
    say_fault()
    time.sleep(FOREVER_S)


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class Nccl:
    """A communicator as pynccl makes it: libnccl that torch has loaded, by ctypes."""

    library = None

    def __init__(self, id_bytes, size, rank):
        self.library = self.load()
        self._comm = ctypes.c_void_p()
        self._check(
            self.library.ncclCommInitRank(ctypes.byref(self._comm), size, UniqueId.from_buffer_copy(id_bytes), rank)
        )

    @classmethod
    def load(cls):
        if cls.library is None:
            torch.cuda.init()
            loaded = Path("/proc/self/maps").read_text().split()
            cls.library = ctypes.CDLL(next((word for word in loaded if "libnccl.so" in word), "libnccl.so.2"))
            cls.library.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
        return cls.library

    @classmethod
    def new_id(cls):
        made = UniqueId()
        cls._check(cls.load().ncclGetUniqueId(ctypes.byref(made)))
        return bytes(made)

    @staticmethod
    def _check(result):
        if result:
            raise RuntimeError(f"NCCL error {result}")

    def all_reduce(self, tensor):
        at = ctypes.c_void_p(tensor.data_ptr())
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._check(self.library.ncclAllReduce(at, at, ctypes.c_size_t(tensor.numel()), FLOAT, SUM, self._comm, stream))

    def broadcast(self, tensor, root):
        at = ctypes.c_void_p(tensor.data_ptr())
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._check(
            self.library.ncclBroadcast(at, at, ctypes.c_size_t(tensor.numel()), FLOAT, root, self._comm, stream)
        )


def loop(hang, sick_rank, fault, step):
    """Steps until the time is over, as rank 0 counts it; the sick rank falls asleep at its step."""
    for number in range(int(SECONDS / 0.05)):
        if hang and sick_rank and number == SICK_STEP:
            fault()
        step(number)
        torch.cuda.synchronize()
        time.sleep(0.05)


def graph(given):
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    tensor = torch.ones(4096, device="cuda")
    for _ in range(3):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        dist.all_reduce(tensor)
    loop(given.hang, RANK == SICK_RANK, fetch_prompts, lambda number: captured.replay())
    dist.destroy_process_group()


def pynccl(given):
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    comms = []
    for _ in range(2):
        shared = [Nccl.new_id() if RANK == 0 else None]
        dist.broadcast_object_list(shared, src=0)
        comms.append(Nccl(shared[0], size, RANK))
    tensor = torch.ones(4096, device="cuda")
    comms[1].all_reduce(tensor)  # once, and never again
    loop(given.hang, RANK == SICK_RANK, schedule_requests, lambda number: comms[0].all_reduce(tensor))
    dist.barrier()


def weights(given):
    """The launcher: two programs of two ranks, which meet over a file."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(4):
            words = [
                sys.executable,
                __file__,
                "weights_rank",
                "--meet",
                f"{folder}/id",
                *(["--hang"] if given.hang else []),
            ]
            children.append(subprocess.Popen(words, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "4"}))
        return max(child.wait() for child in children)


def weights_rank(given):
    """Ranks 0 and 1 train, 2 and 3 serve; each pair has a communicator of its own, and all four share one."""
    torch.cuda.set_device(0)
    meet = Path(given.meet)
    if RANK == 0:
        part = meet.with_suffix(".part")
        part.write_bytes(b"".join(Nccl.new_id() for _ in range(3)))
        part.rename(meet)
    while not meet.exists():
        time.sleep(0.05)
    ids = meet.read_bytes()
    everybody = Nccl(ids[:128], 4, RANK)
    pair = 1 + RANK // 2
    mine = Nccl(ids[128 * pair : 128 * (pair + 1)], 2, RANK % 2)
    tensor = torch.ones(4096, device="cuda")

    def step(number):
        mine.all_reduce(tensor)
        if number % 10 == 9:
            everybody.broadcast(tensor, 0)

    loop(given.hang, RANK == SICK_RANK, load_weights, step)


def main():
    kinds = {kind.__name__: kind for kind in (graph, pynccl, weights, weights_rank)}
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--meet", default="")
    given = parser.parse_args()
    return kinds[given.kind](given)


if __name__ == "__main__":
    sys.exit(main())
