"""By which doors hangscope is, or could be, at a job that is started here: from outside, an agent, the cluster."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from hangscope.recorder.doctor.examined_node import ExaminedNode
from hangscope.recorder.doctor.finding import NOTE, OK, DoctorFinding
from hangscope.recorder.setup.platform_settings import SET_HERE
from hangscope.recorder.setup.setting_problems import Setting
from hangscope.safeio.safe_files import listing, read_file

OFF = "HANGSCOPE"
_OFF_WORDS = ("off", "0", "no", "false")
_FIRST_OUTSIDE = (2, 11)
"""The first torch whose recorder is read out of a process's memory (docs/attach.md)."""
_MOST = 4096


def doors(node: ExaminedNode, setting: Setting) -> Iterator[DoctorFinding]:
    environ = setting.environ
    if environ.get(OFF, "").lower() in _OFF_WORDS and OFF in environ:
        yield DoctorFinding(
            "door.off",
            NOTE,
            f"{OFF}={environ[OFF]}: agents and the cluster's own start leave this job alone",
            "only `hangscope run` and `snapshot` look at it",
            f"unset {OFF}",
            OFF,
            environ[OFF],
        )
    yield _from_outside(setting)
    yield _agent(node)
    if "SLURM_JOB_ID" in environ or SET_HERE in environ:
        yield _cluster(environ)


def _from_outside(setting: Setting) -> DoctorFinding:
    """Whether a job that nobody prepared can be read; the kernel's permission is `py-spy`'s finding."""
    if setting.release is not None and setting.release < _FIRST_OUTSIDE:
        release = ".".join(map(str, setting.release))
        why = f"what torch {release} has recorded cannot be read from outside, torch 2.11 or newer can"
        cure = "start it with `hangscope run --`"
        return DoctorFinding("door.outside", NOTE, "a job that nobody prepared shows its stacks alone", why, cure)
    if setting.release is None:
        why = "the job's torch is not known: 2.11 or newer can be read"
        return DoctorFinding("door.outside", NOTE, "whether a job that nobody prepared can be read is not known", why)
    what = "a job that nobody prepared can be read from outside (hangscope snapshot PID, attach, agent)"
    return DoctorFinding("door.outside", OK, what, "by its own user or root, where the kernel allows it")


def _agent(node: ExaminedNode) -> DoctorFinding:
    pids = _agents(node.proc)
    if pids:
        return DoctorFinding("door.agent", OK, f"hangscope agent runs on this node (process {pids[0]})")
    why = "jobs without `hangscope run` are not watched, unless somebody attaches"
    cure = "as root: hangscope agent, as a service (docs/agent.md)"
    return DoctorFinding("door.agent", NOTE, "no hangscope agent is seen on this node", why, cure)


def _agents(proc: Path) -> list[int]:
    """Processes that are called so. Whoever calls a process of his own like that is believed: nothing rests on it."""
    found = []
    try:
        names = [each.name for each in listing(proc)]
    except OSError:
        return []
    for name in filter(str.isdigit, names):
        try:
            words = read_file(proc / name / "cmdline", _MOST).decode(errors="replace").split("\0")
        except OSError:
            continue
        called = [os.path.basename(word) for word in words]
        if ("hangscope", "agent") in itertools.pairwise(called):
            found.append(int(name))
    return sorted(found)


def _cluster(environ: Mapping[str, str]) -> DoctorFinding:
    pairs = environ.get(SET_HERE, "").split()
    if pairs:
        return DoctorFinding("door.slurm", OK, f"this cluster has set {len(pairs)} variables for hangscope in this job")
    why = "this cluster's TaskProlog or plugin sets nothing for hangscope here"
    cure = "its administrator: hangscope env --slurm-cluster (docs/slurm-cluster.md); you: hangscope run --"
    return DoctorFinding("door.slurm", NOTE, "Slurm sets nothing for hangscope", why, cure)
