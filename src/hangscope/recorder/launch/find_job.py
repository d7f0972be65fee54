"""Which job is meant by a pid, a Slurm job or the directory of a run, and which process here is above its ranks.

Nothing about the job was prepared: its ranks are known by their environment and by what they do. Where another user's
processes are looked at, what they name is believed as far as `snapshot` believes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hangscope.errors import NotFoundError, SettingsError
from hangscope.processes import linux_process, process_roles, target_rights
from hangscope.processes.target_rights import Rights
from hangscope.recorder.capture.snapshot_target import (
    environment_of,
    is_folder,
    is_of_its_writer,
    may_follow,
    refuse_unreadable,
)
from hangscope.recorder.live import find_ranks, outside_look
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.rundir import run_directory
from hangscope.recorder.setup.blackbox_library import FOLDER

NOWHERE = Path("/nonexistent")
LOOK_S = 0.5
_LAUNCHERS = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "deepspeed",
    "slurmstepd:",
    "mpirun",
    "mpiexec",
    "orted",
    "prted",
    "hydra_pmi_proxy",
)
"""How launchers are called that stay above their ranks, by a word at the start of their command lines."""
_FIRST_WORDS = 4
_HINT = (
    "give the pid of a rank, of its launcher or of an engine's server; ranks are recognised by RANK in their"
    " environment, by Slurm's task where each task is a rank, or by the title that vLLM and SGLang give their workers"
)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job on this node. `launcher` is the process above its ranks, or the only rank itself. `environ` is what one of
    the ranks was started with; `sockets` is where companions of it may answer, `boxes` where its black boxes are."""

    launcher: int
    environ: Mapping[str, str]
    rights: Rights
    sockets: Path = NOWHERE
    boxes: Path | None = None


def of_target(target: str, say: Callable[[str], None], *, slurm: bool = False) -> RunningJob:
    """The job that is meant. A number is a process where there is one with ranks, else a Slurm job."""
    if not slurm and not (target.isascii() and target.isdigit()):
        return _of_directory(Path(target))
    number = linux_process.whole_number(target.partition("_")[0].partition(".")[0])
    if number is None:
        raise SettingsError(f"{target}: no number of a Slurm job")
    exists = not slurm and linux_process.stat(number) is not None
    found = _of_process(number, say) if exists else None
    found = found or _of_slurm_job(target, say)
    if found is not None:
        return found
    if exists:
        refuse_unreadable(number, "the same command with `sudo`")
        raise NotFoundError(f"{target}: neither this process nor its children are a rank of a job", hint=_HINT)
    what = f"Slurm job {target}" if slurm else f"{target}: no such process, and no Slurm job that"
    raise NotFoundError(f"{what} has ranks on this node which this user may look at", hint=_HINT)


def of_coming(launcher: int, say: Callable[[str], None]) -> RunningJob:
    """The job below a process, whose ranks may not have started yet: by them where they have, else by itself."""
    ranks = ranks_below(launcher)
    if ranks:
        return _job(launcher, ranks, say)
    return RunningJob(launcher, linux_process.environment(launcher), target_rights.of(launcher))


def run_of(pid: int, say: Callable[[str], None]) -> Path | None:
    """The directory of the run that a process belongs to, as far as that may be believed; None where it has none, or
    none of its agents lives."""
    named = environment_of(pid).get("HANGSCOPE_DIR")
    if not named or not is_folder(Path(named), say) or not may_follow(Path(named), pid):
        return None
    states = run_directory.statuses(Path(named))
    watched = any(
        not state.ended and state.agent_pid is not None and linux_process.stat(state.agent_pid) is not None
        for _, state in states
    )
    return Path(named) if watched else None


def _of_process(pid: int, say: Callable[[str], None]) -> RunningJob | None:
    launcher = launcher_of(pid)
    ranks = _first_ranks(launcher, say)
    return _job(launcher, ranks, say) if ranks else None


