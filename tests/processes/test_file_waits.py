"""The files that a process is blocked on: real processes, a real file system that does not answer, recorded mounts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hangscope.processes.file_waits import FileWaits, file_wait, mount_of, read_mounts
from kits import hung_mount

needs_fuse = pytest.mark.skipif(not hung_mount.possible(), reason="needs root, /dev/fuse and the right to mount")
MOUNTS = r"""
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
25 22 0:23 / /dev/shm rw - tmpfs tmpfs rw
31 22 0:45 / /data rw,relatime shared:12 - nfs4 filer.example:/export/data rw,vers=4.2,hard,addr=10.0.0.9
32 31 0:46 / /data/fast\040tier rw - lustre 10.0.0.7@o2ib:/scratch rw
33 22 0:47 / /mnt/s3 rw - fuse.s3fs s3fs rw
"""


@contextmanager
def started(code: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python of its own, once it has said that it begins."""
    process = subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{code}", *words], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        time.sleep(0.3)
        yield process
    finally:
        process.kill()
        process.wait()


def looked_at_twice(pid: int) -> FileWaits:
    waits = FileWaits()
    waits.look([pid])
    time.sleep(0.5)
    waits.look([pid])
    return waits


@needs_fuse
@pytest.mark.parametrize(
    ("code", "call", "name"),
    [
        ("import sys; open(sys.argv[1] + '/x.bin')", "open", "/x.bin"),
        ("import os, sys; os.stat(sys.argv[1] + '/sub')", "stat", "/sub"),
        ("import os, sys; os.chdir('/'); os.stat(sys.argv[1][1:] + '/y')", "stat", "/y"),
        ("import threading, sys; threading.Thread(target=open, args=(sys.argv[1] + '/t',)).start()", "open", "/t"),
    ],
)
def test_a_silent_file_system_is_named_and_does_not_keep_us(tmp_path: Path, code: str, call: str, name: str) -> None:
    """Path, mount and type of a call that does not come back, in a moment, without touching the mount."""
    place = tmp_path / "hung mount"
    place.mkdir()
    with hung_mount.silent(place), started(code, str(place)) as process:
        begun = time.monotonic()
        waits = looked_at_twice(process.pid)
        assert time.monotonic() - begun < 5
        [found] = waits.found
        assert (found.call, found.path) == (call, f"{place}{name}")
        assert (found.mount, found.type, found.source) == (str(place), "fuse.hung", "hung")
        assert found.for_s is not None and found.for_s >= 0.5
        assert waits.rows()[0]["path"] == f"{place}{name}"


def test_a_named_pipe_is_no_storage(tmp_path: Path) -> None:
    """A process that waits for the other end of a pipe, or for its bytes, is not blocked on storage."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with started("import sys; open(sys.argv[1])", str(pipe)) as process:
        assert looked_at_twice(process.pid).found == []


def test_a_process_at_work_is_not_blocked() -> None:
    """Whoever computes or reads on is in no call that lasts."""
    with started("while True: open('/proc/self/status').read()") as process:
        assert [wait for wait in looked_at_twice(process.pid).found if wait.for_s is not None] == []


def test_a_process_that_is_gone_has_nothing() -> None:
    """The pid may be free by the time of the second look."""
    waits = FileWaits()
    waits.look([2**22 - 1])
    assert waits.found == []


def test_the_innermost_mount_counts() -> None:
    """By whole names, with the kernel's octal blanks read; a mount over a mount is what is seen."""
    mounts = read_mounts(MOUNTS)
    found = {path: (mount := mount_of(path, mounts)) and (mount.type, mount.source) for path in _EXPECTED}
    assert found == _EXPECTED
    assert mount_of("/x", []) is None
    assert read_mounts("nonsense\n1 2 3 - \n") == []


_EXPECTED = {
    "/data": ("nfs4", "filer.example:/export/data"),
    "/data/x/y.bin": ("nfs4", "filer.example:/export/data"),
    "/database/x": ("ext4", "/dev/nvme0n1p2"),
    "/data/fast tier/z": ("lustre", "10.0.0.7@o2ib:/scratch"),
}


@pytest.mark.parametrize(
    ("path", "state", "channel", "type_"),
    [
        ("/data/x", "D", "rpc_wait_bit_killable", "nfs4"),
        ("/data/x", "S", None, "nfs4"),
        ("/mnt/s3/x", "S", "request_wait_answer", "fuse.s3fs"),
        ("/scratch/x", "D", "io_schedule", "ext4"),
        ("/link/x", "D", "rpc_wait_bit_killable", None),  # a link leads to NFS; which mount, the name does not say
        ("/scratch/x", "S", "pipe_read", ""),
        ("/scratch/x", "S", None, ""),
        ("/data/pipe", "S", "pipe_read", ""),
        ("/dev/shm/x", "D", "io_schedule", ""),
        ("socket:[12]", "S", "unix_stream_read_generic", ""),
        ("pipe:[12]", "S", "pipe_read", ""),
    ],
)
def test_what_counts_as_storage(path: str, state: str, channel: str | None, type_: str | None) -> None:
    """Remote mounts, and disks in uninterruptible sleep; no pipes, sockets, memory or work ("": nothing is said)."""
    found = file_wait(7, 7, ("read", path), read_mounts(MOUNTS), state, channel)
    assert (found.type if found is not None else "") == type_
