"""What the kernel says about the rank processes: state, what they sleep in, killed for memory, and how they ended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hangscope.processes import linux_process
from hangscope.processes.target_rights import Rights

GONE: Mapping[str, Any] = {"state": "gone", "wait_channel": None, "syscall": None, "syscall_file": None}
"""What is known of a process that is no longer there."""


def describe(pid: int, started_ticks: int | None) -> dict[str, Any]:
    """State and wait channel of a process; `gone` where it is no longer there."""
    stat = linux_process.stat(pid)
    if stat is None or (started_ticks is not None and stat.started_ticks != started_ticks):
        return dict(GONE)
    call, file = linux_process.system_call(pid)
    return {"state": stat.state, "wait_channel": linux_process.wait_channel(pid), "syscall": call, "syscall_file": file}


def memory_events(pid: int) -> Path | None:
    """The file in which the kernel counts the processes it killed for memory in this one's control group."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            group = control_group(Path("/sys/fs/cgroup"), path, "memory.events")
        elif "memory" in controllers.split(","):
            group = control_group(Path("/sys/fs/cgroup/memory"), path, "memory.oom_control")
        else:
            continue
        if group is not None:
            return group
    return None


def control_group(mount: Path, path: str, name: str) -> Path | None:
    """A file of a control group. In a container the process may be called by its path outside, while what is mounted
    is its own group, or one above: the longest end of the path that is there is meant."""
    parts = [part for part in path.split("/") if part]
    for start in range(len(parts) + 1 if ".." not in parts else 0):
        file = mount.joinpath(*parts[start:], name)
        if file.exists():
            return file
    return None


def oom_kills(file: Path | None) -> int | None:
    try:
        for line in file.read_text().splitlines() if file is not None else ():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None


def redirected_output(pid: int, rights: Rights | None = None) -> list[Path]:
    """The regular files that the process's stdout and stderr go to."""
    found: list[Path] = []
    for fd in (1, 2):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("/"):
            found.append(Path(target))
    try:
        return [path for path, _ in (rights or Rights()).files(list(dict.fromkeys(found)))]
    except OSError:
        return []  # a file system that does not answer
