"""Slurm's words about tasks and nodes: who ended by itself, who was ended, and who never ended."""

from __future__ import annotations

import pytest

from kits.pasted_logs import short, verdict_on

TIMED_OUT = "[rank{}]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv\n"
STEPS = "step 10 loss 2.1\nstep 20 loss 2.0\n"
CANCELLED = "slurmstepd: error: *** {} 31.0 ON n1 CANCELLED AT 2026-11-15T10:20:30{} ***\n"
EXITED = "srun: error: {}: {}: Exited with exit code 1\n"
GAVE_UP = EXITED.format("n2", "tasks 2-3") + EXITED.format("n3", "tasks 4-5") + EXITED.format("n1", "task 0")


@pytest.mark.parametrize("why", ["", " DUE TO TIME LIMIT", " DUE TO PREEMPTION"])
@pytest.mark.parametrize("what", ["JOB", "STEP"])
def test_a_cancelled_job_is_no_crash_of_a_rank(what: str, why: str) -> None:
    """A launcher answers SIGTERM with exit status 1: that is no failure of its own, whatever task says it."""
    verdict = verdict_on(STEPS + CANCELLED.format(what, why) + EXITED.format("n1", "task 0"))
    assert short(verdict) == ("unknown", "unknown", [])
    reason = {"": "scancel", " DUE TO TIME LIMIT": "time limit", " DUE TO PREEMPTION": "preempted"}[why]
    assert verdict.headline.startswith("Slurm ended the job: ") and reason in verdict.headline


def test_the_reason_goes_before_the_word_that_the_step_is_aborted() -> None:
    """srun says that it aborts before slurmstepd says why: the why is what people have to know."""
    verdict = verdict_on(STEPS + "srun: Job step aborted: Waiting\n" + CANCELLED.format("JOB", " DUE TO TIME LIMIT"))
    assert "its time limit was reached" in verdict.headline
    failed = EXITED.format("n2", "task 3") + "srun: Job step aborted: Waiting\n"
    assert short(verdict_on(failed + CANCELLED.format("JOB", " DUE TO TIME LIMIT"))) == ("crash", "dead", [3])


def test_what_failed_before_the_job_was_cancelled_is_the_cause() -> None:
    """srun ends the other tasks after the first that failed, and says so after it."""
    own = EXITED.format("n2", "task 3") + "srun: Terminating StepId=31.0\n" + CANCELLED.format("STEP", "")
    verdict = verdict_on(own + EXITED.format("n1", "tasks 0-1") + "srun: error: n2: task 2: Terminated\n")
    assert short(verdict) == ("crash", "dead", [3])


@pytest.mark.parametrize("first", [True, False])
def test_a_node_that_failed_is_named_and_no_task_of_another(first: bool) -> None:
    """Slurm notices it minutes after the others have lost their peers there: the order of the lines says nothing."""
    lines = ["srun: error: Node failure on n2\n", EXITED.format("n3", "task 2"), EXITED.format("n1", "task 0")]
    text = "".join(lines if first else reversed(lines)) + CANCELLED.format("STEP", " DUE TO NODE FAILURE")
    verdict = verdict_on(STEPS + text)
    assert short(verdict) == ("crash", "dead", [])
    assert verdict.headline == "node n2 failed, and the job with it"


def test_tasks_that_gave_up_together_are_nobody_s_fault() -> None:
    """One line speaks of two tasks and another of one: that does not make the one the culprit."""
    assert short(verdict_on(GAVE_UP))[2] == []
    assert short(verdict_on(TIMED_OUT.format(4) + GAVE_UP)) == ("hang", "unknown", [])


RUNNING = "srun: First task exited 60s ago\nsrun: {}31.0 task 1: running\nsrun: {}31.0 tasks 0,2-5: exited abnormally\n"
TERMINATED = CANCELLED.format("STEP", "") + "srun: error: n1: task 1: Terminated\n"


@pytest.mark.parametrize("last", [RUNNING.format("StepId=", "StepId="), RUNNING.format("step:", "step:"), TERMINATED])
def test_the_task_that_did_not_exit_is_what_the_others_gave_up_on(last: str) -> None:
    """Surely only where the others say that they had waited for somebody."""
    for said, confidence in (("", "low"), (TIMED_OUT.format(4), "medium")):
        verdict = verdict_on(said + GAVE_UP + last)
        assert (*short(verdict), str(verdict.confidence)) == ("hang", "absent", [1], confidence)


def test_a_task_that_srun_ends_after_a_failure_is_not_waited_for() -> None:
    """With --kill-on-bad-exit the last one that is still there did nothing wrong."""
    text = GAVE_UP + "srun: Terminating StepId=31.0\n" + TERMINATED
    assert 1 not in short(verdict_on(text))[2]


def test_a_task_whose_failure_is_told_goes_before_one_that_was_left_running() -> None:
    """The exception is the cause; whoever was left running may have waited for that rank too."""
    raised = '[rank4]: Traceback (most recent call last):\n[rank4]:   File "/job/train.py", line 31, in <module>\n'
    verdict = verdict_on(raised + "[rank4]: ValueError: bad batch\n" + GAVE_UP + RUNNING.format("StepId=", "StepId="))
    assert short(verdict)[2] == [4]


def test_a_port_that_is_taken_is_the_cause_and_tasks_of_torchrun_are_nodes() -> None:
    """Two jobs with one documented port on shared nodes: no rank exists yet, so none is named."""
    torchrun = 'Traceback (most recent call last):\n  File "/opt/venv/bin/torchrun", line 8, in <module>\n'
    taken = (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
    )
    nodes = "".join(EXITED.format(f"n{task + 1}", f"task {task}") for task in range(3))
    verdict = verdict_on(torchrun + "    sys.exit(main())\n" + taken + nodes)
    assert short(verdict) == ("crash", "dead", [])
    assert "could not listen on port 29500" in verdict.headline


def test_an_endless_list_of_tasks_is_read_in_no_time() -> None:
    """Numbers that nobody has cost neither time nor memory."""
    text = EXITED.format("n1", f"tasks 5,{10**17}") + TERMINATED + "srun: StepId=1.0 tasks 0-999999999999: running\n"
    verdict = verdict_on(text)
    assert len(verdict.culprits) <= 16
