"""A process that confines itself, and then tries what it may not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hangscope.safeio.confine import LANDLOCK, NO_NEW_PRIVILEGES, SECCOMP

TRY = """
import os, socket, subprocess, sys
sys.path[:0] = {path!r}
from pathlib import Path
from hangscope.safeio.confine import confine
reads, writes, secret = (Path(each) for each in sys.argv[1:4])
print(",".join(confine([Path(each) for each in sys.path if each] + [Path("/usr"), Path("/lib"), reads], [writes])))
deeds = {{
    "read": lambda: (reads / "in").read_text(),
    "write": lambda: (writes / "out").write_text("x"),
    "steal": lambda: secret.read_text(),
    "change": lambda: (reads / "in").write_text("x"),
    "environ": lambda: open(f"/proc/{{os.getppid()}}/environ", "rb").read(),
    "socket": lambda: socket.socket(),
    "run": lambda: subprocess.run(["/bin/true"]),
    "fork": lambda: os.fork() or os._exit(0),
    "kill": lambda: os.kill(os.getppid(), 0),
}}
for name, deed in deeds.items():
    try:
        deed()
    except OSError:
        print(name, "refused")
    else:
        print(name, "done")
"""


def test_what_is_confined_can_do_its_work_and_nothing_else(tmp_path: Path) -> None:
    """It reads and writes where it may; other files, its parent's environment, sockets, programs, other processes and
    signals are refused, by Landlock and seccomp as far as this kernel has them."""
    reads, writes, secret = tmp_path / "in", tmp_path / "out", tmp_path / "secret"
    for folder in (reads, writes):
        folder.mkdir()
    (reads / "in").write_text("x")
    secret.write_text("x")
    done = subprocess.run(
        [sys.executable, "-I", "-c", TRY.format(path=sys.path), *map(str, (reads, writes, secret))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    holds = first.split(",")
    said = dict(line.split() for line in lines)
    assert NO_NEW_PRIVILEGES in holds
    assert (said["read"], said["write"]) == ("done", "done")
    if LANDLOCK in holds:
        assert {said[name] for name in ("steal", "change", "environ")} == {"refused"}
    if SECCOMP in holds:
        assert {said[name] for name in ("socket", "run", "fork", "kill")} == {"refused"}
    if not {LANDLOCK, SECCOMP} <= set(holds):
        pytest.skip(f"this kernel has only {first}")
