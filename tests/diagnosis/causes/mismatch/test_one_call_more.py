"""The cause of docs/adding-a-rule.md: most ranks exited cleanly, and a few wait in one more collective."""

from __future__ import annotations

import re
from pathlib import Path

from hangscope.diagnosis import diagnose
from hangscope.model import Process
from kits.small_jobs import Op, job

D = "default_pg"


def ended(*ranks: int) -> dict[int, Process]:
    """Processes that exited with status 0, one second after the other."""
    return {rank: Process(rank, exit_status=0, ended_at_s=100.0 + rank) for rank in ranks}


def test_rank_that_calls_once_more_is_accused() -> None:
    """Three of four ranks exit with status 0; the fourth alone calls one more barrier: it is the odd one, not they."""
    calls = [Op(D), Op(D)]
    ranks = {0: calls, 1: calls, 2: calls, 3: [*calls, Op(D, "barrier", state="started")]}
    verdict = diagnose(job({D: range(4)}, ranks, processes=ended(0, 1, 2)))
    assert (verdict.kind, [c.rank for c in verdict.culprits], verdict.confidence) == ("mismatch", [3], "medium")
    assert "barrier #3" in verdict.headline


def test_rank_that_leaves_early_is_accused_and_not_those_who_stay() -> None:
    """The reverse: one rank of four exits with status 0 while the others wait for it."""
    calls = [Op(D), Op(D)]
    ranks = {0: calls, **{rank: [*calls, Op(D, state="started")] for rank in (1, 2, 3)}}
    stayed = {rank: Process(rank, alive_at_end=True) for rank in (1, 2, 3)}
    verdict = diagnose(job({D: range(4)}, ranks, processes=ended(0) | stayed))
    assert (verdict.kind, [c.rank for c in verdict.culprits]) == ("dead", [0])


def test_the_page_shows_the_cause_as_it_is() -> None:
    """Every piece of code on the page about adding a cause is in the file that it is taken from."""
    root = Path(__file__).parents[4]
    blocks = re.findall(r"```python\n(.*?)```", (root / "docs" / "adding-a-rule.md").read_text(encoding="utf-8"), re.S)
    causes = [path.read_text(encoding="utf-8") for path in (root / "src/hangscope/diagnosis/causes").rglob("*.py")]
    assert blocks
    for block in blocks:
        assert any(block in cause for cause in causes), block
