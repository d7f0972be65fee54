"""The verdict on a text as somebody pastes it: one file, and nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hangscope
from hangscope.diagnosis import Diagnosis


def verdict_on(text: str, name: str = "job.log") -> Diagnosis:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_text(text.lstrip("\n"), encoding="utf-8")
        return hangscope.diagnose(hangscope.load(folder))


def short(found: Diagnosis) -> tuple[str, str, list[int]]:
    """Outcome, kind and who is accused."""
    return str(found.outcome), str(found.kind), [culprit.rank for culprit in found.culprits]


def shown(found: Diagnosis) -> str:
    """All that a verdict says about why, quoted lines included."""
    parts = [found.headline, found.summary, *(fact.quote for fact in found.facts)]
    for finding in found.why:
        parts += [finding.text, *finding.detail]
    return "\n".join(parts)


def timeout(rank: int, operation: str = "ALLREDUCE", seq: int = 16, group: str = "") -> str:
    """The watchdog's line of one rank."""
    head = f"[rank{rank}]:[E1126 19:02:13.041194513 ProcessGroupNCCL.cpp:616] [{group}Rank {rank}] "
    work = f"WorkNCCL(SeqNum={seq}, OpType={operation}, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000)"
    return (
        f"{head}Watchdog caught collective operation timeout: {work} ran for 600031 milliseconds before timing out.\n"
    )


TIMED_OUT = (
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv operation to complete"
)
LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:34521"
_LIBRARY = "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def raised(rank: int, line: int, operation: str = "all_reduce", error: str = TIMED_OUT) -> str:
    """A traceback of one rank, each line behind its tag."""
    rows = (
        "Traceback (most recent call last):",
        f'  File "/home/me/train.py", line {line}, in main',
        f"    dist.{operation}(t)",
        f'  File "{_LIBRARY}", line 2810, in {operation}',
        "    work.wait()",
        error,
    )
    return "".join(f"[rank{rank}]: {row}\n" for row in rows)
