"""A process that looks like one with a CUDA context: it makes the driver's pipe, and writes a core when a byte comes.

    python fake_cuda.py MODE CORE

MODE says how the core comes: whole, slow, never, garbage, cut, huge, link, dies, fails (its context is gone afterwards,
so that it ends as a rank does), none (no pipe). `CORE` is the file that is written.
"""

from __future__ import annotations

import os
import socket
import sys
import time


def expanded(name: str) -> str:
    return name.replace("%p", str(os.getpid())).replace("%h", socket.gethostname()).replace("%t", str(int(time.time())))


def write(path: str, data: bytes, parts: int, pause_s: float) -> None:
    with open(path, "wb", buffering=0) as out:
        for at in range(parts):
            out.write(data[at * len(data) // parts : (at + 1) * len(data) // parts])
            time.sleep(pause_s)


def answer(mode: str, path: str, data: bytes) -> None:
    if mode in ("whole", "fails"):
        write(path, data, 3, 0.02)
    elif mode == "slow":
        write(path, data, 5, 0.4)
    elif mode == "garbage":
        write(path, b"\x7fELF" + os.urandom(20_000), 1, 0)
    elif mode in ("cut", "dies"):
        write(path, data[: len(data) // 2], 1, 0)
    elif mode == "huge":
        with open(path, "wb") as out:
            out.truncate(3 << 30)
    elif mode == "link":
        os.symlink("/etc/passwd", path)
    if mode in ("dies", "fails"):
        print("CUDA error: unspecified launch failure", file=sys.stderr, flush=True)
        sys.exit(1)


def listen(mode: str, core: str) -> int:
    """Make the pipe; a handle that stays open: as with the driver, somebody listens until the process ends."""
    pipe = expanded(os.environ["CUDA_COREDUMP_PIPE"])
    os.mkfifo(pipe, 0o640)
    return os.open(pipe, os.O_RDWR)


def main() -> None:
    mode, core = sys.argv[1:3]
    with open(core, "rb") as stream:
        data = stream.read()
    handle = listen(mode, core) if mode != "none" else -1
    print("up", flush=True)
    if handle >= 0:
        os.read(handle, 1)
        answer(mode, expanded(os.environ["CUDA_COREDUMP_FILE"]), data)
    time.sleep(120)


if __name__ == "__main__":
    main()
