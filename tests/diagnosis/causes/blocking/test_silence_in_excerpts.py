"""An excerpt is not the job: who is not quoted is neither dead nor absent."""

from __future__ import annotations

import pytest

from kits.pasted_logs import short, timeout, verdict_on

AGENT = "E1126 19:03:14.390000 22395 torch/distributed/elastic/multiprocessing/api.py:874]"
PASTES = {
    "a rank whose prefix is cut": "".join(timeout(rank) for rank in (0, 1, 2)) + "[ra",
    "a rank that only the launcher names": timeout(0)
    + timeout(1)
    + f"{AGENT} failed (exitcode: -6) local_rank: 0 (pid: 22396) of binary: /usr/bin/python\n"
    + "  rank      : 3 (local_rank: 3)\n  exitcode  : -6 (pid: 22399)\n",
    "a rank that printed something else before": "[rank3]: loading the data\n" + "".join(timeout(r) for r in (0, 1, 2)),
}


@pytest.mark.parametrize("text", PASTES.values(), ids=PASTES)
def test_who_is_not_quoted_is_not_accused(text: str) -> None:
    """The hang is told, and nobody is named for being silent."""
    found = verdict_on(text)
    assert short(found)[0] == "hang" and short(found)[2] == []
