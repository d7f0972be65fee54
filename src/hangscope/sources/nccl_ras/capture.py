"""NCCL's RAS: a status question to the client port that every NCCL process from 2.24 on shares on a node."""

from __future__ import annotations

import ipaddress
import platform
import socket
import time
from pathlib import Path

from hangscope.sources.nccl_ras.schema import FOLDER
from hangscope.sources.nccl_ras.settings import DEFAULT_PORT
from hangscope.sources.saving import Saving

WHAT = "RAS"
SAMPLES = 2
"""Counts that do not move between two answers tell a stuck rank from a slow one."""

DEFAULT = ("localhost", DEFAULT_PORT)
CONNECT_S = 1.0
DEADLINE_S = 6.0
MOST_BYTES = 64 << 20
TRIES = 3
"""All processes of a user listen on one port and the kernel picks one: a frozen one can swallow a connection."""


def save(node: Saving, sample: int) -> None:
    """One answer of the RAS of this node, where its torch has NCCL."""
    if "dump_nccl_trace_pickle" not in node.handlers or node.ended.is_set():
        return
    where = address(node.settings.get("NCCL_RAS_ADDR"))
    if not is_this_machine(where[0]):
        node.gap(f"NCCL_RAS_ADDR names another machine ({where[0]}): it is not asked")
        return
    if not listening(where[1]):
        node.gap(f"nothing listens on port {where[1]} (NCCL before 2.24, or NCCL_RAS_ENABLE=0)")
        return
    answer, form, why = status(where, DEADLINE_S)
    if answer is None:
        node.gap(why)
    else:
        node.write(f"{FOLDER}/ras.{sample}.{'json' if form == 'json' else 'txt'}", answer)


def address(setting: str | None) -> tuple[str, int]:
    """NCCL_RAS_ADDR as NCCL reads it: host:port, where either may be missing."""
    host, _, port = (setting or "").strip().rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) < 20 and int(port) <= 65535):
        return DEFAULT
    return host.strip("[]") or DEFAULT[0], int(port)


def is_this_machine(host: str) -> bool:
    """Whether that is this machine, by its own word and without asking a name server: RAS listens on the node itself,
    and a process's environment is no reason to connect to any other."""
    if host in ("localhost", platform.node()):
        return True
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        return False
    return True


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
                return (*_RasConnection(connection, until).status(), "")
        except (OSError, ValueError) as error:
            why = str(error) or type(error).__name__
    return None, "", why


class _RasConnection:
    """Lines, each within its time: a server that sends a byte now and then keeps nobody past `until`."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection = connection
        self._until = until
        self._held = bytearray()

    def status(self) -> tuple[bytes, str]:
        if not self._line(b"CLIENT PROTOCOL 2").upper().startswith(b"SERVER PROTOCOL"):
            raise ValueError("not a RAS server")
        left = max(2, int(self._until - time.monotonic()) - 1)
        self._line(b"TIMEOUT %d" % left)
        form = "json" if self._line(b"SET FORMAT json").upper() == b"OK" else "text"  # JSON from NCCL 2.28.7 on
        self._connection.sendall(b"VERBOSE STATUS\n")
        while self._more(self._until):
            if len(self._held) > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES} bytes")
        if not self._held:
            raise ValueError("an empty answer")
        return bytes(self._held), form

    def _line(self, command: bytes) -> bytes:
        self._connection.sendall(command + b"\n")
        until = min(self._until, time.monotonic() + CONNECT_S)
        while b"\n" not in self._held and len(self._held) < 4096 and self._more(until):
            pass
        line, _, rest = bytes(self._held).partition(b"\n")
        self._held = bytearray(rest)
        return line.strip()

    def _more(self, until: float) -> bool:
        """Read on; False at the end. Raises TimeoutError past `until`."""
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("no end of its answer")
        self._connection.settimeout(left)
        data = self._connection.recv(1 << 16)
        self._held += data
        return bool(data)
