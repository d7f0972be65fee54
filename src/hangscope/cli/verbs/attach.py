"""`hangscope attach`: a running job, watched from now on."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import fields
from types import FrameType
from typing import Any

import click

from hangscope.cli.watching_options import chosen, say, watching_options
from hangscope.recorder.launch import find_job
from hangscope.recorder.launch.attach_job import AttachedJob, AttachOptions


@click.command()
@click.argument("target", metavar="PID|JOB|DIR")
@click.option("--slurm", is_flag=True, help="The number is a Slurm job's, and no process's.")
@click.option("--later", is_flag=True, hidden=True, help="Its ranks may start later: for `hangscope.watch()`.")
@watching_options
def command(target: str, slurm: bool, later: bool, **given: Any) -> int:
    """Watch a running job from now on, as under `run`.

    PID is a rank or its launcher; JOB a Slurm job with ranks on this node; DIR the directory of a run whose agent was
    killed. The job was started without hangscope: nothing is put into it, its counters are read from outside once a
    second. A stall is captured and diagnosed, also of ranks that start later. Ends with the job; Ctrl-C ends the watch
    alone. Once a node, where the job has several.

    \b
    Watch the job of a launcher, and end its ranks when it hangs, so that torchrun restarts them:
      hangscope attach 81233 --on-hang kill --dir /shared/hangs/48121
    """
    watching = chosen(given)
    options = AttachOptions(**{each.name: getattr(watching, each.name) for each in fields(watching)})
    job = find_job.of_coming(int(target), say) if later else find_job.of_target(target, say, slurm=slurm)
    attached = AttachedJob(job, options, os.environ, say, later=later)

    def stop(_: int, __: FrameType | None) -> None:
        attached.stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    ends = "; Ctrl-C ends the watch, not the job" if sys.stdin.isatty() else ""
    if not later:
        say(f"process {attached.launcher} and its ranks are watched from now on{ends}")
    return attached.watch()
