"""A file system that answers nobody, as NFS does whose server has gone: FUSE, spoken from here, for root on Linux."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[2])
from kits import hung_mount
hung_mount.serve(sys.argv[1])
"""


def serve(place: str) -> None:
    """Mount it, answer the kernel's first question, say so, and then nothing more."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={handle},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"hung", os.fsencode(place), b"fuse.hung", 0, options) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), place)
    asked = os.read(handle, 1 << 17)
    _, _, unique = struct.unpack_from("<IIQ", asked)
    # fuse_init_out of protocol 7.31, without any of its features
    body = struct.pack("<IIIIHHIIHH", 7, 31, 65536, 0, 16, 12, 65536, 1, 0, 0) + bytes(28)
    os.write(handle, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)
    print("silent", flush=True)
    sys.stdin.read()


def possible() -> bool:
    """Whether this machine lets us: root, with FUSE, and free to mount."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        return False
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        try:
            with silent(Path(folder)):
                return True
        except OSError:
            return False


@contextmanager
def silent(place: Path) -> Iterator[None]:
    """`place` is the root of a file system that does not answer, until the end."""
    program = [sys.executable, "-c", _PROGRAM, str(place), str(Path(__file__).parents[1])]
    server = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert server.stdout is not None
    try:
        if server.stdout.readline() != b"silent\n":
            raise OSError("cannot be mounted here")
        yield
    finally:
        server.kill()  # which ends the connection, and with it every question that still waits
        server.wait()
        subprocess.run(["umount", "-l", str(place)], stderr=subprocess.DEVNULL, check=False)
