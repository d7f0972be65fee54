"""Why the memory of a process cannot be read: in one sentence, with the command that gives the right where one does."""

from __future__ import annotations

import errno
import os
import sys

from hangscope.errors import HangscopeError

NO_TORCH = "no torch is loaded in it"
_PTRACE = 19
_AGAIN = "the same command with `sudo`"


class CannotRead(HangscopeError):
    """A process cannot be read from outside, or what is there cannot be believed. `hint` is what helps, if anything
    does."""

    def __init__(self, reason: str, cure: str | None = None) -> None:
        super().__init__(reason, hint=cure)
        self.reason = reason
        self.cure = cure


class Torn(CannotRead):
    """What was read does not fit together: it changed meanwhile, or is something else. Reading again may help."""


def explain(pid: int, error: OSError) -> CannotRead:
    """What the kernel's refusal means here."""
    if error.errno in (errno.ENOENT, errno.ESRCH):
        return CannotRead(f"process {pid} has ended")
    if error.errno not in (errno.EACCES, errno.EPERM):
        return CannotRead(f"the memory of process {pid} cannot be read: {error.strerror}")
    status = _status(pid)
    owner = _number(status.get("Uid", ""))
    capable = bool(int(_status("self").get("CapEff", "0") or "0", 16) >> _PTRACE & 1)
    yama = _yama()
    if yama == 3:
        why = "this machine lets no process be traced until it is booted again (kernel.yama.ptrace_scope is 3)"
        return CannotRead(why, "start the job with `hangscope run`, whose companion answers from inside")
    if capable and not _same_namespace(pid):
        why = f"process {pid} is in another user namespace, where our rights do not count"
        return CannotRead(why, f"`sudo nsenter --target {pid} --user --preserve-credentials hangscope …`, or {_AGAIN}")
    if capable:
        why = f"the kernel does not let process {pid} be read, although we have the right to trace (a security module?)"
        return CannotRead(why, "`sudo dmesg | tail` and `sudo ausearch -m avc -ts recent` say which rule refused it")
    if _in_container():
        why = f"this container does not let process {pid} be read"
        cure = "start the container with `--cap-add=SYS_PTRACE` (Kubernetes: securityContext.capabilities.add)"
        return CannotRead(why, f"{cure}, or ask on the node: `sudo hangscope snapshot PID`")
    if owner is not None and owner != os.geteuid():
        return CannotRead(f"process {pid} belongs to another user (user {owner})", f"ask as root: {_AGAIN}")
    if yama == 2:
        why = "only root may read another process's memory here (kernel.yama.ptrace_scope is 2)"
        return CannotRead(why, f"ask as root: {_AGAIN}")
    if yama == 1:
        why = "only its own parents may read a process's memory here (kernel.yama.ptrace_scope is 1)"
        return CannotRead(why, f"ask as root: {_AGAIN}, or once: `sudo sysctl kernel.yama.ptrace_scope=0`")
    why = f"process {pid} does not let itself be read (it has more rights than we have, or is not dumpable)"
    return CannotRead(why, f"ask as root: {_AGAIN}")


def _status(pid: int | str) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status", errors="replace") as stream:
            pairs = (line.partition(":") for line in stream.read(1 << 16).splitlines())
            return {name: value.strip() for name, _, value in pairs}
    except OSError:
        return {}


def _number(text: str) -> int | None:
    first = text.split()[:1]
    return int(first[0]) if first and first[0].isdigit() else None


def _yama() -> int:
    """kernel.yama.ptrace_scope; 0 where the kernel has no Yama."""
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as stream:
            return _number(stream.read(16)) or 0
    except OSError:
        return 0


def _same_namespace(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/user") == os.readlink("/proc/self/ns/user")
    except OSError:
        return True  # not said: then another reason is


def _in_container() -> bool:
    """Whether we are root without the right to trace: the root of a container."""
    return os.geteuid() == 0 and sys.platform == "linux"
