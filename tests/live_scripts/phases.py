"""Thirty healthy long phases of one rank under `hangscope run --on-hang kill` with short times: no job may be ended.

    python tests/live_scripts/phases.py [--times 3] [--together 2] [--only NAME…] [--seconds 16]

Rank 0 is in the phase while rank 1 waits in an all_reduce; then both go on. The job must end with 0, and be left alone.
`--job NAME` is the job itself. A phase takes some thirty seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import http.client
import http.server
import mmap
import multiprocessing
import os
import random
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve()
SOURCE = HERE.parents[2] / "src"
STALL_S = 4.0
KILL_S = 6.0
CHUNK = b"x" * 200_000


# ---- servers that are slow, or late ----------------------------------------------------------------------------------


class Slow(http.server.BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        left = int(self.headers["Content-Length"])
        while left > 0:
            left -= len(self.rfile.read(min(left, len(CHUNK))))
            time.sleep(0.1)
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200 if time.monotonic() > self.server.until else 503)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def slow_server(seconds: float) -> Iterator[int]:
    """In a process of its own, as another machine's would be: it is no child of the rank's."""
    read, write = os.pipe()
    if os.fork() == 0:
        if os.fork():
            os._exit(0)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
        server.until = time.monotonic() + seconds  # type: ignore[attr-defined]
        os.write(write, str(server.server_port).encode())
        threading.Timer(seconds * 4, os._exit, (0,)).start()
        server.serve_forever()
    os.wait()
    yield int(os.read(read, 10))


# ---- the phases ------------------------------------------------------------------------------------------------------


def put(port: int, size: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("PUT", "/x", body=b"x" * size)
    assert connection.getresponse().status == 200


def upload(seconds: float) -> None:
    with slow_server(seconds) as port:
        put(port, int(seconds * 2_000_000))


def upload_in_parts(seconds: float) -> None:
    with slow_server(seconds) as port, ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: put(port, 2_000_000), range(int(seconds) * 2)))


def upload_in_a_thread(seconds: float) -> None:
    thread = threading.Thread(target=upload, args=(seconds,))
    thread.start()
    thread.join()


def upload_by_a_child(seconds: float) -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(upload, (seconds,))


def wait_for_a_service(seconds: float) -> None:
    with slow_server(seconds) as port:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/")
            if connection.getresponse().status == 200:
                return
            time.sleep(1.0)


def send_over_a_unix_socket(seconds: float) -> None:
    one, other = socket.socketpair()
    reader = threading.Thread(target=lambda: [time.sleep(0.05) for _ in iter(lambda: other.recv(100_000), b"")])
    reader.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        one.send(CHUNK)
    one.close()
    reader.join()


def send_over_tcp(seconds: float) -> None:
    with slow_server(seconds) as port, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            connection.send(CHUNK)


def poll(seconds: float, pause: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        os.path.exists("/nowhere")
        time.sleep(pause)


def retry_growing(seconds: float) -> None:
    until = time.monotonic() + seconds
    pause = 0.25
    while time.monotonic() < until:
        time.sleep(pause)
        pause = min(2.0, pause * 2)


def poll_a_lock(seconds: float) -> None:
    with tempfile.TemporaryFile() as file:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.5)


def poll_an_event(seconds: float) -> None:
    event = threading.Event()
    threading.Timer(seconds, event.set).start()
    while not event.wait(0.5):
        pass


def poll_a_child(seconds: float) -> None:
    child = subprocess.Popen(["sleep", str(seconds)])
    while child.poll() is None:
        time.sleep(0.3)


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(10_000))


def compute_in_a_thread(seconds: float) -> None:
    thread = threading.Thread(target=compute, args=(seconds,))
    thread.start()
    thread.join()


def compute_in_a_pool(seconds: float) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        list(pool.map(compute, [seconds, seconds]))


def child(code: str) -> Callable[[float], None]:
    def run(seconds: float) -> None:
        head = f"import time, os; until = time.monotonic() + {seconds}\n"
        subprocess.run([sys.executable, "-c", head + code], check=True)

    return run


def write_file(seconds: float) -> None:
    with tempfile.TemporaryFile() as file:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            file.seek(0)
            file.write(CHUNK)
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.1)


def read_file(seconds: float) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(CHUNK * 10)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            os.pread(file.fileno(), 200_000, 0)
            time.sleep(0.1)


def checkpoint_to_a_slow_pipe(seconds: float) -> None:
    reader = subprocess.Popen(
        [sys.executable, "-c", "import os, time\nwhile os.read(0, 30000): time.sleep(0.1)"], stdin=subprocess.PIPE
    )
    assert reader.stdin is not None
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        reader.stdin.write(CHUNK)
    reader.stdin.close()
    reader.wait()


def page_in(seconds: float) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * (64 << 20))
        file.flush()
        os.fsync(file.fileno())
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
                for at in range(0, len(memory), 1 << 20):
                    memory[at]
                    time.sleep(0.005)


def queue_of_a_worker(seconds: float) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    worker = context.Process(target=lambda: (compute(seconds), queue.put(1)))
    worker.start()
    queue.get()
    worker.join()


def database(seconds: float) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table t (a text)")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        connection.executemany("insert into t values (?)", [("x" * 100,)] * 10_000)


def tokenise(seconds: float) -> None:
    text = " ".join(random.Random(0).choices(["one", "two", "three"], k=20_000))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        re.findall(r"\w+", text)


def evaluate(seconds: float) -> None:
    import torch

    until = time.monotonic() + seconds
    layer = torch.nn.Linear(256, 256)
    while time.monotonic() < until:
        layer(torch.ones(64, 256))


PHASES: dict[str, Callable[[float], None]] = {
    "upload": upload,
    "upload_in_parts": upload_in_parts,
    "upload_in_a_thread": upload_in_a_thread,
    "upload_by_a_child": upload_by_a_child,
    "send_over_tcp": send_over_tcp,
    "send_over_a_unix_socket": send_over_a_unix_socket,
    "wait_for_a_service": wait_for_a_service,
    "poll_a_file_often": lambda seconds: poll(seconds, 0.1),
    "poll_a_file": lambda seconds: poll(seconds, 1.0),
    "poll_a_file_seldom": lambda seconds: poll(seconds, 2.0),
    "retry_growing": retry_growing,
    "poll_a_lock": poll_a_lock,
    "poll_an_event": poll_an_event,
    "poll_a_child": poll_a_child,
    "compute": compute,
    "compute_in_a_thread": compute_in_a_thread,
    "compute_in_a_pool": compute_in_a_pool,
    "compile_by_a_child": child("while time.monotonic() < until: compile('a = 1\\n' * 2000, 'x', 'exec')"),
    "child_reads": child("while time.monotonic() < until: open('/bin/ls', 'rb').read(); time.sleep(0.05)"),
    "child_writes": child(
        "import tempfile\nwith tempfile.TemporaryFile() as f:\n"
        " while time.monotonic() < until: f.seek(0); f.write(b'x' * 200000); f.flush(); time.sleep(0.05)"
    ),
    "grandchild_computes": child(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; u = time.monotonic() + %f\\n"
        "while time.monotonic() < u: pass' % (until - time.monotonic())])"
    ),
    "write_file": write_file,
    "read_file": read_file,
    "checkpoint_to_a_slow_pipe": checkpoint_to_a_slow_pipe,
    "page_in": page_in,
    "queue_of_a_worker": queue_of_a_worker,
    "database": database,
    "tokenise": tokenise,
    "evaluate": evaluate,
    "compress": child("import zlib\nwhile time.monotonic() < until: zlib.compress(os.urandom(1 << 18))"),
}


# ---- the job, and the trials -----------------------------------------------------------------------------------------


def job(name: str, seconds: float) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.ones(8)
    for _ in range(20):
        dist.all_reduce(tensor)
        time.sleep(0.05)
    if dist.get_rank() == 0:
        PHASES[name](seconds)
    for _ in range(60):
        dist.all_reduce(tensor)
        time.sleep(0.05)
    time.sleep(0.5)  # torch 2.13 may abort by itself right after a collective
    dist.destroy_process_group()


def trial(name: str, number: int, seconds: float, folder: Path) -> tuple[bool, str]:
    """Whether the job was left alone and ended well, and a line about it."""
    place = folder / f"{name}-{number}"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = ["--dir", str(place), "--stall-after", str(STALL_S), "--on-hang", "kill", "--kill-after", str(KILL_S)]
    words = [sys.executable, "-m", "hangscope", "run", *options, "--", *launcher, str(HERE)]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*words, "--job", name, "--seconds", str(seconds)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    (folder / f"{name}-{number}.txt").write_text(done.stdout)
    left_alone = done.returncode == 0 and "get SIGTERM" not in done.stdout
    verdict = next(
        (line for line in done.stdout.splitlines() if re.match(r"hangscope: (HANG|WAIT|PAUSE|\?) ", line)), "no verdict"
    )
    return (
        left_alone,
        f"{name}: {'left alone' if left_alone else f'CHANGED, status {done.returncode}'}; {verdict[:110]}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--together", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=16.0)
    parser.add_argument("--only", nargs="*", choices=list(PHASES))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--job", choices=list(PHASES), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is not None:
        job(given.job, given.seconds)
        return 0
    folder = given.keep or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    wanted = [(name, number) for number in range(given.times) for name in given.only or PHASES]
    changed = 0
    with ThreadPoolExecutor(given.together) as pool:
        for left_alone, line in pool.map(lambda each: trial(*each, given.seconds, folder), wanted):
            print(line, flush=True)
            changed += not left_alone
    print(f"{changed} of {len(wanted)} jobs changed; their output is in {folder}")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
