"""Horovod's stall inspector, which names who is missing, and its shutdown.

Read from horovod/common/stall_inspector.cc and operations.cc of 0.13 to 0.28.
"""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.MISSING_RANKS,
        r"(?P<op>\S{1,200}) \[missing ranks: ?(?P<ranks>\d[\d, ]{0,2000})\]",
        ("[missing ranks:",),
        "[2019-04-13 13:56:31.861765: W horovod/common/operations.cc:588] HorovodBroadcast_dense_1_kernel_0 "
        "[missing ranks: 3]",
        "Horovod 0.14-0.18; horovod#534, #1012; 2018-2019",
        library="Horovod",
        operation="{op}",
        explains=True,
    ),
    Wording(
        FailureKind.MISSING_RANKS,
        r"Missing ranks:\s*$",
        ("Missing ranks:",),
        "Missing ranks:\n2: [allreduce.grad.conv1.weight, allreduce.grad.conv1.bias ...]\n",
        "Horovod 0.18-0.28; 2019-2024",
        library="Horovod",
        operation="{op}",
        below=r"^\s*(?P<ranks>\d{1,6})!?: \[(?P<op>[a-zA-Z][^\],\s]{1,200})",
        most_below=200,
        explains=True,
    ),
    Wording(
        FailureKind.OTHER,
        r"\[ready ranks: (?P<ranks>\d[\d, ]{0,2000})\]",
        ("[ready ranks:",),
        "allreduce.conv1.weight [ready ranks: 0, 7, 3, 2, 4, 6],",
        "Horovod 0.12-0.13; horovod#336, #364; 2018",
        library="Horovod",
        detail="these ranks wait for the others",
        effect=True,
        explains=True,
    ),
    Wording(
        FailureKind.HANG_REPORTED,
        r"One or more (?:tensors were submitted to be reduced|rank \(marked by \"!\"\) is stalled)",
        ("One or more tensors", "One or more rank (marked"),
        "W horovod/common/stall_inspector.cc:107] One or more tensors were submitted to be reduced, gathered or broadcasted "
        "by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.",
        "Horovod 0.12-0.28; 2018-2024",
        library="Horovod",
        detail="Horovod: some ranks have not submitted what the others wait for",
        effect=True,
        warns=True,
        page="horovod-one-or-more-tensors-were-submitted",
    ),
    Wording(
        FailureKind.OTHER,
        r"Horovod has been shut down\. This was caused by an exception on one of the ranks",
        ("Horovod has been shut down",),
        "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception on one "
        "of the ranks or an attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished execution.",
        "Horovod 0.12-0.28; horovod#534; 2018-2024",
        library="Horovod",
        detail="Horovod was shut down because another rank failed or finished",
        effect=True,
        explains=True,
    ),
)
