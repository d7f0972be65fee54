"""The programs of program_jobs.py: a trainer of two ranks, and the servers, holders and workers that it meets.

    python ROLE.py [WORD…]      each role is a link to this file: a program is known by its script's name

The trainer takes three steps, and then rank 1 does what its last word says, for ever, while rank 0 waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import http.client
import http.server
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

FOREVER_S = 1000.0
HERE = Path(__file__).resolve()


def say(word: str) -> None:
    """One line on stdout: who is ready, and where it went wrong."""
    os.write(1, f"{word}\n".encode())


def program(role: str) -> list[str]:
    script = Path(sys.argv[0]).with_name(f"{role}.py")
    script.symlink_to(HERE)
    return [sys.executable, str(script)]


# ---- the trainer -----------------------------------------------------------------------------------------------------


def trainer(seam: str, *words: str) -> None:
    """A rank of a job of two: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    tensor = torch.ones(64)
    for _ in range(3):
        dist.all_reduce(tensor)
    if rank == 1 or seam in BOTH:
        say("fault")
        SEAMS[seam](*words)
    dist.all_reduce(tensor)
    time.sleep(FOREVER_S)


rollout = trainer
"""The ranks of another job beside the trainer's."""


def ask_http(port: str, path: str = "/score") -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(port))
    connection.request("POST", path, body=b"{}", headers={"Authorization": "Bearer not-to-be-shown"})
    connection.getresponse().read()


def ask_at(address: str, port: str) -> None:
    """Over a plain connection to another node."""
    with socket.create_connection((address, int(port))) as connection:
        connection.sendall(b"score\n")
        connection.recv(64)


def ask_zmq(port: str) -> None:
    import zmq

    dealer = zmq.Context().socket(zmq.DEALER)
    dealer.connect(f"tcp://127.0.0.1:{port}")
    dealer.send_multipart([b"", b"prompt"])
    dealer.recv()


def store_key() -> None:
    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store()
    store.get("engine/0/ready")


def read_fifo(path: str) -> None:
    with open(path, "rb") as fifo:
        fifo.read()


def take_lock(path: str) -> None:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


class Samples:
    """A data set whose samples come from a service on this node."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        with socket.socket(socket.AF_UNIX) as service:
            service.connect(self.path)
            service.sendall(b"%d\n" % index)
            return len(service.recv(64))


def load_samples(path: str) -> None:
    from torch.utils.data import DataLoader

    for _ in DataLoader(Samples(path), num_workers=1):  # type: ignore[arg-type]
        pass


def stream_grpc(port: str) -> None:
    import grpc

    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    call = channel.stream_unary("/rollouts.Buffer/Put")
    call(bytes(1 << 20) for _ in range(1000))


def update_row(address: str) -> None:
    import psycopg

    with psycopg.connect(address) as connection:
        connection.execute("UPDATE rollouts SET done = true WHERE id = 1")


def pop_list(port: str) -> None:
    with socket.create_connection(("127.0.0.1", int(port))) as redis:
        redis.sendall(b"*3\r\n$5\r\nBLPOP\r\n$8\r\nrollouts\r\n$1\r\n0\r\n")
        redis.recv(64)


def wait_for_child() -> None:
    subprocess.run(program("convert_samples"), check=False)


def fork_with_lock() -> None:
    lock = threading.Lock()
    held = threading.Event()

    def keep() -> None:
        with lock:
            held.set()
            time.sleep(FOREVER_S)

    threading.Thread(target=keep, daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        with lock:
            os._exit(0)
    os.waitpid(child, 0)


def take_semaphore(name: str) -> None:
    """A POSIX semaphore whose holder was killed."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sem_open.restype = ctypes.c_void_p
    semaphore = ctypes.c_void_p(libc.sem_open(name.encode(), 0))
    libc.sem_wait(semaphore)


def read_file(path: str) -> None:
    Path(path).read_bytes()


def resolve(name: str) -> None:
    with contextlib.suppress(OSError):
        socket.getaddrinfo(name, 80)
    time.sleep(FOREVER_S)


