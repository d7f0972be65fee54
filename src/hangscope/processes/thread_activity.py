"""Whether a thread does anything, by what the kernel counts: two small files of /proc, no question to the process.

A thread that waits for a peer is never woken: on torch 2.13 a rank in `Work.wait` or `store.wait` had not one context
switch in seconds. One that works, loads data or polls has some.
"""

from __future__ import annotations

from dataclasses import dataclass

from hangscope.processes import linux_process

BUSY = 0.05
SPINS = 0.9
SWITCHES_PER_S = 3.0
"""More CPU time than this share, or more switches, is work. All of the CPU without a switch may be a spinning wait."""
LEAST_S = 0.9


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    cpu_s: float
    switches: int


def sample(pid: int, thread: int | None, now: float) -> Sample | None:
    """Of one thread, the main one by default; None where the process is gone or its files cannot be read."""
    place = linux_process.PROC / str(pid) / "task" / str(thread or pid)
    try:
        fields = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
        status = (place / "status").read_text(errors="replace")
        cpu_s = (int(fields[11]) + int(fields[12])) / linux_process.TICKS_PER_SECOND
        switches = int(status.partition("\nvoluntary_ctxt_switches:")[2].split(None, 1)[0])
    except (OSError, ValueError, IndexError):
        return None
    return Sample(now, cpu_s, switches)


def works(before: Sample, after: Sample, *, may_spin: bool = False) -> bool | None:
    """Whether the thread did something between two samples; None where they are too close to tell.

    `may_spin`: it is inside a call that waits with all of the CPU, as NCCL does while a communicator is made.
    """
    seconds = after.at - before.at
    if seconds < LEAST_S:
        return None
    cpu = (after.cpu_s - before.cpu_s) / seconds
    switched = (after.switches - before.switches) / seconds > SWITCHES_PER_S
    return switched or (cpu > BUSY and not (may_spin and cpu > SPINS))