def _of_slurm_job(job: str, say: Callable[[str], None]) -> RunningJob | None:
    ranks = find_ranks.ranks_of_slurm_job(job, "")
    above = linux_process.nearest_above([rank.pid for rank in ranks])
    return None if above is None else _job(launcher_of(above), ranks, say)


def _of_directory(directory: Path) -> RunningJob:
    """The ranks of this node of a run whose agent is gone."""
    states = run_directory.statuses(directory)
    if not states:
        raise NotFoundError(
            f"{directory}: not a directory of `hangscope run`", hint="give the directory of a run, a pid or a Slurm job"
        )
    for folder, state in states:
        pid = state.command_pid
        if pid is None or not is_of_its_writer(folder, pid):
            continue
        agent = state.agent_pid
        ranks = ranks_below(pid)
        if agent is not None and ranks and not state.ended and linux_process.stat(agent) is not None:
            raise SettingsError(
                f"{directory}: process {agent} watches this job", hint=f"look at it: hangscope watch {directory}"
            )
        if ranks:
            return _job(pid, ranks, lambda _: None)
    raise NotFoundError(f"{directory}: no rank of this run is on this node", hint="call it where the ranks run")


def _job(launcher: int, ranks: Sequence[RankProcess], say: Callable[[str], None]) -> RunningJob:
    pid = ranks[0].pid
    environ = linux_process.environment(pid)
    rights = next((each for rank in ranks if (each := target_rights.of(rank.pid)).foreign), target_rights.of(launcher))
    if rights.inside is not None:
        return RunningJob(launcher, environ, rights)  # what it names is elsewhere
    sockets = Path(environ.get("HANGSCOPE_SOCKETS", NOWHERE))
    boxes = environ.get(FOLDER)
    return RunningJob(
        launcher,
        environ,
        rights,
        sockets if is_folder(sockets, say) and may_follow(sockets, pid) else NOWHERE,
        Path(boxes) if boxes and may_follow(Path(boxes), pid) else None,
    )


def ranks_below(pid: int) -> list[RankProcess]:
    return find_ranks.ranks_below(pid) or find_ranks.ranks_by_title(pid) or find_ranks.tasks_below(pid)


def _ranks_of_job(pid: int) -> list[RankProcess]:
    """The same; and where their environment does not tell, by what torch.distributed in them says."""
    return outside_look.ranks_below(pid) or ranks_below(pid) or outside_look.ranks_by_memory(pid)


def _first_ranks(launcher: int, say: Callable[[str], None]) -> list[RankProcess]:
    """The ranks of a launcher, which may not have started them yet; empty where it ended before."""
    ranks = _ranks_of_job(launcher)
    if not ranks and _launches(launcher):
        say(f"process {launcher} has not started a rank yet: waiting for the first")
    while not ranks and _launches(launcher):  # it has no command line once it has ended
        time.sleep(LOOK_S)
        ranks = _ranks_of_job(launcher)
    return ranks


def launcher_of(pid: int, *, ours_as_well: bool = False) -> int:
    """The process that is above all ranks of the job of `pid`: of a rank its launcher, of an engine's worker its
    server, else the process itself. `ours_as_well`: we were started by a rank, and what is above it may be above us."""
    if not _is_rank(pid):
        return process_roles.top_of_engine(pid)
    own = set() if ours_as_well else {os.getpid(), *linux_process.above(os.getpid())}
    best = pid
    for above in linux_process.above(pid):
        if above <= 1 or above in own:
            break  # a shell that started us as well is no launcher
        if _is_rank(above):
            best = above  # a wrapper of the rank
        elif _launches(above) or len(ranks_below(above)) > 1:
            return above
        else:
            break
    return best


def _is_rank(pid: int) -> bool:
    environ = linux_process.environment(pid)
    return "RANK" in environ or bool(find_ranks.rank_of(pid, environ))


def _launches(pid: int) -> bool:
    words = linux_process.command_line(pid)[:_FIRST_WORDS]
    return any(os.path.basename(word).startswith(_LAUNCHERS) for word in words)
