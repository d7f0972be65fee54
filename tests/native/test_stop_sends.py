"""The library that stops one rank's sends to one peer, as the recordings of real links use it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from blackbox_build import COMPILER

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler here to build it with"),
]
SOURCE = Path(__file__).parents[1] / "record" / "stop_sends.c"

LISTENER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
while data := connection.recv(100):
    print(data.decode(), flush=True)
"""

SENDER = """
import socket, sys
ways = [socket.create_connection(("127.0.0.1", int(port))) for port in sys.argv[1:]]
for line in sys.stdin:
    which, text = line.split()
    try:
        print(ways[int(which)].send(text.encode()), flush=True)
    except BlockingIOError:
        print("stopped", flush=True)
"""


def test_only_the_sends_of_one_rank_to_one_peer_stop(tmp_path: Path) -> None:
    """While a link is stopped its sends say EAGAIN after the bytes that may still pass; others pass, and it resumes."""
    library, page = tmp_path / "stop_sends.so", tmp_path / "page"
    subprocess.run([str(COMPILER), "-O2", "-fPIC", "-shared", SOURCE, "-o", library, "-ldl"], check=True)
    page.write_bytes(bytes(32 + 2 * 65536))

    def start(rank: int, code: str, *arguments: str) -> subprocess.Popen[str]:
        env = {**os.environ, "LD_PRELOAD": str(library), "RECORD_LINK": str(page), "RANK": str(rank)}
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    listeners = [start(rank, LISTENER) for rank in (1, 2)]
    sender = start(0, SENDER, *(listener.stdout.readline().strip() for listener in listeners))

    def send(which: int, text: str) -> str:
        sender.stdin.write(f"{which} {text}\n")
        sender.stdin.flush()
        return sender.stdout.readline().strip()

    def set_link(active: int, left: int) -> None:
        with page.open("r+b") as stream:
            stream.write(struct.pack("<iiiiq", active, 0, 1, 0, left))

    try:
        assert send(0, "abc") == "3" and listeners[0].stdout.readline() == "abc\n"
        set_link(1, 2)
        assert send(0, "passes") == "6"
        assert send(0, "stays") == "stopped"
        assert send(1, "other") == "5" and listeners[1].stdout.readline() == "other\n"
        set_link(0, 0)
        assert send(0, "again") == "5"
    finally:
        for process in (sender, *listeners):
            process.kill()
            process.wait()
