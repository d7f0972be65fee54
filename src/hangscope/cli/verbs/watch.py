"""`hangscope watch`: a live view of a run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hangscope.cli.given_paths import one_resolved, run_of
from hangscope.cli.output import table_width, write
from hangscope.cli.watch_terminal import FILTERS, SORTS, WatchChoice, follow
from hangscope.cli.watch_text import as_text
from hangscope.recorder.rundir.live_view import view


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Print the view once, as text.  [default where stdout is not a terminal]")
@click.option("--sort", type=click.Choice(SORTS), default="wait", show_default=True, help="What comes first.")
@click.option(
    "--filter",
    "shown",
    default="all",
    metavar="FILTER",
    help=f"{', '.join(FILTERS)}, or text in the rank, node, group or operation.  [default: all]",
)
@click.option("--all", "everything", is_flag=True, help="All ranks, not only the notable ones.")
def command(directory: Path, once: bool, sort: str, shown: str, everything: bool) -> int:
    """Show live which ranks wait for which others.

    DIR is the directory that `hangscope run` keeps, or one above several: then the newest. First the ranks that others
    wait for, then groups, nodes and ranks; identical rows are folded, so that a thousand ranks fit a terminal. Ends
    with the job; q quits earlier.

    \b
    Keys: s sort   r reverse   f filter   / search   a all ranks   j k scroll   q quit
    For scripts:
      hangscope watch /shared/hangs/48121 --once --filter waiting
    """
    directory = run_of(one_resolved(directory))
    choice = WatchChoice(sort, shown if shown in FILTERS else "all", "" if shown in FILTERS else shown, everything)
    if once or not sys.stdout.isatty():
        write(as_text(view(directory), choice, table_width()))
        return 0
    return follow(directory, choice)
