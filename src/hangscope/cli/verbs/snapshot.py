"""`hangscope snapshot`: what a running job is doing, saved now."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hangscope.cli.output import note, write
from hangscope.errors import NotFoundError
from hangscope.incident.layout import VERDICT_TEXT
from hangscope.recorder.agent.diagnose_process import diagnose
from hangscope.recorder.capture import snapshot_job
from hangscope.report.safe_text import safe
from hangscope.safeio.safe_files import read_below

_MOST_TEXT = 4 << 20


@click.command()
@click.argument("target", metavar="[PID|DIR]", default=".")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Where to save it, for a job without `run`.")
@click.option("--no-diagnose", is_flag=True, help="Save the evidence only.")
def command(target: str, directory: Path | None, no_diagnose: bool) -> int:
    """Capture a running job now.

    DIR is the directory that `hangscope run` keeps: all its nodes capture at once. PID is a rank or its launcher, also
    of a job that was started without hangscope: stacks then come from py-spy. Prints the directory of the incident.
    """
    if target.isascii() and target.isdigit():
        incident = snapshot_job.of_process(int(target), directory, note)
    else:
        run = Path(target).absolute()
        incident = snapshot_job.of_run(Path(os.path.realpath(run)) if run.is_symlink() else run, note)
    write(f"{safe(str(incident))}\n")
    if no_diagnose:
        return 0
    try:  # the agents may have given it already
        text = read_below(incident, VERDICT_TEXT, _MOST_TEXT).decode(errors="replace")
    except OSError:
        # Into a directory of somebody else's nothing is written: it may lead elsewhere by now.
        verdict = diagnose(incident, keep=os.stat(incident).st_uid == os.geteuid())
        if not verdict.value:
            raise NotFoundError(f"{incident}: no verdict: {verdict.problem}") from None
        text = verdict.text
    for line in text.rstrip().splitlines():
        note(line)
    return 0
