"""Ray's memory monitor: who held a node's memory, beside who was killed for it."""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.MEMORY_HELD,
        r"Top \d+ memory users:\s*$|^\s*PID\s+MEM\(GB\)\s+COMMAND\s*$",
        ("memory users:", "MEM(GB)"),
        "Top 10 memory users:\nPID\tMEM(GB)\tCOMMAND\n3872\t41.05\tpython preprocess_dataset.py --shards 64\n4331\t2.22\t"
        "ray::SimEnv.__init__\n",
        "Ray 2.2-2.50; ray#30312, flingbot#11; 2022-2026",
        library="Ray",
        detail="pid {pid} ({what}) held {gb} GB",
        below=r"^\s*(?P<pid>\d{1,9})\s+(?P<gb>\d+\.\d+)\s+(?P<what>\S.{0,80})",
        most_below=2,
        effect=True,
    ),
)
