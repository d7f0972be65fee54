"""A job's log in which `hangscope run` printed its verdict: that verdict counts, not the ends that followed."""

from __future__ import annotations

import pytest

from hangscope.verdict_words import KIND_OF_WORD, OUTCOME_OF_WORD, CauseKind, Outcome
from kits.pasted_logs import short, verdict_on

VERDICT = """\
hangscope: watching 4 of 4 ranks
hangscope: the verdict on /shared/hangs/17/0:
hangscope: HANG   rank 2 is in stuck_in_loader (train.py:22), and never    confidence: {}
hangscope:        launched all_reduce #41
hangscope:        node n2, local rank 0, pid 436
hangscope:        3 ranks have waited 31s
hangscope:
hangscope: Ranks      n1  0-1  W W
hangscope:            X absent   W waiting in all_reduce #41
"""
KILL = "hangscope: --on-hang kill: ranks 0-3 get SIGTERM, and SIGKILL after 10 s\n"
ENDS = [
    "srun: error: n1: tasks 0-1: Exited with exit code 1\nsrun: error: n2: task 3: Exited with exit code 1\n",
    "E1115 10:20:32.500000 3012 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -15) "
    "local_rank: 0 (pid: 3041) of binary: /usr/bin/python3\nsrun: error: n1: task 0: Exited with exit code 1\n",
    "slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-11-15T10:20:30 ***\nsrun: error: n1: task 0: Killed\n",
]


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("kill", [KILL, ""])
@pytest.mark.parametrize("prefix", ["", "0: "])
def test_the_verdict_that_was_printed_goes_before_the_ends_after_it(prefix: str, kill: str, ends: str) -> None:
    """Who ended because of the hang is innocent; the headline is the one that was printed, whole."""
    text = "".join(f"{prefix}{line}\n" for line in (VERDICT.format("high") + kill).splitlines())
    verdict = verdict_on(text + ends)
    assert short(verdict) == ("hang", "absent", [2])
    assert verdict.headline == "rank 2 is in stuck_in_loader (train.py:22), and never launched all_reduce #41"
    assert str(verdict.confidence) == "medium"
    assert "/shared/hangs/17/0" in verdict.next_steps[0]


def test_where_the_culprit_ran_is_read_and_is_no_part_of_the_headline() -> None:
    """The lines below the headline are no part of it: the code, the node, the operation."""
    below = VERDICT.format("high").replace(
        "hangscope:        node n2",
        "hangscope:        at train.py:22 in stuck_in_loader: time.sleep(1000)\nhangscope:        node n2",
    )
    verdict = verdict_on(below + KILL + ENDS[0])
    assert verdict.headline == "rank 2 is in stuck_in_loader (train.py:22), and never launched all_reduce #41"
    assert [(each.rank, each.node) for each in verdict.culprits] == [(2, "n2")]
    assert not verdict.also_possible


LAST = (
    "hangscope: the command ended with status 1 because of the hang: exit status 75\n"
    "hangscope: the hang (absent): rank 2 is in stuck_in_loader (train.py:22), and never launched all_reduce #41; "
    "node n2; confidence: high\n"
)


@pytest.mark.parametrize("before", ["", VERDICT.format("high") + KILL], ids=["alone", "after the whole"])
def test_the_verdict_in_a_line_at_the_end_is_read(before: str) -> None:
    """Of a pod's log its status keeps 2 KiB; where the whole verdict is there too, it is said once."""
    verdict = verdict_on(before + ENDS[1] + LAST)
    assert short(verdict) == ("hang", "absent", [2])
    assert verdict.headline == "rank 2 is in stuck_in_loader (train.py:22), and never launched all_reduce #41"
    assert [each.node for each in verdict.culprits] == ["n2"]
    assert len([step for step in verdict.next_steps if "saved at the time" in step]) == 1


def test_a_crash_in_a_line_is_a_crash() -> None:
    """The others hung for as long as it took, and --on-hang kill ended them: what began it was that one died."""
    last = LAST.replace("the hang (absent)", "the crash (dead)").replace(
        "is in stuck_in_loader", "was killed by SIGKILL"
    )
    assert short(verdict_on(ENDS[1] + last)) == ("crash", "dead", [2])


def test_a_line_that_looks_like_the_last_is_none() -> None:
    """A training script may print what it likes: the verdict stands right behind our own end."""
    assert short(verdict_on(LAST.splitlines()[1] + "\n" + ENDS[0]))[2] == []


