"""`hangscope ls [DIR]`: the incidents here."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import click

from hangscope.cli.given_paths import here
from hangscope.cli.output import note, table_width, write
from hangscope.incident import inventory
from hangscope.incident.inventory import Listed
from hangscope.report.safe_text import safe


@click.command(epilog="Example: hangscope ls /shared/hangs --json | jq -r '.[-1].path'")
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="A JSON list instead of a table.")
def command(directory: Path | None, as_json: bool) -> int:
    """List the incidents of a directory, the newest last: when, job, attempt, outcome, size, and what was found.

    DIR is any directory above them: HANGSCOPE_DIR, else ./hangscope, else the working directory. Every verb that takes
    a path also takes `latest`, the last line of this list, and DIR/latest.
    """
    place = directory or here()
    found = inventory.incidents(place)
    if as_json:
        printed = json.dumps([each.to_json() for each in found], indent=1)  # in ASCII: nothing in it moves a cursor
        write(f"{printed}\n")
        return 0
    if not found:
        note(f"no incident in {place}")
        return 0
    from hangscope.report.text_layout import table

    rows = [("when", "job", "attempt", "outcome", "size", "where", "headline"), *(_row(each, place) for each in found)]
    for line in table(rows, table_width(), right=frozenset((4,))):
        write(f"{line}\n")
    return 0


def _row(each: Listed, place: Path) -> tuple[str, ...]:
    from hangscope.text import size

    when = datetime.fromtimestamp(each.captured_s).strftime("%Y-%m-%d %H:%M")
    where = each.path.relative_to(place) if each.path.is_relative_to(place) else each.path
    said = (each.manifest.job or "?", each.manifest.attempt or "?", (each.outcome or each.manifest.reason).upper())
    return (when, *map(safe, said), size(each.size), safe(str(where)), safe(each.headline or ""))
