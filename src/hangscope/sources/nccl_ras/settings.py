"""A RAS address of the job's own.

NCCL's default, localhost:28028, is shared by every process of a user on the node, whatever job it belongs to, and
refused to a second user. The port comes from the job's id, so that whoever knows the id knows the port.
"""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Iterator

from hangscope.sources.checks import Checked, Examined

DEFAULT_PORT = 28028

# Below Linux's ephemeral range (32768 up) and Kubernetes' node ports (30000 up), away from torchrun's 29500.
FIRST_PORT = 21_000
PORTS = 7_000


def candidates(job: str) -> Iterator[int]:
    """Ports for a job, best first, the same on every node. Jobs with consecutive numbers start on different ports."""
    if job.isascii() and job.isdigit() and len(job) < 19:
        start = int(job) % PORTS
    else:
        start = int.from_bytes(hashlib.sha256(job.encode("utf-8", "surrogateescape")).digest()[:8], "big") % PORTS
    # A stride that shares no factor with PORTS walks all of them, and neighbours do not walk into each other at once.
    for step in range(PORTS):
        yield FIRST_PORT + (start + step * 1999) % PORTS


def address_for(job: str) -> str:
    """The first candidate that nobody listens on here. Only clients use it, so that nodes may differ."""
    ports = candidates(job)
    first = next(ports)
    if is_free(first):
        return f"localhost:{first}"
    for _ in range(64):
        port = next(ports)
        if is_free(port):
            return f"localhost:{port}"
    return f"localhost:{first}"


def is_free(port: int) -> bool:
    """Whether nobody on this machine listens on localhost:`port`.

    SO_REUSEADDR lets a port whose last connections are still closing pass; a listener refuses it all the same.
    """
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
    return True


def check(examined: Examined) -> Iterator[Checked]:
    """Where the address is the job's own, its port must be free."""
    address = examined.environ.get("NCCL_RAS_ADDR")
    port = (address or "").rpartition(":")[2]
    if not examined.backends & {"nccl", "nccl2"} or address is None or port == str(DEFAULT_PORT):
        return  # the shared default is a matter of the settings
    if not port.isdecimal() or not 0 < int(port) < 65536:
        yield Checked(
            "ras.port",
            False,
            f"NCCL_RAS_ADDR={address} has no port",
            "NCCL cannot listen there, and cannot be asked which ranks are dead or behind",
            "write it like localhost:21234",
            "NCCL_RAS_ADDR",
            address,
        )
    elif is_free(int(port)):
        yield Checked("ras.port", True, f"the RAS port {port} is free")
    else:
        yield Checked(
            "ras.port",
            False,
            f"the RAS port {port} is taken",
            "another job answers there, or this one gets no port, unless it is this job that is running",
            "set NCCL_RAS_ADDR to localhost and a free port",
            "NCCL_RAS_ADDR",
            address,
        )
