"""`hangscope report PATH… -o FILE`: the diagnosis as a file, in the form that its ending names."""

from __future__ import annotations

from pathlib import Path

import click

from hangscope.cli.output import PLAIN_WIDTH, note, progress
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.errors import SettingsError
from hangscope.model import Job


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o", "--output", metavar="FILE", required=True, type=click.Path(), help="Where to; ends in .json, .txt or .md."
)
@click.option("-v", "--verbose", is_flag=True, help="In .txt: the chain of waits, whole stacks, every source and gap.")
@click.option("--width", type=click.IntRange(min=40), default=PLAIN_WIDTH, show_default=True, help="In .txt: columns.")
def command(paths: tuple[str, ...], output: str, verbose: bool, width: int) -> int:
    """Write the diagnosis to a file, in the form that its ending names.

    .json is the verdict for programs, .txt the text of `diagnose`, .md a ticket to paste into a support form.

    The exit status is that of `diagnose`: 0 no hang, 1 a hang with a named cause, 2 unusable input, 3 a hang whose
    cause the evidence does not name.
    """
    target = Path(output)
    if target.suffix not in ENDINGS:
        raise SettingsError(f"{output}: no report ends in {target.suffix!r}", hint=f"known are {', '.join(ENDINGS)}")
    from hangscope.diagnosis import diagnose
    from hangscope.reader.load import load

    with progress(f"reading {', '.join(paths)}"):
        job = load(paths)
        verdict = diagnose(job)
    text = _render(verdict, job, target.suffix, verbose=verbose, width=width)
    from hangscope.incident.layout import write_atomic

    try:
        write_atomic(target, text)
    except OSError as error:
        raise SettingsError(f"{output} cannot be written: {error.strerror}") from error
    note(f"wrote {output}")
    return verdict.exit_status


ENDINGS = (".json", ".txt", ".md")


def _render(verdict: Diagnosis, job: Job, ending: str, *, verbose: bool, width: int) -> str:
    if ending == ".json":
        from hangscope.report.export import to_json

        return to_json(verdict)
    if ending == ".md":
        from hangscope.report.ticket import render_ticket

        return render_ticket(verdict, job)
    from hangscope.report.terminal import render_text

    return render_text(verdict, width=width, verbose=verbose)
