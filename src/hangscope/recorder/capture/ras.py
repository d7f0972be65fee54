"""NCCL's RAS: a status question to the client port that every NCCL process from 2.24 on shares on a node."""

from __future__ import annotations

import socket
import time
from pathlib import Path

DEFAULT = ("localhost", 28028)
CONNECT_S = 1.0
TRIES = 3
"""All processes of a user listen on one port and the kernel picks one: a frozen one can swallow a connection."""


def address(setting: str | None) -> tuple[str, int]:
    """NCCL_RAS_ADDR as NCCL reads it: host:port, where either may be missing."""
    host, _, port = (setting or "").strip().rpartition(":")
    if not port.isdigit():
        return DEFAULT
    return host.strip("[]") or DEFAULT[0], int(port)


def listening(port: int) -> bool:
    """Whether anything on this node listens on that port, without connecting to it."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 3 and fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False


def status(where: tuple[str, int], deadline_s: float) -> tuple[bytes | None, str, str]:
    """(answer, "json" or "text", why not)."""
    until = time.monotonic() + deadline_s
    why = "no answer"
    for _ in range(TRIES):
        if time.monotonic() >= until:
            break
        try:
            with socket.create_connection(where, timeout=CONNECT_S) as connection:
                return (*_talk(connection, until), "")
        except (OSError, ValueError) as error:
            why = str(error) or type(error).__name__
    return None, "", why


def _talk(connection: socket.socket, until: float) -> tuple[bytes, str]:
    stream = connection.makefile("rb")
    connection.settimeout(CONNECT_S)

    def line(command: bytes) -> bytes:
        connection.sendall(command + b"\n")
        return stream.readline(4096).strip()

    if not line(b"CLIENT PROTOCOL 2").upper().startswith(b"SERVER PROTOCOL"):
        raise ValueError("not a RAS server")
    left = max(2, int(until - time.monotonic()) - 1)
    line(b"TIMEOUT %d" % left)
    form = "json" if line(b"SET FORMAT json").upper() == b"OK" else "text"  # JSON from NCCL 2.28.7 on
    connection.sendall(b"VERBOSE STATUS\n")
    connection.settimeout(max(0.5, until - time.monotonic()))
    answer = stream.read(64 << 20)
    if not answer:
        raise ValueError("an empty answer")
    return answer, form
