"""A rank that is blocked on a file, in words: what it does, on which mount, and what to do about it."""

from collections.abc import Collection

from hangscope.diagnosis.case import Case
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import Finding
from hangscope.model import FileWait
from hangscope.text import duration

_DOING = {
    "read": "reading",
    "write": "writing",
    "sync": "syncing",
    "open": "opening",
    "stat": "looking up",
    "list": "listing",
    "access": "accessing",
}
_LONGEST = 120
_SHOWN = 3


def blocked_on(wait: FileWait) -> str:
    """``blocked reading /data/x.bin on nfs4 server:/export mounted at /data``."""
    where = f" on {mount_text(wait)}" if wait.type else ""
    return f"blocked {_DOING.get(wait.call, 'accessing')} {_end_of(wait.path)}{where}"


def mount_text(wait: FileWait) -> str:
    source = f" {_end_of(wait.source)}" if wait.source and wait.source != wait.type else ""
    return f"{wait.type}{source}" + (f" mounted at {_end_of(wait.mount)}" if wait.mount else "")


def _end_of(path: str) -> str:
    return path if len(path) <= _LONGEST else f"…{path[1 - _LONGEST :]}"


def storage_findings(case: Case, ranks: Collection[int]) -> list[Finding]:
    """What the kernel says about the files that these ranks are blocked on, and who else is blocked there."""
    found = []
    blocked = [rank for rank in ranks if case.storage.of(rank) is not None]
    for rank in blocked[:_SHOWN]:
        wait = case.storage.of(rank)
        process = case.job.processes[rank]
        assert wait is not None
        who = f"rank {rank}" if wait.pid in (None, process.pid) else f"rank {rank}'s process {wait.pid}"
        state = f"state {wait.state}" if wait.state else ""
        channel = f"in {wait.wait_channel}" if wait.wait_channel else ""
        kernel = ", ".join(part for part in (state, channel) if part)
        span = f"seen for {duration(wait.for_s)}" if wait.for_s is not None else "seen once"
        text = f"{who} is {blocked_on(wait)} ({', '.join(part for part in (kernel, span) if part)})"
        found.append(Finding(text, (process.source,) if process.source is not None else ()))
    together = case.storage.beside(blocked[0]) if blocked else []
    if len(together) > 1:
        wait = case.storage.of(together[0])
        assert wait is not None
        found.append(Finding(f"{len(together)} ranks are blocked on {mount_text(wait)}: {ranks_text(together)}"))
    return found


def storage_step(case: Case, ranks: Collection[int]) -> str | None:
    """What to do about the mount that the first of these ranks is blocked on; None where none is."""
    rank = next((rank for rank in ranks if case.storage.of(rank) is not None), None)
    wait = case.storage.of(rank) if rank is not None else None
    if rank is None or wait is None:
        return None
    node = case.job.nodes.get(rank)
    on_node = f" on {node}" if node else ""
    if wait.type is None or wait.mount is None:
        return f"storage: find out which file system {_end_of(wait.path)} is on{on_node}, and whether it answers; dmesg"
    if (wait.source or "").startswith("/dev/"):
        return f"storage: check {mount_text(wait)}{on_node}: dmesg | grep -i -E 'I/O error|blocked for', iostat -x"
    look = f"timeout 5 stat -f {_end_of(wait.mount)}"
    return f"storage: check the server of {mount_text(wait)}{on_node}, and the network to it: {look}; dmesg"
