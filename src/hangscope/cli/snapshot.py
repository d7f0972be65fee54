"""`hangscope snapshot`: what a running job is doing, saved now."""

from __future__ import annotations

from pathlib import Path

import click

from hangscope.cli.output import note, write
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
    if not no_diagnose and not (incident / "verdict.json").exists():
        verdict = diagnose(incident)
        note(verdict.text.rstrip() if verdict.value else f"no verdict: {verdict.problem}")
    elif not no_diagnose:
        note((incident / "verdict.txt").read_text().rstrip())
    return 0
