"""A group whose ranks are in thousands of operations at once, as a flood of log lines says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import hangscope

LINE = (
    "[rank{rank}]:[E1116 10:00:00.{micro:06d} 123 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=100, NumelOut=100, Timeout(ms)=600000) ran for "
    "600089 milliseconds before timing out.\n"
)
OPS = ("ALLREDUCE", "_ALLGATHER_BASE", "BROADCAST")


def flood(folder: Path, ranks: int, ops: int = 1) -> Path:
    """Every rank in an operation of its own."""
    lines = (LINE.format(rank=rank, micro=rank, seq=1000 + rank, op=OPS[rank % ops]) for rank in range(ranks))
    (folder / "job.log").write_text("".join(lines))
    return folder


@pytest.mark.parametrize("ops", [1, 3])
def test_a_flood_of_watchdog_lines_takes_no_longer_than_reading_it(tmp_path: Path, ops: int) -> None:
    """8,000 ranks in as many operations: the diagnosis is not pairwise, says what it left out, and accuses nobody
    surely."""
    begun = time.process_time()
    job = hangscope.load(flood(tmp_path, 8000, ops))
    read = time.process_time() - begun
    verdict = hangscope.diagnose(job)
    assert time.process_time() - begun < max(4 * read, 5.0)
    assert any("8,000 operations at once" in gap.why for gap in verdict.gaps)
    assert verdict.confidence != "high"


def test_a_group_in_a_few_operations_is_compared_with_all_members(tmp_path: Path) -> None:
    """The bound is far above what a real job has: nothing is left out where 200 ranks are in operations of their own,
    and who is furthest behind is what the others wait for."""
    verdict = hangscope.diagnose(hangscope.load(flood(tmp_path, 200)))
    assert not any("operations at once" in gap.why for gap in verdict.gaps)
    awaited = {rank for victim in verdict.victims for rank in victim.waits_for}
    assert 0 in awaited
