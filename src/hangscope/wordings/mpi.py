"""Open MPI, PRRTE, MPICH and kubectl's exec, as launchers of ranks. A rank in MPI_COMM_WORLD is the global one."""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.CONTACT_LOST,
        r"(?:ORTE|PRTE) has lost communication with a remote daemon",
        ("has lost communication with",),
        "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[11377,0],0] on node launcher-0\n  Remote "
        "daemon: [[11377,0],1] on node worker-0\n",
        "Open MPI 3-5, PRRTE; ompi#6618, prrte#681; 2019-2026",
        library="MPI",
        detail="mpirun",
        below=r"Remote daemon ?: .{1,80} on node (?P<node>[\w.-]{1,255})",
        most_below=5,
        explains=True,
        page="orte-has-lost-communication-with-a-remote-daemon",
    ),
    Wording(
        FailureKind.EXIT,
        r"process rank (?P<rank>\d{1,6}) with PID (?P<pid>\d+) on node (?P<node>[\w.-]+) (?P<what>exiting\s*$|exiting improperly|calling \"abort\")",
        ("process rank",),
        "prterun has exited due to process rank 2 with PID 1705216 on node nid003032 exiting improperly. There are three "
        "reasons this could occur:",
        "Open MPI 4-5, PRRTE; prrte#2694; 2020-2026",
        library="MPI",
        detail="{what}",
        explains=True,
    ),
    Wording(
        FailureKind.EXIT,
        r"application called MPI_Abort\(.{0,60}?, (?P<code>-?\d+)\) - process (?P<rank>\d{1,6})",
        ("application called MPI_Abort",),
        "application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3",
        "MPICH, Intel MPI; 2010-2026",
        library="MPI",
        explains=True,
    ),
    Wording(
        FailureKind.EXIT,
        r"^Abort\((?P<code>\d+)\) on node (?P<rank>\d{1,6}) \(rank \d+ in comm \d+\)",
        ("in comm",),
        "Abort(806449679) on node 3 (rank 3 in comm 0): Fatal error in internal_Allreduce: Other MPI error",
        "MPICH 3-4, Intel MPI; 2018-2026",
        library="MPI",
        explains=True,
    ),
    Wording(
        FailureKind.CONTACT_LOST,
        r"HYDU_sock_\w+ \(.{0,160}?(?:Connection reset|Broken pipe|Connection refused|No route to host)"
        r"|assert \(!closed\) failed|lost connection to proxy(?: on host (?P<node>[\w.-]+))?",
        ("HYDU_sock_", "assert (!closed)", "lost connection to proxy"),
        "[mpiexec@login1] HYDU_sock_write (utils/sock/sock.c:256): write error (Connection reset by peer)",
        "MPICH 3-4; 2012-2024",
        library="MPI",
        detail="mpiexec",
        effect=True,
    ),
    Wording(
        FailureKind.SIGNAL,
        r"command terminated with exit code (?P<code>\d{1,3})\b",
        ("command terminated with exit code",),
        "command terminated with exit code 137",
        "kubectl exec, as mpirun's agent; ompi#6618; 2018-2026",
        library="Kubernetes",
        detail="a command in a pod",
    ),
)
