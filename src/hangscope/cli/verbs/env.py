"""`hangscope env`: the recorder's settings, for people who set them themselves."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from hangscope.cli.output import note
from hangscope.errors import SettingsError
from hangscope.recorder.rundir.job_identity import identify
from hangscope.recorder.setup import blackbox_library, slurm_files
from hangscope.recorder.setup.default_settings import TIMING
from hangscope.recorder.setup.env_formats import FORMATS, Request
from hangscope.recorder.setup.platform_settings import without_platform
from hangscope.recorder.setup.setting_problems import SettingProblem
from hangscope.recorder.setup.settings import NCCL_LOG_LEVELS, SettingsPlan
from hangscope.recorder.setup.torch_version import TorchInstall, release_of, torch_of
from hangscope.recorder.setup.variables import DEFAULT_ENTRIES


@click.command()
@click.option("--format", "kind", type=click.Choice(list(FORMATS)), default="shell", show_default=True)
@click.option(
    "--torch", "torch_version", metavar="VERSION", help="For this PyTorch, such as 2.8.  [default: found here]"
)
@click.option("--backend", help="nccl, nccl2, nccl-legacy, gloo, …  [default: any]")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Where dumps and logs go.  [default: ./hangscope; /hangscope in a container]",
)
@click.option("--job", help="The job's name.  [default: from the scheduler]")
@click.option("--attempt", help="Which attempt of the job this is.  [default: from the scheduler, else 0]")
@click.option("--node", help="The node's name.  [default: filled in where the ranks run]")
@click.option(
    "--entries",
    type=click.IntRange(min=1, max=(1 << 31) - 1),
    default=DEFAULT_ENTRIES,
    show_default=True,
    help="Size of the flight recorder, in operations (not bytes).",
)
@click.option(
    "--nccl-debug",
    type=click.Choice(NCCL_LOG_LEVELS, case_sensitive=False),
    default="INFO",
    show_default=True,
    help="How much NCCL logs, to a file of each process; WARN does not show which NIC a channel uses.",
)
@click.option("--fix", is_flag=True, help="Also override your settings where they would lose evidence.")
@click.option("--timing", is_flag=True, help="Also record when each operation starts on the GPU: 23 µs an operation.")
@click.option(
    "--slurm-cluster",
    "cluster",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="For Slurm's administrator: write TaskProlog, Prolog, Epilog and SPANK plugin to FOLDER, print the lines for"
    " slurm.conf.",
)
@click.option(
    "--agent",
    default="",
    metavar="OPTIONS",
    help="With --slurm-cluster: options of the `hangscope agent` that the Prolog starts, such as '--stall-after 60'.",
)
def command(
    kind: str,
    torch_version: str | None,
    backend: str | None,
    directory: Path | None,
    job: str | None,
    attempt: str | None,
    node: str | None,
    entries: int,
    nccl_debug: str,
    fix: bool,
    timing: bool,
    cluster: Path | None,
    agent: str,
) -> int:
    """Print the flight recorder settings, to set them yourself.

    stdout carries the settings alone, so that a shell can read them: eval "$(hangscope env)". Settings of yours stay as
    they are, unless --fix is given; what they would lose is said on stderr. `hangscope run` does all this by itself.

    \b
    Switch it on for all jobs of a Slurm cluster, on every node:
      hangscope env --slurm-cluster /etc/slurm/hangscope >> /etc/slurm/slurm.conf
    """
    if cluster is not None:
        return _slurm_cluster(cluster, torch_version, entries, nccl_debug, directory, agent)
    environ = without_platform(os.environ)
    if torch_version is None:
        found = torch_here()
        torch_version = found.version if found else None
        note(f"torch {torch_version}, in {found.path}" if found else "no torch found here: every known name is set")
    identity = identify(os.environ, job=job, attempt=attempt, node=node)
    if identity.made and kind in ("docker", "kubernetes"):
        note("no job name known: give --job, so that two jobs do not overwrite each other")
    request = Request(
        torch_version=torch_version,
        backend=backend,
        directory=directory,
        job="job" if identity.made and kind in ("docker", "kubernetes") else identity.job,
        attempt=identity.attempt,
        host=node,
        environ=environ,
        entries=entries,
        fix=fix,
        timing=timing,
        nccl_debug=nccl_debug,
        job_is_known=bool(job),
        plugin=blackbox_library.library(),
    )
    text, made = FORMATS[kind](request)
    for problem in made.warnings:
        warn(problem)
    if "nccl" in made.families and TIMING not in made.kept:
        note(_timing(made))
    sys.stdout.flush()
    sys.stdout.buffer.write(os.fsencode(text))  # a path that is no valid text must come out as it went in
    return 0


def _slurm_cluster(
    folder: Path, torch_version: str | None, entries: int, nccl_debug: str, directory: Path | None, agent: str
) -> int:
    """Write what an administrator installs; the lines for slurm.conf go to stdout."""
    torch = release_of(torch_version) if torch_version is not None else None
    if torch_version is not None and torch is None:
        raise SettingsError(f"{torch_version} is not a version of torch", hint="write it like 2.8 or 2.8.0+cu128")
    written = slurm_files.Cluster(
        entries=entries,
        nccl_debug=nccl_debug,
        hangscope=slurm_files.own_command(),
        plugin=blackbox_library.library(),
        directory=directory.absolute() if directory is not None else None,
        agent=agent,
        torch=torch,
    )
    lines = slurm_files.write(folder, written)
    note(f"{folder.absolute()}: copy it to every node, and have {written.hangscope} there")
    note("these lines go into slurm.conf, then `scontrol reconfigure`; jobs that start from then on are watched")
    note(f"with `hangscope agent` as a service, {lines[0].partition('=')[0]} is enough")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _timing(made: SettingsPlan) -> str:
    """Whether operations get start events, which cost some 23 µs each, and why."""
    if TIMING not in made.variables:
        return f"{TIMING} is left off: the black box distinguishes a running operation from a waiting one"
    box = blackbox_library.is_set(made.variables)
    return f"{TIMING}=1: {'the black box sees no transfers within a node' if box else 'there is no black box'}"


def torch_here(python: str | None = None) -> TorchInstall | None:
    """The torch that `python` would import here: the one on PATH, which is the job's, before hangscope's own."""
    candidates = [python] if python else ["python", "python3", None]
    return next((found for found in map(torch_of, candidates) if found is not None), None)


def warn(problem: SettingProblem) -> None:
    label = "fixed" if problem.fixed else "note" if problem.severity == "note" else "warning"
    note(f"{label}: {problem}")
    if not problem.fixed:
        note(f"  fix: {problem.cure}")
