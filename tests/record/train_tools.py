"""What the training programs share: notes for the launcher, small helpers, and a link that can be cut.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are what a launcher sets. RECORD_DIR is where notes are left.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
NOTES = Path(os.environ["RECORD_DIR"])
BACKEND = os.environ.get("RECORD_BACKEND", "nccl")
TIMEOUT = timedelta(seconds=float(os.environ.get("RECORD_TIMEOUT_S", "12")))
ON_GPU = BACKEND == "nccl"
DEVICE = torch.device("cuda:0" if ON_GPU else "cpu")
FOREVER = 3600


# ---------------------------------------------------------------------------------------------- notes for the launcher


def note(name: str, value: Any = None) -> None:
    temporary = NOTES / f".{name}.part"
    temporary.write_text(json.dumps(value))
    temporary.rename(NOTES / name)


def wait_for_note(name: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not (NOTES / name).exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def line_of(tag: str) -> str | None:
    program = Path(sys.argv[0])
    for number, text in enumerate(program.read_text().splitlines(), 1):
        if f" <{tag}>" in text.partition("  #")[2]:
            return f"/workspace/{program.name}:{number}"
    return None


def next_seq(group: Any) -> int | None:
    """The sequence number that this rank's next collective in the group will have."""
    try:
        return int(group._get_sequence_number_for_group()) + 1
    except (AttributeError, RuntimeError):
        return None


def injected(tag: str, name: str, group: Any = None, **more: Any) -> None:
    """Write down what is about to go wrong here: `name` is the operation that the peers run and this rank does not."""
    group = group or dist.group.WORLD
    operation = {"group": group.group_name, "seq": more.pop("seq", next_seq(group)), "name": name}
    operation["description"] = group.group_desc
    operation["members"] = dist.get_process_group_ranks(group)
    lines = {"line": line_of(f"{tag}.op"), "culprit_line": line_of(f"{tag}.culprit")}
    note(f"injected.{RANK}.json", {"rank": RANK, "at": time.time(), "operation": operation, **lines, **more})


# ------------------------------------------------------------------------------------------------------- common pieces


def say(text: str) -> None:
    print(text, flush=True)


