"""Bytes that processes have sent and received over TCP, by the kernel's count of each socket (sock_diag's tcp_info).

/proc/PID/io counts what goes through read() and write() alone: an upload by send() is no byte there. Sockets are
matched to processes by inode. Processes in another network namespace have sockets that cannot be seen from here.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from collections.abc import Iterable

from hangscope.processes.linux_process import PROC

_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_INFO = 2
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_MESSAGE_SIZE = 72
_INODE_AT = 68
_ATTRIBUTE = struct.Struct("=HH")
_BYTES = struct.Struct("=QQ")
_BYTES_AT = 120
"""In tcp_info: bytes_acked and bytes_received (Linux 4.2)."""
_ERROR, _DONE = 2, 3
_LISTEN = 10
_MOST_ANSWERS = 4096
_MOST_DESCRIPTORS = 65536
ANSWER_S = 1.0
_INODE = re.compile(r"socket:\[(\d+)\]")


def by_socket(pids: Iterable[int]) -> dict[int, int]:
    """Inode → bytes so far, of each TCP socket that one of these processes has open."""
    inodes: set[int] = set()
    with contextlib.suppress(OSError):
        here = os.stat("/proc/self/ns/net")
        for pid in pids:
            inodes |= _sockets(pid, (here.st_dev, here.st_ino))
    if not inodes:
        return {}
    found: dict[int, int] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, struct.error):
            found.update((inode, count) for inode, count in _all_of(family) if inode in inodes)
    return found


def _sockets(pid: int, namespace: tuple[int, int]) -> set[int]:
    inodes = set()
    with contextlib.suppress(OSError):
        theirs = os.stat(PROC / str(pid) / "ns" / "net")
        if (theirs.st_dev, theirs.st_ino) != namespace:
            return set()
        place = PROC / str(pid) / "fd"
        for name in os.listdir(place)[:_MOST_DESCRIPTORS]:
            with contextlib.suppress(OSError):
                match = _INODE.fullmatch(os.readlink(place / name))
                if match is not None:
                    inodes.add(int(match[1]))
    return inodes


def _all_of(family: int) -> list[tuple[int, int]]:
    """(inode, bytes) of every TCP socket of that family in this network namespace that is connected."""
    states = ~(1 << _LISTEN) & 0xFFF
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), states)
    found: list[tuple[int, int]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
        asked.settimeout(ANSWER_S)
        asked.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + body)
        for _ in range(_MOST_ANSWERS):
            answer = asked.recv(1 << 16)
            at = 0
            while at + _HEADER.size <= len(answer):
                size, kind, *_ = _HEADER.unpack_from(answer, at)
                if kind in (_ERROR, _DONE) or size < _HEADER.size:
                    return found
                row = answer[at + _HEADER.size : at + size]
                found.append((int.from_bytes(row[_INODE_AT:_MESSAGE_SIZE], "little"), _bytes(row)))
                at += (size + 3) & ~3
    return found


def _bytes(row: bytes) -> int:
    """Of one socket's answer, 0 where the kernel tells nothing."""
    at = _MESSAGE_SIZE
    while at + _ATTRIBUTE.size <= len(row):
        size, kind = _ATTRIBUTE.unpack_from(row, at)
        if size < _ATTRIBUTE.size:
            break
        info = row[at + _ATTRIBUTE.size : at + size]
        if kind == _INFO and len(info) >= _BYTES_AT + _BYTES.size:
            return sum(_BYTES.unpack_from(info, _BYTES_AT))
        at += (size + 3) & ~3
    return 0
