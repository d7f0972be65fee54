"""The tasks with which `collect --ray` looks for files on a node. They travel by value, and import nothing of ours."""

from __future__ import annotations

import os
import subprocess

_MOST_COMPLAINT = 2000


def in_shell(script: str, limit_s: float) -> tuple[bytes, str]:
    """What a script of sh prints, and the end of what it complains about."""
    try:
        done = subprocess.run(
            ["sh", "-s"], input=script.encode(errors="surrogateescape"), capture_output=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return b"", f"not done within {limit_s:g} s"
    return done.stdout, done.stderr[-_MOST_COMPLAINT:].decode(errors="replace").strip()


def log_folder() -> str:
    """Where this node's raylet writes the session's logs; empty where its command does not say."""
    raylet = os.environ.get("RAY_RAYLET_PID") or str(os.getppid())
    with open(f"/proc/{raylet}/cmdline", "rb") as stream:
        words = stream.read(1 << 20).split(b"\0")
    for word in words:
        if word.startswith(b"--log_dir="):
            return os.fsdecode(word.partition(b"=")[2])
    return ""