def sync() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def zeros(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(count, dtype=dtype, device=DEVICE)


def barrier() -> None:
    dist.barrier(device_ids=[0]) if ON_GPU else dist.barrier()


def warm_up() -> None:
    grads, state = zeros(65536), zeros(16)
    for _ in range(2):
        dist.all_reduce(grads)
        dist.broadcast(state, src=0)
        sync()
    say(f"rank {RANK} warm")


def end_step(step: int, loss: torch.Tensor | None = None) -> None:
    sync()
    say(f"step {step} done" if loss is None else f"step {step} loss {float(loss):.4f}")


def new_group(ranks: list[int], name: str) -> Any:
    return dist.new_group(ranks, timeout=TIMEOUT, group_desc=name)


def mesh_groups(**sizes: int) -> tuple[Any, ...]:
    """This rank's group of every dimension, outermost first."""
    mesh = init_device_mesh(DEVICE.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    groups = tuple(mesh.get_group(name) for name in sizes)
    for group in groups:
        distributed_c10d._set_pg_timeout(TIMEOUT, group)  # a mesh gives its groups the default of ten minutes
    return groups


def dump() -> None:
    """Write this rank's dump by hand: ranks that end in good order leave none of their own accord."""
    c10d: Any = torch._C._distributed_c10d
    prefix = os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]
    pickled = c10d._dump_nccl_trace if ON_GPU else c10d._dump_fr_trace
    Path(f"{prefix}{RANK}").write_bytes(pickled(includeCollectives=True, includeStackTraces=True, onlyActive=False))
    if os.environ.get("RECORD_JSON"):
        as_json = c10d._dump_nccl_trace_json if ON_GPU else c10d._dump_fr_trace_json
        text = as_json(includeCollectives=True, onlyActive=False)
        Path(f"{prefix}{RANK}.json").write_bytes(text if isinstance(text, bytes) else text.encode())


def finish() -> None:
    """Leave in good order, and only together: a rank that left alone would close its peers' connections."""
    sync()
    dump()
    note(f"done.{RANK}")
    wait_for_note("stop")
    dist.destroy_process_group()


def sleep_while_waiting() -> None:
    """Make CUDA's waits sleep: many ranks share the cores, and by default each of them would spin."""
    blocking_sync = 4
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuInit(0)
        driver.cuDevicePrimaryCtxSetFlags_v2(0, blocking_sync)


def play(scenarios: dict[str, Callable[[], None]], split: tuple[str, ...] = (), cold: tuple[str, ...] = ()) -> None:
    """Run the scenario that the command names.

    Those in `split` get their subgroups from ncclCommSplit; those in `cold` start without a collective before them.
    """
    name = sys.argv[1]
    stacks = (NOTES / f"stacks.{RANK}").open("w")
    faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
    if ON_GPU:
        sleep_while_waiting()
        torch.cuda.set_device(DEVICE)
        zeros(1).add_(1).sum().item()
    bound = DEVICE if ON_GPU and name in split else None
    dist.init_process_group(BACKEND, timeout=TIMEOUT, device_id=bound)
    try:
        if name not in cold:
            warm_up()
        scenarios[name]()
        finish()
    except Exception:
        if not ON_GPU:
            dump()  # Gloo writes no dump when it times out
        raise


# ------------------------------------------------------------------------------------------------- a link that is dead

SO_ATTACH_FILTER = 26
TCP_INFO_BYTES_RECEIVED = 128
DATA_BYTES = 200_000


def tcp_connections() -> Iterator[tuple[socket.socket, int, int]]:
    """This process's connected IPv4 sockets: (socket, own port, peer's port)."""
    for name in os.listdir("/proc/self/fd"):
        try:
            duplicate = os.dup(int(name))
        except OSError:
            continue
        try:
            sock = socket.socket(fileno=duplicate)
        except OSError:
            os.close(duplicate)
            continue
        try:
            if sock.type == socket.SOCK_STREAM and sock.family == socket.AF_INET:
                yield sock, sock.getsockname()[1], sock.getpeername()[1]
        except OSError:
            pass  # a listening socket has no peer
        finally:
            sock.close()


def cut_link(receiver: int, tag: str, name: str) -> None:
    """From here on `receiver` gets nothing from its predecessor: the kernel drops what arrives on those connections.

    The predecessor is whoever sent it the most so far. Connections that carried little (bootstrap, RAS) stay as they
    are, as they would where the data has a network of its own.
    """
    sync()
    barrier()
    sync()
    if receiver != RANK:
        note(f"ports.{RANK}.json", [(own, peer) for _, own, peer in tcp_connections()])
        wait_for_note(f"injected.{receiver}.json")
        return
    owner = {}  # by the two ports as this end sees them: one port alone can serve several connections
    for rank in set(range(WORLD)) - {RANK}:
        wait_for_note(f"ports.{rank}.json")
        for own, peer in json.loads((NOTES / f"ports.{rank}.json").read_text()):
            owner[peer, own] = rank
    received = dict.fromkeys(range(WORLD), 0)
    for sock, own, peer in tcp_connections():
        if (own, peer) in owner:
            received[owner[own, peer]] += bytes_received(sock)
    sender = max(received, key=lambda rank: received[rank])
    cut = 0
    for sock, own, peer in tcp_connections():
        if owner.get((own, peer)) == sender and bytes_received(sock) >= min(DATA_BYTES, received[sender] // 8):
            drop_all(sock)
            cut += 1
    say(f"link {sender} -> {RANK} cut: {cut} connections, {received[sender]} bytes before")
    injected(tag, name, link=[sender, RANK])


def bytes_received(sock: socket.socket) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    return int(struct.unpack_from("Q", info, TCP_INFO_BYTES_RECEIVED)[0])


def drop_all(sock: socket.socket) -> None:
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0, keep no byte
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(program)))
