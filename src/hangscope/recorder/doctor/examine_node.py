"""The doctor's look at the node: may stacks be read, is there a RAS port, what can be seen of GPU and kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hangscope.processes.isolated_python import clean_environment, isolated
from hangscope.recorder.doctor.doors import doors
from hangscope.recorder.doctor.examined_node import ExaminedNode
from hangscope.recorder.doctor.finding import NOTE, OK, WARNING, DoctorFinding
from hangscope.recorder.setup.setting_problems import Setting
from hangscope.sources import slices
from hangscope.sources.checks import Examined
from hangscope.sources.gpu_core import settings as gpu_core_settings
from hangscope.text import size

_CAP_SYS_PTRACE = 19
_SMALL_SHM = 64 << 20
"""Docker's default for /dev/shm; NCCL's shared memory transport and data loaders outgrow it."""

_SCOPES = {
    "0": "any process of the same user may be read",
    "1": "only a parent may read a process, which the tool that reads stacks is not",
    "2": "only an administrator may read another process",
    "3": "nobody may read another process",
}


def node_findings(node: ExaminedNode, setting: Setting) -> Iterator[DoctorFinding]:
    yield from py_spy(node)
    yield from of_sources(setting)
    if setting.uses("nccl", "nccl2"):
        yield from gpu_tool(node)
        yield from gpu_core(node, setting)
        yield from shared_memory(node)
    yield from kernel_messages(node)
    yield from clock(node)
    yield from doors(node, setting)


def py_spy(node: ExaminedNode) -> Iterator[DoctorFinding]:
    """Stacks of a rank that holds its GIL can be read from outside only; below Python by py-spy."""
    tool = node.tool("py-spy")
    if tool is None:
        yield DoctorFinding(
            "py-spy",
            NOTE,
            "py-spy is not installed",
            "stacks have lines of Python alone: of a rank that is stuck in C code, the call in there is not known",
            "pip install py-spy, or pip install 'hangscope[capture]'",
        )
        return
    scope = _read(node.proc / "sys/kernel/yama/ptrace_scope").strip()
    capable = _capable(node)
    if node.try_out:
        refusal = _try_py_spy(tool)
        allowed = refusal == ""
    else:
        allowed = scope in ("", "0") or (capable and scope != "3")
        refusal = ""
    if allowed:
        how = "tried on a process of its own" if node.try_out else "as far as the kernel's settings tell"
        yield DoctorFinding("py-spy", OK, "py-spy may read the stacks of the ranks", how)
        return
    reasons = [refusal] if refusal else []
    if scope in _SCOPES and scope != "0":
        reasons.append(f"kernel.yama.ptrace_scope is {scope}: {_SCOPES[scope]}")
    if not capable:
        reasons.append("this process lacks the capability SYS_PTRACE")
    if _status(node, "Seccomp") == "2":
        reasons.append("a seccomp filter is on, as in most containers")
    yield DoctorFinding(
        "py-spy",
        NOTE,
        "py-spy may not read the stacks of the ranks",
        "; ".join(reasons),
        "docker run --cap-add SYS_PTRACE; in Kubernetes securityContext.capabilities.add: [SYS_PTRACE]; "
        "on a node of your own sysctl kernel.yama.ptrace_scope=0",
    )


def of_sources(setting: Setting) -> Iterator[DoctorFinding]:
    """What each source finds in the environment."""
    examined = Examined(setting.environ, frozenset(setting.families))
    for source in slices.found("settings", "check"):
        for said in source.check(examined):
            severity = OK if said.well else WARNING
            yield DoctorFinding(said.id, severity, said.what, said.why, said.cure, said.variable, said.value)


def gpu_tool(node: ExaminedNode) -> Iterator[DoctorFinding]:
    tool = node.tool("nvidia-smi") or node.tool("rocm-smi") or node.tool("amd-smi")
    if tool:
        yield DoctorFinding("gpu", OK, f"the GPUs' state can be read ({Path(tool).name})")
    else:
        yield DoctorFinding(
            "gpu",
            NOTE,
            "nvidia-smi is not there",
            "the GPUs' state at the hang is not saved: clocks, ECC errors, processes",
            "on a GPU node, give the container the driver's utilities (NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
        )


def gpu_core(node: ExaminedNode, setting: Setting) -> Iterator[DoctorFinding]:
    """Whether the GPUs of a job that is started here can be asked which kernels they run."""
    environ = setting.environ
    if gpu_core_settings.is_on(environ, gpu_core_settings.ENABLE):
        why = gpu_core_settings.why_not(environ)
        if why:
            cure = f"set it to {','.join(gpu_core_settings.SKIPPED)}, or leave all four to `hangscope run --gpu-core`"
            yield DoctorFinding("gpu.core", NOTE, "the GPUs cannot be asked which kernels they run", why, cure)
        else:
            yield DoctorFinding("gpu.core", OK, "the GPUs can be asked which kernels they run, once a job is ended")
    elif gpu_core_settings.is_on(environ, gpu_core_settings.ON_EXCEPTION):
        why = f"{gpu_core_settings.ON_EXCEPTION} is set, and stays: `--gpu-core` sets nothing then"
        yield DoctorFinding("gpu.core", NOTE, "the GPUs cannot be asked which kernels they run", why)
    elif node.tool("nvidia-smi"):
        why = "a replayed CUDA graph inside one node leaves nothing but stacks, a kernel that never ends no name"
        cure = "hangscope run --gpu-core --on-hang kill"
        yield DoctorFinding("gpu.core", NOTE, "the GPUs are not asked which kernels they run", why, cure)


def shared_memory(node: ExaminedNode) -> Iterator[DoctorFinding]:
    try:
        state = os.statvfs(node.shm)
    except OSError:
        yield DoctorFinding(
            "shm", WARNING, f"there is no {node.shm}", "NCCL and data loaders need it", "mount a tmpfs there"
        )
        return
    total = state.f_blocks * state.f_frsize
    if total <= _SMALL_SHM:
        yield DoctorFinding(
            "shm",
            WARNING,
            f"{node.shm} has {size(total)}",
            "that is docker's default; data loaders die of it and NCCL fails in it, which then looks like a hang",
            "docker run --shm-size 16g or --ipc host; in Kubernetes an emptyDir with medium: Memory",
        )
    else:
        yield DoctorFinding("shm", OK, f"{node.shm} has {size(total)}")


def kernel_messages(node: ExaminedNode) -> Iterator[DoctorFinding]:
    try:
        os.close(os.open(node.kmsg, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        yield DoctorFinding(
            "kernel",
            NOTE,
            "kernel messages cannot be read",
            f"{node.kmsg}: {error.strerror}; a GPU's Xid, a NIC's link loss and the OOM killer are reported there",
            "collect the node's journal separately, or allow it: sysctl kernel.dmesg_restrict=0",
        )
        return
    yield DoctorFinding("kernel", OK, "kernel messages can be read")


def clock(node: ExaminedNode) -> Iterator[DoctorFinding]:
    """Ranks on several nodes are put in order by their clocks. No finding where nothing tells."""
    if node.tool("timedatectl"):
        answer = _ask([node.tool("timedatectl") or "", "show", "-p", "NTPSynchronized", "--value"])
        if answer == "yes":
            yield DoctorFinding("clock", OK, "the clock is synchronised")
        elif answer == "no":
            yield DoctorFinding(
                "clock",
                NOTE,
                "the clock is not synchronised",
                "times of different nodes cannot be compared to better than their difference",
                "start chrony or systemd-timesyncd on the node",
            )
    elif node.tool("chronyc"):
        answer = _ask([node.tool("chronyc") or "", "-n", "tracking"])
        if "Leap status     : Normal" in answer:
            yield DoctorFinding("clock", OK, "the clock is synchronised")


def _try_py_spy(tool: str) -> str:
    """Read the stack of a child of ours with py-spy, as the agent does with ranks: neither is the other's parent."""
    child = subprocess.Popen(
        isolated(sys.executable, ["-S", "-c", "import time\nprint(flush=True)\ntime.sleep(60)"]),
        env=clean_environment(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        for attempt in range(3):
            try:
                answer = subprocess.run([tool, "dump", "--pid", str(child.pid)], capture_output=True, timeout=15)
            except (OSError, subprocess.SubprocessError) as error:
                return f"py-spy: {error}"
            if answer.returncode == 0:
                return ""
            text = answer.stderr.decode("utf-8", "replace").strip()
            if "ermission" in text or attempt == 2:
                return f"py-spy: {text.splitlines()[-1] if text else 'no reason given'}"
            time.sleep(0.2)  # it may have looked while the child was between two states
    finally:
        child.kill()
        child.wait()
    return ""


def _capable(node: ExaminedNode) -> bool:
    try:
        return bool(int(_status(node, "CapEff") or "0", 16) >> _CAP_SYS_PTRACE & 1)
    except ValueError:
        return False


def _status(node: ExaminedNode, key: str) -> str:
    for line in _read(node.proc / "self/status").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return value.strip()
    return ""


def _ask(words: Sequence[str]) -> str:
    try:
        return subprocess.run(words, capture_output=True, timeout=3).stdout.decode("utf-8", "replace").strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
