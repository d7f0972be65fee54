"""`hangscope run`: the recorder in front of a launch command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from hangscope.recorder.run import Options, run
from hangscope.recorder.verdict import diagnose


def say(text: str) -> None:
    """A line of our own on stderr, where the job's own lines go too: each one says who speaks."""
    print(f"hangscope: {text}", file=sys.stderr, flush=True)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="The incident's directory; shared by all nodes where that is possible.  [default: ./hangscope/JOB/ATTEMPT]",
)
@click.option("--job", help="The job's name.  [default: from Slurm, torchelastic or Kubernetes]")
@click.option("--attempt", help="Which start of the job this is.  [default: from the scheduler, else 0]")
@click.option("--node", help="This node's name.  [default: the host name]")
@click.option(
    "--stall-after",
    type=float,
    metavar="SECONDS",
    help="An operation unfinished for longer is a stall.  [default: 30, or 5 × the slowest so far if longer]",
)
@click.option(
    "--entries", type=click.IntRange(min=1), help="Size of the flight recorder, in operations.  [default: 2000]"
)
@click.option("--fix", is_flag=True, help="Also mend settings of yours that would lose the evidence.")
@click.option("--no-diagnose", is_flag=True, help="Save the evidence only.")
@click.argument("words", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
def command(
    directory: Path | None,
    job: str | None,
    attempt: str | None,
    node: str | None,
    stall_after: float | None,
    entries: int | None,
    fix: bool,
    no_diagnose: bool,
    words: tuple[str, ...],
) -> int:
    """Start a training command with the recorder on; capture and diagnose when it hangs.

    Put it in front of the launch command, once a node: hangscope run -- torchrun --nproc-per-node 8 train.py.
    Nothing in the training code changes, output and exit status are the command's own, and should hangscope itself be
    killed, the training goes on.
    """
    options = Options(directory, job, attempt, node, stall_after, entries, fix)
    return run(words, options, environ=os.environ, say=say, diagnose=None if no_diagnose else diagnose)
