"""`hangscope snapshot`: what a running job is doing, saved now."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hangscope.cli.given_paths import here, one_resolved, run_of
from hangscope.cli.output import note, write
from hangscope.errors import NotFoundError, SettingsError
from hangscope.incident.layout import VERDICT_TEXT
from hangscope.recorder.agent import incident_manifest
from hangscope.recorder.agent.diagnose_process import diagnose
from hangscope.recorder.capture import snapshot_job, snapshot_slurm
from hangscope.report.safe_text import safe
from hangscope.safeio.safe_files import read_below

_MOST_TEXT = 4 << 20
RAY_HERE = "auto"


@click.command(
    epilog="Examples: hangscope snapshot 4711 4800 (a trainer and the server that it asks); "
    "hangscope snapshot --slurm 48121 --dir /shared/hangs/48121; hangscope snapshot --ray 10.0.0.1:6379 --dir hang"
)
@click.argument("target", metavar="[PID|DIR]", default=".")
@click.argument("programs", metavar="[PID…]", nargs=-1, type=click.IntRange(min=1))
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Where to save it, for a job without `run`.")
@click.option("--slurm", metavar="JOBID", help="Over srun: all nodes of a running job at once, also without `run`.")
@click.option(
    "--ray",
    metavar="[ADDRESS]",
    is_flag=False,
    flag_value=RAY_HERE,
    help="All nodes of a Ray cluster at once: its actors, tasks and drivers.  [default: the cluster of this machine]",
)
@click.option("--job", metavar="ID", help="Ray: of several jobs that run, this one, or all.")
@click.option("--container", metavar="NAME", help="Slurm with pyxis: enter the job's container of this name.")
@click.option("--slurm-node", metavar="JOBID", hidden=True)
@click.option(
    "--gpu",
    is_flag=True,
    help="At last ask the GPUs of this node which kernels they run. This ENDS the job's CUDA contexts: it will fail "
    "afterwards. Needs a job that was started with `run --gpu-core`.",
)
@click.option("--no-diagnose", is_flag=True, help="Save the evidence only.")
def command(
    target: str,
    programs: tuple[int, ...],
    directory: Path | None,
    slurm: str | None,
    ray: str | None,
    job: str | None,
    container: str | None,
    slurm_node: str | None,
    gpu: bool,
    no_diagnose: bool,
) -> int:
    """Capture a running job now.

    DIR is the directory that `hangscope run` keeps, or one above several, of which the newest is taken: all its nodes
    capture at once. Without it, the newest run here. PID is a rank or its launcher, also of a job that was started
    without hangscope: stacks then come from py-spy. More PIDs are programs that the job works with, as a server, an
    engine or another job: waits are followed through all of them. With --slurm every node of the job is captured at
    once, and its ranks are found by the job's number. With --ray every process of the job that runs on the cluster is:
    the driver leads to the actor that it waits for. Prints the directory of the incident.
    """
    if slurm_node is not None and directory is not None:  # one node's part of --slurm
        write(f"{snapshot_slurm.of_node(slurm_node, directory)}\n")
        return 0
    if programs and (slurm or ray):
        raise SettingsError("pids are of this node", hint="leave them out: --slurm and --ray find the job's processes")
    if gpu:
        _warn(slurm or ray)
    if ray is not None:
        from hangscope.cluster import ray_snapshot

        incident = ray_snapshot.of_cluster(ray, directory, job, note)
    else:
        incident = _taken(target, programs, directory, slurm, container, gpus=gpu)
    write(f"{safe(str(incident))}\n")
    if no_diagnose or not snapshot_job.SnapshotStep.of(os.environ).leads:
        return 0
    if gpu:
        incident_manifest.refresh(incident)
    text = "" if gpu else _given_by_agents(incident)  # they do not know what the GPUs say
    for line in (text or _diagnosed(incident)).rstrip().splitlines():
        note(line)
    return 0


def _warn(cluster: str | None) -> None:
    if cluster is not None:
        raise SettingsError("--gpu asks the GPUs of one node", hint="give a pid or the run's directory, on that node")
    note("warning: --gpu ends the CUDA contexts of the ranks that are asked: the job fails afterwards")


def _taken(
    target: str,
    programs: tuple[int, ...],
    directory: Path | None,
    slurm: str | None,
    container: str | None,
    *,
    gpus: bool,
) -> Path:
    """Take it; the incident."""
    if slurm is not None:
        return snapshot_slurm.of_job(slurm, directory, note, container)
    if target.isascii() and target.isdigit():
        return snapshot_job.of_process(int(target), directory, note, programs, gpus=gpus)
    if programs:
        raise SettingsError(f"{target} is no pid", hint="several programs are given by their pids, the job's first")
    given = one_resolved(Path(target))
    if target == ".":
        run = run_of(given)
        run = run_of(here()).absolute() if run == given else run.absolute()
    else:
        run = run_of(given).absolute()
    return snapshot_job.of_run(Path(os.path.realpath(run)) if run.is_symlink() else run, note, gpus=gpus)


def _given_by_agents(incident: Path) -> str:
    """The verdict that the agents may have given already; empty where they have not."""
    try:
        return read_below(incident, VERDICT_TEXT, _MOST_TEXT).decode(errors="replace")
    except OSError:
        return ""


def _diagnosed(incident: Path) -> str:
    # Into a directory of somebody else's nothing is written: it may lead elsewhere by now.
    verdict = diagnose(incident, keep=os.stat(incident).st_uid == os.geteuid())
    if not verdict.value:
        raise NotFoundError(f"{incident}: no verdict: {verdict.problem}")
    return verdict.text