def sleeps(*_unused: str) -> None:
    """Its own fault: it has a connection to a server, and does not wait for it."""
    if _unused:
        connection = http.client.HTTPConnection("127.0.0.1", int(_unused[0]))
        connection.request("POST", "/score", body=b"{}")
        connection.getresponse().read()
    time.sleep(FOREVER_S)


def steps_for_ever(port: str) -> None:
    """Healthy: it asks the server in each step, works a little, and meets the other rank."""
    import torch
    import torch.distributed as dist

    connection = http.client.HTTPConnection("127.0.0.1", int(port))
    tensor = torch.ones(64)
    until = time.monotonic() + FOREVER_S
    while time.monotonic() < until:
        connection.request("POST", "/score", body=b"{}")
        connection.getresponse().read()
        dist.all_reduce(tensor)
        tensor.fill_(1.0)
        time.sleep(0.02)


def weights_sender(port: str) -> None:
    """Trainer rank 0 saves a checkpoint that never ends, before it sends its weights; rank 1 trains on."""
    import torch
    import torch.distributed as dist

    if os.environ["RANK"] == "0":
        group = join_weights(port, 0)
        write_checkpoint()
        group.broadcast([torch.ones(64)]).wait()
    dist.barrier()


def weights_receiver(port: str) -> None:
    """Rollout rank 0 waits for the trainer's weights; rank 1 for rank 0."""
    import torch
    import torch.distributed as dist

    if os.environ["RANK"] == "0":
        group = join_weights(port, 1)
        group.broadcast([torch.ones(64)]).wait()
    dist.barrier()


def join_weights(port: str, rank: int):
    """A group over two jobs, as RL libraries make it: a store and a backend of their own."""
    import datetime

    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", int(port), 2, is_master=rank == 0)
    return dist.ProcessGroupGloo(store, rank, 2, datetime.timedelta(seconds=FOREVER_S))


def write_checkpoint() -> None:
    time.sleep(FOREVER_S)


def sync_then_ask(sync_port: str, http_port: str) -> None:
    """The trainer's side of the circle: it joins the weights' group, and asks for rollouts before it sends."""
    import torch

    group = join_weights(sync_port, 0)
    ask_http(http_port, "/generate")
    group.broadcast([torch.ones(64)]).wait()


SEAMS = {
    "ask_http": ask_http,
    "ask_at": ask_at,
    "ask_zmq": ask_zmq,
    "store_key": store_key,
    "read_fifo": read_fifo,
    "take_lock": take_lock,
    "load_samples": load_samples,
    "stream_grpc": stream_grpc,
    "update_row": update_row,
    "pop_list": pop_list,
    "wait_for_child": wait_for_child,
    "fork_with_lock": fork_with_lock,
    "take_semaphore": take_semaphore,
    "read_file": read_file,
    "resolve": resolve,
    "sleeps": sleeps,
    "both_step": steps_for_ever,
    "weights_sender": weights_sender,
    "weights_receiver": weights_receiver,
    "sync_then_ask": sync_then_ask,
}
BOTH = ("store_key", "weights_sender", "weights_receiver", "both_step")
"""What both ranks do."""


# ---- the others ------------------------------------------------------------------------------------------------------


def http_server(port: str, answer) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            body = answer()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    say("ready")
    server.serve_forever()


def rollout_engine(http_port: str, sync_port: str) -> None:
    """An engine that takes the trainer's weights before it answers a request."""
    import torch

    group = []
    joined = threading.Event()

    def join() -> None:
        group.append(join_weights(sync_port, 1))
        joined.set()

    def answer() -> bytes:
        joined.wait()
        group[0].broadcast([torch.ones(64)]).wait()
        return b"{}"

    threading.Thread(target=join, daemon=True).start()
    http_server(http_port, answer)


def reward_server(port: str) -> None:
    http_server(port, lambda: b"{}")


def slow_server(port: str) -> None:
    def answer() -> bytes:
        time.sleep(FOREVER_S)
        return b""

    http_server(port, answer)


