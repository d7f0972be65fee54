"""What NVIDIA's Xid numbers mean and what helps, after NVIDIA's catalogue of Xid errors."""

from __future__ import annotations

from hangscope.model import Job, KernelMessage

EFFECTS = frozenset({43, 45, 63, 92, 121, 137})
"""What a killed process or a peer's failure leaves, or what NVIDIA says to ignore: no cause of a hang by itself."""

_RESET = "reset the GPU"
_RESTART = "restart the job"
_NVLINK = "check the NVLinks: nvidia-smi nvlink -e, fabric manager"
_XIDS = {
    13: ("a kernel's fault (graphics engine exception)", _RESTART),
    31: ("a kernel's access to memory that is not its own (MMU fault)", _RESTART),
    46: ("the GPU stopped processing", _RESET),
    48: ("a double-bit ECC error", _RESET),
    62: ("the power management unit halted", _RESET),
    64: ("a row of memory could not be replaced", _RESET),
    74: ("an NVLink error", _NVLINK),
    79: ("the GPU has fallen off the bus", "restart the node; the slot or the GPU may be broken"),
    94: ("an ECC error, contained to one process", _RESTART),
    95: ("an ECC error, not contained", _RESET),
    109: ("a context switch timeout", _RESET),
    119: ("the GPU's system processor does not answer", _RESET),
    120: ("the GPU's system processor failed", _RESET),
    136: ("a link could not be trained", _RESET),
    140: ("an ECC error that was not recovered", _RESET),
    154: ("the recovery action changed: see the log line", "follow the log line"),
    158: ("a fatal timeout", _RESET),
    **dict.fromkeys(range(144, 151), ("an NVLink error", _NVLINK)),
}


def note(code: int | None) -> str:
    """What to say behind a kernel's line."""
    meaning, action = _XIDS.get(code or 0, ("", ""))
    return f" ({meaning}; {action})" if meaning else ""


def about(job: Job, rank: int) -> list[KernelMessage]:
    """The kernel's Xids of a rank's GPU or process that can be a cause."""
    process = job.processes.get(rank)
    node = job.nodes.get(rank)
    if process is None:
        return []
    return [
        message
        for message in job.facts.kernel
        if message.kind == "xid" and message.code not in EFFECTS
        if message.node is None or node is None or message.node == node
        if (process.pid is not None and message.pid == process.pid)
        or (process.gpu is not None and message.pci is not None and message.pci in process.gpu)
    ]
