"""The lines that a verdict rests on are shown as they are, in text and as data."""

from __future__ import annotations

import json

import pytest

from hangscope.report.export import to_json
from kits.pasted_logs import shown, timeout, verdict_on

LINES = {
    "the peer and the status": (
        "n2:11:25 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<4431> "
        "with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_3"
    ),
    "the timeout": timeout(3).strip(),
    "the port that was not reached": (
        "[rank5]:[W305 10:00:00.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=94, addr=[n2]:41022, "
        "remote=[n1]:29500): Software caused connection abort"
    ),
    "the GPU's memory": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.12 GiB. GPU 3 has a capacity of 79 GiB"
    ),
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_the_decisive_line_is_quoted(line: str) -> None:
    """Whole, in the text and in `facts[].quote` of the JSON, with its place."""
    found = verdict_on(f"{line}\n")
    assert line in shown(found)
    facts = json.loads(to_json(found))["facts"]
    assert [fact["quote"] for fact in facts] == [line]


def test_ranks_that_print_the_same_are_quoted_once() -> None:
    """But for their numbers the lines are alike."""
    found = verdict_on("".join(timeout(rank) for rank in range(8)))
    quoted = [line for finding in found.why for line in finding.detail if "Watchdog caught" in line]
    assert len(quoted) == 1
