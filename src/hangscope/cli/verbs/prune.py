"""`hangscope prune [DIR] --older-than TIME`: old incidents go."""

from __future__ import annotations

from pathlib import Path

import click

from hangscope.cli.given_paths import here
from hangscope.cli.output import note, write
from hangscope.cli.size_options import DURATION
from hangscope.incident import inventory
from hangscope.report.safe_text import safe
from hangscope.text import plural, size

_OLD_ENOUGH = "not old enough"


@click.command(epilog="Example, in a cron job: hangscope prune /shared/hangs --older-than 14d")
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--older-than", type=DURATION, required=True, metavar="TIME", help="Since they were captured: 14d, 36h.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def command(directory: Path | None, older_than: float, dry_run: bool) -> int:
    """Delete incidents that are older than a time, and nothing else.

    Only what an incident is made of goes: its manifest, its nodes' folders, its verdict. What else lies in its
    directory stays, as do incidents of others and those of a run that goes on. Links are not followed.
    """
    place = directory or here()
    gone = 0
    freed = 0
    for incident in inventory.incidents(place):
        why = inventory.why_kept(incident, older_than)
        if why:
            if why != _OLD_ENOUGH:
                note(f"kept: {incident.path}: {why}")
            continue
        if not dry_run and not inventory.remove(incident):
            note(f"{incident.path}: the incident is gone; something else lies there and stays")
        gone += 1
        freed += incident.size
        write(f"{safe(str(incident.path))}\n")
    note(f"{'would delete' if dry_run else 'deleted'} {plural(gone, 'incident')}, {size(freed)}")
    return 0
