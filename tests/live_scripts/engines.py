"""Communication past the flight recorder, four ranks on one GPU: healthy, or one rank asleep. Needs a GPU and NCCL.

`engines.py KIND [--hang]`
  graph     under torchrun: an all_reduce that is captured in a CUDA graph and replayed
  pynccl    under torchrun: Gloo for control, NCCL by ctypes for data, with a second communicator that is never used
  weights   starts two programs of two ranks each, without torch.distributed: a trainer sends its weights to a server
            now and then, over a communicator that both share
  server    starts processes of three kinds, as an engine does: a front, a core that hands work out over pipes, and four
            workers that reduce by NCCL; nothing has RANK set, each has the title that vLLM gives
  spin      under torchrun: kernels that wait for a flag in another rank's memory, as DeepEP's do; no NCCL for data
  program   starts four processes of nccl_program.c, which knows nothing of Python
  kernel    under torchrun: plain all_reduce, and a kernel on one GPU that never ends
  starts    under torchrun, healthy only: a pipeline whose connections and first collectives take their time
"""

import argparse
import ctypes
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import one_gpu

os.environ.update(one_gpu.settings("engines"))

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


def prepare_inputs():
    say_fault()
    time.sleep(FOREVER_S)


def route_tokens():
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
    captured.reset()  # NCCL does not end a communicator that a graph still holds
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


# ---- an engine of three kinds of processes ---------------------------------------------------------------------------


def titled(title):
    """vLLM and SGLang name their processes so, where setproctitle is there."""
    try:
        import setproctitle
    except ImportError:
        return
    setproctitle.setproctitle(title)


def server(given):
    """The front: takes requests (here: makes them up) and hands them to the core."""
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    core = spawn.Process(target=engine_core, args=(theirs, given.hang))
    core.start()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        mine.send("request")
        mine.recv()
    mine.send(None)
    core.join()
    return core.exitcode


def engine_core(requests, hang):
    titled("VLLM::EngineCore")
    spawn = multiprocessing.get_context("spawn")
    ids = Nccl.new_id()
    pipes = []
    workers = []
    for rank in range(4):
        mine, theirs = spawn.Pipe()
        workers.append(spawn.Process(target=engine_worker, args=(theirs, ids, rank, hang)))
        workers[-1].start()
        pipes.append(mine)
    number = 0
    while (request := requests.recv()) is not None:
        for pipe in pipes:
            pipe.send(number)
        for pipe in pipes:
            pipe.recv()
        number += 1
        requests.send(request)
    for pipe in pipes:
        pipe.send(None)
    for worker in workers:
        worker.join()


def engine_worker(work, ids, rank, hang):
    titled(f"VLLM::Worker_TP{rank}")
    os.environ["NCCL_HOSTID"] = f"server{os.getppid()}-{rank}"  # this module was imported anew, and said another
    torch.cuda.set_device(0)
    comm = Nccl(ids, 4, rank)
    tensor = torch.ones(4096, device="cuda")
    while (number := work.recv()) is not None:
        if hang and rank == SICK_RANK and number == SICK_STEP:
            prepare_inputs()
        comm.all_reduce(tensor)
        torch.cuda.synchronize()
        time.sleep(0.05)
        work.send(number)


# ---- kernels that wait for a flag ------------------------------------------------------------------------------------

WAIT_FOR_FLAGS = """
extern "C" __global__ void dispatch_wait(volatile long long* flags, long long rank, long long ranks, long long turn) {
    flags[rank] = turn;
    __threadfence_system();
    for (long long peer = 0; peer < ranks; peer++)
        while (flags[peer] < turn) { }
}
"""


def spin(given):
    import torch.distributed as dist
    from torch.multiprocessing.reductions import reduce_tensor

    torch.cuda.set_device(0)
    dist.init_process_group("gloo")
    flags = torch.zeros(dist.get_world_size(), dtype=torch.int64, device="cuda")
    shared = [reduce_tensor(flags) if RANK == 0 else None]
    dist.broadcast_object_list(shared, src=0)
    if RANK != 0:
        rebuild, how = shared[0]
        flags = rebuild(*how)
    kernel = torch.cuda._compile_kernel(WAIT_FOR_FLAGS, "dispatch_wait")

    def dispatch(number):
        kernel((1, 1, 1), (1, 1, 1), (flags, RANK, dist.get_world_size(), number + 1))

    dist.barrier()
    loop(given.hang, RANK == SICK_RANK, route_tokens, dispatch)
    dist.barrier()


def kernel(given):
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    tensor = torch.ones(4096, device="cuda")

    def run_for_ever():
        say_fault()
        torch.cuda._sleep(1 << 62)

    loop(given.hang, RANK == SICK_RANK, run_for_ever, lambda number: dist.all_reduce(tensor))
    dist.destroy_process_group()


# ---- a program in C --------------------------------------------------------------------------------------------------


def program(given):
    """Compiles it, and starts four of them as a shell script would, without a variable that says who is who."""
    packages = Path(torch.__file__).parent.parent / "nvidia"
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        nccl = packages / "nccl"
        compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        links = [f"-L{nccl}/lib", "-Xlinker", "-rpath", "-Xlinker", f"{nccl}/lib", "-l:libnccl.so.2"]
        subprocess.run(
            [compiler, f"-I{nccl}/include", str(here / "nccl_program.c"), *links, "-o", f"{folder}/train"], check=True
        )
        children = []
        for rank in range(4):
            environ = {**os.environ, "NCCL_HOSTID": f"program{os.getpid()}-{rank}"}
            environ.pop("RANK", None)
            sick = SICK_STEP if given.hang and rank == SICK_RANK else -1
            words = [f"{folder}/train", f"{folder}/id", "4", str(rank), str(int(SECONDS / 0.05)), str(sick)]
            children.append(subprocess.Popen(words, env=environ))
        return max(child.wait() for child in children)


# ---- starts that take their time -------------------------------------------------------------------------------------


def starts(given):
    """Ranks import and load at their own pace; connections are made at first use, down a pipeline, then by all."""
    import torch.distributed as dist

    pace = random.Random(f"{os.environ.get('TORCHELASTIC_RUN_ID')}{RANK}")
    time.sleep(pace.uniform(0.0, 4.0))
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    size = dist.get_world_size()
    tensor = torch.ones(1 << 16, device="cuda")
    if RANK > 0:
        dist.recv(tensor, RANK - 1)
    time.sleep(1.2)  # this stage's first forward compiles
    last = size - 1
    if last > RANK:
        dist.send(tensor, RANK + 1)
    torch.cuda.synchronize()
    pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    dist.all_reduce(tensor, group=pairs[RANK // 2])
    dist.all_reduce(tensor)
    compiled = torch.compile(lambda x: (x * 2).sin().sum()) if last == RANK else torch.sum
    compiled(tensor)
    for _ in range(100):
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        time.sleep(0.02)
    dist.destroy_process_group()


def main():
    listed = (graph, pynccl, weights, weights_rank, server, spin, kernel, program, starts)
    kinds = {kind.__name__: kind for kind in listed}
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--meet", default="")
    given = parser.parse_args()
    return kinds[given.kind](given)


if __name__ == "__main__":
    sys.exit(main())