def plain_server(address: str, port: str) -> None:
    """Answers on a connection line by line."""
    with socket.create_server((address, int(port))) as server:
        say("ready")
        while True:
            connection, _ = server.accept()
            while connection.recv(64):
                connection.sendall(b"1\n")


namesake = plain_server
"""The same program on another node, with nothing to do with the job."""


def zmq_router(port: str, worker_port: str) -> None:
    import zmq

    context = zmq.Context()
    front, back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    front.bind(f"tcp://127.0.0.1:{port}")
    back.bind(f"tcp://127.0.0.1:{worker_port}")
    say("ready")
    zmq.proxy(front, back)


def zmq_worker(worker_port: str) -> None:
    import zmq

    worker = zmq.Context().socket(zmq.REP)
    worker.connect(f"tcp://127.0.0.1:{worker_port}")
    say("ready")
    worker.recv()
    os.kill(os.getpid(), 9)


def compiler(path: str) -> None:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        say("ready")
        time.sleep(FOREVER_S)


def data_service(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(8)
        say("ready")
        while True:
            connection, _ = server.accept()
            while connection.recv(64):
                connection.sendall(b"1\n")


def rollout_buffer(port: str) -> None:
    """A gRPC server that takes one message of a stream, and then writes it away for ever."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    def put(requests, _context) -> bytes:
        next(requests)
        time.sleep(FOREVER_S)
        return b""

    handler = grpc.method_handlers_generic_handler(
        "rollouts.Buffer", {"Put": grpc.stream_unary_rpc_method_handler(put)}
    )
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    say("ready")
    server.wait_for_termination()


def row_keeper(address: str) -> None:
    """Changes a row, and forgets to end its transaction."""
    import psycopg

    connection = psycopg.connect(address)
    connection.execute("UPDATE rollouts SET done = false WHERE id = 1")
    say("ready")
    time.sleep(FOREVER_S)


def convert_samples() -> None:
    time.sleep(FOREVER_S)


def semaphore_keeper(name: str) -> None:
    """Takes a semaphore and is killed."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sem_open.restype = ctypes.c_void_p
    semaphore = ctypes.c_void_p(libc.sem_open(name.encode(), os.O_CREAT, ctypes.c_uint(0o600), ctypes.c_uint(1)))
    libc.sem_wait(semaphore)
    say("ready")
    os.kill(os.getpid(), 9)


def file_server(folder: str) -> None:
    """A FUSE file system that answers that it is there, and no more (as an NFS server that is gone)."""
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other".encode()
    if libc.mount(b"samples", folder.encode(), b"fuse.samples", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    request = os.read(device, 1 << 20)
    unique = struct.unpack_from("<IIQ", request)[2]
    given = struct.pack("<IIIIHHII", 7, 31, 0, 0, 12, 9, 1 << 16, 1).ljust(64, b"\0")
    os.write(device, struct.pack("<IiQ", 16 + len(given), 0, unique) + given)
    say("ready")
    os.read(device, 1 << 20)
    time.sleep(FOREVER_S)


def silent_name_server(address: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        say("ready")
        time.sleep(FOREVER_S)


def ray_job(port: str) -> None:
    """A driver that waits for an actor, that waits on a socket for another actor, that does not answer."""
    import ray

    ray.init(num_cpus=3, include_dashboard=False)

    @ray.remote
    class Buffer:
        def serve(self, port: int) -> None:
            with socket.create_server(("127.0.0.1", port)) as server:
                say("ready")
                connection, _ = server.accept()
                connection.recv(64)
                self.compact()

        def compact(self) -> None:
            time.sleep(FOREVER_S)

    @ray.remote
    class Learner:
        def learn(self, port: int) -> bytes:
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    connection = socket.create_connection(("127.0.0.1", port))
                    break
            connection.sendall(b"batch\n")
            return connection.recv(64)

    buffer, learner = Buffer.remote(), Learner.remote()
    buffer.serve.remote(int(port))
    say("fault")
    ray.get(learner.learn.remote(int(port)))


ROLES = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and not name.startswith("_") and getattr(value, "__module__", None) == __name__
}


if __name__ == "__main__":
    ROLES[Path(sys.argv[0]).stem](*sys.argv[1:])
