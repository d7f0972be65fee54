"""Which attempt of which job this is, and on which node: from the launcher or scheduler that started us, or made up."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """`made` says that no scheduler named the job: the name is only ours, and a shared directory may know better."""

    job: str
    attempt: str
    node: str
    made: bool = False
    machine: str | None = None
    """In a pod the machine that it runs on, empty where it was not given; None outside of Kubernetes."""


def identify(
    environ: Mapping[str, str], *, job: str | None = None, attempt: str | None = None, node: str | None = None
) -> JobIdentity:
    """Job, attempt and node; what the caller names wins, then HANGSCOPE_*, then what the scheduler says."""
    named = job or environ.get("HANGSCOPE_JOB") or _job(environ)
    return JobIdentity(
        job=named or _made_up(),
        attempt=attempt or environ.get("HANGSCOPE_ATTEMPT") or _attempt(environ),
        node=node or environ.get("HANGSCOPE_NODE") or _node(environ),
        made=named is None,
        machine=_machine(environ),
    )


def _job(environ: Mapping[str, str]) -> str | None:
    array = environ.get("SLURM_ARRAY_JOB_ID")
    if array and environ.get("SLURM_ARRAY_TASK_ID"):
        return f"{array}_{environ['SLURM_ARRAY_TASK_ID']}"
    for name in ("SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "TRAINING_JOB_NAME"):
        if environ.get(name):
            return environ[name]
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return _kubernetes_job(environ)
    run = environ.get("TORCHELASTIC_RUN_ID")
    return run if run not in (None, "", "none") else None  # "none" is what torchrun says without --rdzv-id


_POD = (
    re.compile(r"^(?P<job>.+)-(?:master|worker|launcher|node|leader|ps|chief)-(?:\d+-)?\d+$"),  # Kubeflow, JobSet
    re.compile(r"^(?P<job>.+)-\d+-[a-z0-9]{5}$"),  # an indexed Job
    re.compile(r"^(?P<job>.+)-[a-z0-9]{5}$"),  # a plain Job
    re.compile(r"^(?P<job>.+)-\d+$"),  # a StatefulSet
)


def _kubernetes_job(environ: Mapping[str, str]) -> str | None:
    """The job's name. A pod does not know it, but its own name, which is its host name, is made of it."""
    for name in ("JOB_NAME", "JOBSET_NAME", "PYTORCHJOB_NAME", "PET_RDZV_ID"):
        if environ.get(name):
            return environ[name]
    pod = environ.get("POD_NAME") or environ.get("HOSTNAME") or ""
    for pattern in _POD:
        if match := pattern.match(pod):
            return match["job"]
    return pod or None


def _attempt(environ: Mapping[str, str]) -> str:
    for name in ("SLURM_RESTART_COUNT", "JOB_ATTEMPT", "JOBSET_RESTART_ATTEMPT", "TORCHELASTIC_RESTART_COUNT"):
        if environ.get(name, "").isdigit():
            return environ[name]
    return "0"


def _node(environ: Mapping[str, str]) -> str:
    return environ.get("SLURMD_NODENAME") or environ.get("NODE_NAME") or socket.gethostname()


def _machine(environ: Mapping[str, str]) -> str | None:
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    return environ.get("HANGSCOPE_MACHINE") or environ.get("NODE_NAME") or ""


def _made_up() -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.localtime()) + f"-{os.getpid()}"
