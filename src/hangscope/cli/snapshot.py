"""`hangscope snapshot`: what a running job is doing, saved now."""

from __future__ import annotations

from pathlib import Path

import click

from hangscope.cli.output import note, write
from hangscope.errors import NotFoundError
from hangscope.incident.layout import VERDICT_TEXT
from hangscope.recorder import snapshot
from hangscope.recorder.verdict import diagnose


@click.command()
@click.argument("target", metavar="[PID|DIR]", default=".")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Where to keep it, for a job without `run`.")
@click.option("--no-diagnose", is_flag=True, help="Save the evidence only.")
def command(target: str, directory: Path | None, no_diagnose: bool) -> int:
    """Capture a running job now.

    DIR is the directory that `hangscope run` keeps: all its nodes capture at once. PID is a rank or its launcher, also
    of a job that was started without hangscope: stacks then come from py-spy. Prints the directory of the incident.
    """
    if target.isdigit():
        incident = snapshot.of_process(int(target), directory, note)
    else:
        incident = snapshot.of_run(Path(target).absolute(), note)
    write(f"{incident}\n")
    if no_diagnose:
        return 0
    if (incident / VERDICT_TEXT).exists():  # the agents have given it already
        text = (incident / VERDICT_TEXT).read_text()
    else:
        verdict = diagnose(incident)
        if not verdict.value:
            raise NotFoundError(f"{incident}: no verdict: {verdict.problem}")
        text = verdict.text
    for line in text.rstrip().splitlines():
        note(line)
    return 0
