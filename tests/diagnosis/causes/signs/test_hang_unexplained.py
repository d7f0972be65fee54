"""A hang that the evidence does not explain: what is said of it, and that nobody is accused."""
# ruff: noqa: E501  (log lines are quoted whole)

from __future__ import annotations

from kits.pasted_logs import short, shown, verdict_on


def signal(rank: int, counters: str, sender: str = "this local rank") -> str:
    head = (
        f"[rank{rank}]:[E907 06:20:58.970959174 ProcessGroupNCCL.cpp:1870] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    )
    return f"{head} Received a dump signal due to a collective timeout from {sender} and we will try our best to dump the debug info. {counters}.\n"


NOTHING_RAN = "Last enqueued NCCL work: -1, last completed NCCL work: -1"
AT_31 = "Last enqueued NCCL work: 31, last completed NCCL work: 30"
OBSERVED = "[rank0]:[E1126 19:02:13.041188078 ProcessGroupNCCL.cpp:1806] [PG ID 0 PG GUID 0(default_pg) Rank 0] Observed flight recorder dump signal from another rank via TCPStore.\n"


def test_a_default_group_that_ran_nothing_hangs_in_another() -> None:
    """-1/-1 does not mean that a rank is behind."""
    found = verdict_on(signal(6, NOTHING_RAN) + signal(7, NOTHING_RAN))
    assert short(found) == ("hang", "unknown", [])
    assert "other than the default" in found.headline and NOTHING_RAN in shown(found)


def test_one_such_line_is_a_hang_too() -> None:
    """A paste may hold a single rank's."""
    assert short(verdict_on(signal(3, NOTHING_RAN))) == ("hang", "unknown", [])


def test_who_saw_the_others_signal_did_react() -> None:
    """It is suspected at most, and never frozen."""
    found = verdict_on(signal(1, AT_31) + OBSERVED + signal(2, AT_31))
    outcome, kind, accused = short(found)
    assert (outcome, kind) in (("hang", "absent"), ("hang", "unknown"))
    assert accused in ([], [0]) and found.confidence == "low"
    assert AT_31 in shown(found)
