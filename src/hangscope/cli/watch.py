"""`hangscope watch`: a live view of a run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hangscope.cli.output import write
from hangscope.recorder.live import View, view

SHOWN = 64
"""More ranks than this do not fit a terminal: those that wait longest and those that are gone are shown then."""
EVERY_S = 1.0


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Print the view once, as text.  [default where stdout is no terminal]")
def command(directory: Path, once: bool) -> int:
    """Show live who waits for whom.

    DIR is the directory that `hangscope run` keeps. Groups come first: the newest operation that anybody has launched,
    and the ranks that have not. Ends with the job; Ctrl-C ends it earlier.
    """
    if once or not sys.stdout.isatty():
        write(as_text(view(directory)))
        return 0
    console = Console(highlight=False, markup=False, emoji=False)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            now = view(directory)
            live.update(as_tables(now), refresh=True)
            if now.ended:
                return 0
            time.sleep(EVERY_S)


def headline(now: View) -> str:
    size = f" of {now.world_size}" if now.world_size and now.world_size != len(now.ranks) else ""
    waiting = sum(1 for line in now.ranks if line.waits)
    gone = sum(1 for line in now.ranks if line.state == "gone")
    parts = [f"job {now.job}, attempt {now.attempt}: {len(now.ranks)}{size} ranks, {waiting} waiting, {gone} gone"]
    if now.ended:
        parts.append("the job has ended")
    parts += [f"no word from {node}" for node in now.stale_nodes]
    parts += [f"captured: {each.detail or each.reason} -> {each.incident}" for each in now.captures]
    return "\n".join(parts)


def group_rows(now: View) -> list[tuple[str, ...]]:
    return [
        (
            f"{line.group} ({line.recorder})",
            str(line.members),
            f"#{line.newest}",
            f"#{line.completed}",
            ", ".join(map(str, line.behind[:16])) + (" …" if len(line.behind) > 16 else "") or "-",
            seconds(line.still_s),
        )
        for line in now.groups
    ]


def rank_rows(now: View) -> list[tuple[str, ...]]:
    lines = now.ranks
    if len(lines) > SHOWN:
        lines = tuple(sorted(lines, key=lambda line: (line.state != "gone", -(line.waits_s or 0.0)))[:SHOWN])
        lines = tuple(sorted(lines, key=lambda line: line.rank))
    return [
        (
            str(line.rank),
            line.node,
            str(line.pid),
            line.state if line.exit_status is None else f"gone ({line.exit_status})",
            f"{line.waits} of {line.group}" if line.waits else "-",
            seconds(line.waits_s),
            seconds(line.silent_s),
        )
        for line in lines
    ]


GROUP_HEAD = ("group", "ranks", "newest", "done by all", "not there yet", "still for")
RANK_HEAD = ("rank", "node", "pid", "state", "waits in", "for", "last word")


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"


def as_text(now: View) -> str:
    """The view as plain columns."""
    out = [headline(now), ""]
    for head, rows in ((GROUP_HEAD, group_rows(now)), (RANK_HEAD, rank_rows(now))):
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        for row in (head, *rows):
            out.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        out.append("")
    return "\n".join(out)


def as_tables(now: View) -> RenderableType:
    tables = []
    for head, rows in ((GROUP_HEAD, group_rows(now)), (RANK_HEAD, rank_rows(now))):
        table = Table(*head, box=None, pad_edge=False)
        for row in rows:
            late = row[4] != "-" or row[3].startswith("gone")
            table.add_row(*(Text(cell) for cell in row), style="bold" if late else "")
        tables.append(table)
    return Group(Text(headline(now)), Text(""), tables[0], Text(""), tables[1])
