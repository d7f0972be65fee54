"""`hangscope demo`: a real small job that hangs, from launch to verdict."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path

import click

from hangscope.cli.output import note, write
from hangscope.demo.follow import command as launch_command
from hangscope.demo.follow import follow
from hangscope.errors import LaunchError
from hangscope.processes.isolated_python import hangscope_command
from hangscope.recorder.setup.torch_version import torch_of

STORY = {
    "absent": "rank 2 never comes back from its data loader",
    "dead": "rank 2 is killed with SIGKILL",
    "frozen": "rank 2 is stopped with SIGSTOP",
    "mismatch": "rank 2 calls broadcast where the others call all_reduce",
}


@click.command()
@click.option("--fault", type=click.Choice(list(STORY)), default="absent", show_default=True, help="What goes wrong.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Where to keep the incident.  [default: a new one under /tmp]",
)
@click.option("--fleet", is_flag=True, help="A `hangscope serve` filled with weeks of a simulated cluster instead.")
def command(fault: str, directory: Path | None, fleet: bool) -> int:
    """Start a real small job that hangs, and follow it from launch to verdict.

    Four ranks train on the CPU with Gloo under torchrun, one of them does what --fault says, and hangscope notices.
    Needs torch in the same interpreter. The verdict is printed on stdout, everything before it on stderr.
    """
    if fleet:
        return _fleet(directory)
    if torch_of(sys.executable) is None:
        raise LaunchError(
            f"there is no torch in {sys.executable}", hint="install a CPU build of torch beside hangscope for the demo"
        )
    incident = (directory or Path(tempfile.mkdtemp(prefix="hangscope-demo-")) / "incident").absolute()
    if incident.exists() and (not incident.is_dir() or any(incident.iterdir())):
        raise LaunchError(f"{incident}: already exists", hint="give a new directory with --dir")
    note(f"In this demo {STORY[fault]}.")
    words = launch_command(fault, incident)
    note(f"$ {shlex.join(['hangscope', *words])}")
    follow(hangscope_command(*words), incident, note)
    write((incident / "verdict.txt").read_text())
    note(f"The evidence is in {incident}")
    return 0


def _fleet(directory: Path | None) -> int:
    from hangscope.cli.verbs.serve import check_extra

    check_extra()
    from hangscope.cli.fleet_demo import serve_simulated_fleet

    folder = directory or Path(tempfile.mkdtemp(prefix="hangscope-fleet-"))
    if folder.exists() and any(folder.iterdir()):
        raise LaunchError(f"{folder}: already exists", hint="give a new directory with --dir")
    return serve_simulated_fleet(folder)
