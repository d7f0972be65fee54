"""Starts the demo's job under `hangscope run`, passes on what is said, and ends the job when there is a verdict."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hangscope.errors import HangscopeError

TRAIN = Path(__file__).with_name("train.py")
RANKS = 4
STALL_AFTER_S = 3.0
LONGEST_S = 120.0


def command(fault: str, incident: Path) -> list[str]:
    """The arguments of `hangscope` that the demo runs, as a user would type them."""
    run = ("run", "--dir", str(incident), "--stall-after", f"{STALL_AFTER_S:g}", "--")
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
    return [*run, sys.executable, *torchrun, str(TRAIN), "--fault", fault]


def follow(words: Sequence[str], incident: Path, say: Callable[[str], None]) -> Path:
    """Run the demo to its verdict: `words` start `command`'s. Returns the incident; raises where none came.

    The job runs in a directory where only root can have left modules, or settings: `python -m` looks there first."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}  # torchrun would say a paragraph about it otherwise
    process = subprocess.Popen(
        words,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environ,
    )
    assert process.stdout is not None
    until = time.monotonic() + LONGEST_S
    verdict_begun = False
    try:
        for line in _lines(process, until):
            verdict_begun = verdict_begun or line.startswith("hangscope: the verdict")
            if not verdict_begun:  # the verdict itself is the demo's answer, printed by the caller
                say(line)
            if (incident / "verdict.txt").exists():
                break
        while not (incident / "verdict.txt").exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        _end(process, incident)
    if not (incident / "verdict.txt").exists():
        raise HangscopeError("the demo's job ended without a verdict", hint=f"what was saved is in {incident}")
    return incident


def _lines(process: subprocess.Popen[str], until: float) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line.rstrip("\n")
        if time.monotonic() > until:
            return


def _end(process: subprocess.Popen[str], incident: Path) -> None:
    """End the ranks themselves: only SIGKILL ends a frozen one, and torchrun would wait 30 s for it."""
    for path in incident.glob("nodes/*/status.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            for row in json.loads(path.read_text()).get("live") or ():
                if row.get("state") != "gone" and _is_below(row.get("pid"), process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(row["pid"], signal.SIGKILL)
    try:
        process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _is_below(pid: object, top: int) -> bool:
    """Whether a process was started, through others, by ours: a file may name any, and we may be root."""
    for _ in range(20):
        if not isinstance(pid, int) or pid <= 1:
            return False
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            pid = int(fields[1])
        except (OSError, ValueError, IndexError):
            return False
        if pid == top:
            return True
    return False
