"""Which attempt of which job this is, by the scheduler that started us."""

from __future__ import annotations

import pytest

from hangscope.recorder.rundir.job_identity import identify


@pytest.mark.parametrize(
    ("environ", "job", "attempt"),
    [
        ({"SLURM_JOB_ID": "48121", "SLURM_RESTART_COUNT": "2"}, "48121", "2"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, "7_3", "0"),
        ({"TORCHELASTIC_RUN_ID": "rdzv", "TORCHELASTIC_RESTART_COUNT": "1"}, "rdzv", "1"),
        ({"KUBERNETES_SERVICE_HOST": "x", "HOSTNAME": "llama-70b-worker-3"}, "llama-70b", "0"),
        ({"KUBERNETES_SERVICE_HOST": "x", "HOSTNAME": "llama-70b-4-x8k2p"}, "llama-70b", "0"),
        ({"KUBERNETES_SERVICE_HOST": "x", "HOSTNAME": "p", "JOB_NAME": "mine"}, "mine", "0"),
        ({"HANGSCOPE_JOB": "a", "HANGSCOPE_ATTEMPT": "b", "SLURM_JOB_ID": "1"}, "a", "b"),
    ],
)
def test_the_schedulers_names_are_used(environ: dict[str, str], job: str, attempt: str) -> None:
    """Slurm, torchelastic and Kubernetes say which attempt of which job this is."""
    found = identify({**environ, "HANGSCOPE_NODE": "n"})
    assert (found.job, found.attempt, found.node, found.made) == (job, attempt, "n", False)


def test_without_a_scheduler_a_name_is_made() -> None:
    """torchrun's own "none" is no name."""
    assert identify({"TORCHELASTIC_RUN_ID": "none"}).made