def test_ranks_that_were_lost_with_a_node_are_read() -> None:
    """The headline begins with the node then; the ranks are at its end."""
    silent = """\
hangscope: the verdict on /shared/hangs/17/0:
hangscope: CRASH  node n2 has gone silent, and rank 2 with it           confidence: medium
hangscope:        node n2, local rank 0, pid 436
hangscope:
hangscope: Ranks      n1  0-1  W W
hangscope:            X dead   W waiting in all_reduce
"""
    verdict = verdict_on(silent)
    assert short(verdict) == ("crash", "dead", [2])
    assert [each.node for each in verdict.culprits] == ["n2"]


def test_a_verdict_that_was_not_sure_is_not_sure() -> None:
    """It is as sure as it was then, and never more than what a log can carry."""
    assert str(verdict_on(VERDICT.format("low")).confidence) == "low"


@pytest.mark.parametrize(
    "resumed",
    [
        "PAUSE, not a hang: the job went on after 41 s; what was saved is in /shared/hangs/17/0",
        "the job resumed after 41 s: PAUSE, not a hang; the evidence is in /shared/hangs/17/0",
    ],
)
def test_a_job_that_went_on_is_not_accused_of_its_pause(resumed: str) -> None:
    """What was printed before is taken back by the line that says so."""
    went_on = f"hangscope: {resumed}\n"
    assert short(verdict_on(VERDICT.format("high") + went_on + "step 40 loss 2.1\nstep 50 loss 2.0\n"))[2] == []


def test_a_kill_without_its_verdict_accuses_nobody() -> None:
    """Another node printed it: the ends here are still no failures of their own."""
    verdict = verdict_on(KILL + ENDS[0])
    assert short(verdict) == ("hang", "unknown", [])
    assert verdict.headline == "hangscope ended the job: it hung (--on-hang kill)"


def test_the_last_verdict_counts_and_only_behind_its_announcement() -> None:
    """A later hang has its own; a line that merely looks like a verdict is none."""
    other = VERDICT.format("high").replace("rank 2", "rank 3")
    assert verdict_on(VERDICT.format("high") + other).headline.startswith("rank 3")
    assert short(verdict_on("hangscope: HANG   rank 2 is gone    confidence: high\n" + ENDS[0]))[2] == []


RUNNING = """\
hangscope: the verdict on /shared/hangs/17/0/desync-1:
hangscope: {}   confidence: high
hangscope:        node n2, local rank 0, pid 436
hangscope:
hangscope: Ranks      n1  0-1  . .
hangscope:            X {}   . like the majority
"""


@pytest.mark.parametrize(
    ("line", "legend", "expected"),
    [
        ("DESYNC since #207 rank 2 calls from a (t.py:3) what the others call", "shifted", ("desync", "shift", [2])),
        ("DESYNC rank 2 passed [4] Half to all_reduce 9 times since #3", "mismatch", ("desync", "mismatch", [2])),
        ("WRONG  rank 2 passed 4.0 MiB to all_reduce #16, the rest 1.0 MiB", "mismatch", ("wrong", "mismatch", [2])),
        ("SLOW   rank 2 keeps the others waiting: 31% of the time", "late", ("slow", "slow", [2])),
        ("WAIT   ranks 0-1, 3 wait for rank 2, which is at work", "absent", ("wait", "absent", [2])),
        ("HANG   rank 2 launched all_reduce #9, but its kernel never started", "GPU stuck", ("hang", "gpu", [2])),
    ],
    ids=lambda value: value.partition(" ")[0] if isinstance(value, str) else "",
)
@pytest.mark.parametrize("after", ["", "step 40 loss 2.1\nstep 50 loss 2.0\nstep 60 loss 1.9\n"], ids=["", "steps"])
def test_every_first_word_that_run_prints_is_read_again(
    line: str, legend: str, expected: tuple[str, str, list[int]], after: str
) -> None:
    """A log in which nothing but our verdict is left says what that said, with its culprits, and nobody else."""
    found = verdict_on(RUNNING.format(line, legend) + after)
    assert short(found) == expected
    assert str(found.confidence) == "medium"
    assert line.partition(" ")[0] in found.why[0].text


def test_every_outcome_and_kind_has_a_word_of_its_own() -> None:
    """What is printed for one is never read as another."""
    assert len(OUTCOME_OF_WORD) == len(Outcome)
    assert len(KIND_OF_WORD) == len(CauseKind)


def test_a_failure_after_a_verdict_on_a_running_job_goes_before_it() -> None:
    """Results were wrong, and then the job ran out of memory: that ended it."""
    oom = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    found = verdict_on(RUNNING.format("SLOW   rank 2 keeps the others waiting: 31% of the time", "late") + oom)
    assert short(found)[2] != [2]
