"""`hangscope watch`: a live view of a run, or of a job that was started without one."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from hangscope.cli.given_paths import one_resolved, run_of
from hangscope.cli.output import note, table_width, write
from hangscope.cli.watch_terminal import FILTERS, SORTS, WatchChoice, follow
from hangscope.cli.watch_text import as_text
from hangscope.recorder.agent.node_agent import AgentOptions
from hangscope.recorder.launch import find_job
from hangscope.recorder.launch.attach_job import AttachedJob, AttachOptions
from hangscope.recorder.rundir.live_view import view

FIRST_S = 15.0
"""For the first look at the ranks of a job that nobody watches so far."""
SAVES_S = 30.0
"""For what is being saved when the view ends."""


@click.command()
@click.argument("target", metavar="DIR|PID")
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
def command(target: str, once: bool, sort: str, shown: str, everything: bool) -> int:
    """Show live which ranks wait for which others.

    DIR is the directory that `hangscope run` keeps, or one above several: then the newest. PID is a rank or the
    launcher of a job that was started without hangscope: it is watched as by `attach` for as long as the view lasts.
    First the ranks that others wait for, then groups, nodes and ranks; identical rows are folded, so that a thousand
    ranks fit a terminal. Ends with the job; q quits earlier.

    \b
    Keys: s sort   r reverse   f filter   / search   a all ranks   j k scroll   q quit
    For scripts:
      hangscope watch /shared/hangs/48121 --once --filter waiting
    """
    choice = WatchChoice(sort, shown if shown in FILTERS else "all", "" if shown in FILTERS else shown, everything)
    once = once or not sys.stdout.isatty()
    with _directory(target, once) as directory:
        if once:
            write(as_text(view(directory), choice, table_width()))
            return 0
        return follow(directory, choice)


@contextmanager
def _directory(target: str, once: bool) -> Iterator[Path]:
    """The directory of the run that is meant; of a job without one, that of a watch which lasts for as long as this,
    and saves nothing where it is for one look alone."""
    if not (target.isascii() and target.isdigit()) or Path(target).is_dir():
        yield run_of(one_resolved(Path(target)))
        return
    run = find_job.run_of(int(target), note)
    if run is not None:
        yield run
        return
    lines: list[str] = []
    options = AttachOptions(agent=AgentOptions(only_looks=once))
    attached = AttachedJob(find_job.of_target(target, note), options, os.environ, lines.append)
    watching = threading.Thread(target=attached.watch, name="attach", daemon=True)
    watching.start()
    try:
        until = time.monotonic() + FIRST_S
        while not attached.has_looked and watching.is_alive() and time.monotonic() < until:
            time.sleep(0.1)
        yield attached.folders.root
    finally:
        attached.stop()
        watching.join(SAVES_S)
        for line in "\n".join(lines).splitlines():
            note(line)
