"""`hangscope show PATH…`: the operations themselves."""

from __future__ import annotations

import click

from hangscope.cli.given_paths import load_given
from hangscope.cli.output import note, table_width, write
from hangscope.cli.pasted import with_pasted
from hangscope.cli.progress_bar import bar
from hangscope.errors import SettingsError
from hangscope.report.op_list import STATES, json_lines, select, table


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option("--rank", "ranks", metavar="RANKS", help="Only these ranks: 3, 0-7 or 0-7,12.")
@click.option("--group", metavar="GROUP", help="Only this group, by its name or description.")
@click.option(
    "--state", type=click.Choice(STATES), help="Only operations in this state; unfinished: all but completed."
)
@click.option("--name", metavar="NAME", help="Only operations of this name, such as all_reduce.")
@click.option("--last", metavar="N", type=click.IntRange(min=1), help="Only the last N of each rank.")
@click.option("--job", metavar="NAME", help="Of several jobs in one folder, this one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line instead of a table.")
@click.option(
    "--width", "asked_width", type=click.IntRange(min=40), help="Columns to use.  [default: COLUMNS, else 80]"
)
def command(
    paths: tuple[str, ...],
    ranks: str | None,
    group: str | None,
    state: str | None,
    name: str | None,
    last: int | None,
    job: str | None,
    as_json: bool,
    asked_width: int | None,
) -> int:
    """List the recorded operations, filtered by rank, group or state.

    Conditions add up: an operation is shown if it meets all of them. They are applied before --last. A table that goes
    to a file or a pipe is not cut to a width unless --width says one.
    """
    wanted = None if ranks is None else parse_ranks(ranks)
    from hangscope.diagnosis.evidence.wrongly_completed import corrected

    with with_pasted(paths) as given, bar(f"reading {', '.join(paths)}") as update:
        # Of an operation that raised the recorder says completed, and the verdict that its rank waits in it.
        loaded = corrected(load_given(given, full=True, progress=update, job=job))
        rows = select(loaded, ranks=wanted, group=group, state=state, name=name, last=last)
    if not len(rows):
        note("no operation matches" if len(loaded.ops) else "no operation was recorded: the input has no dump")
        return 0
    for line in json_lines(loaded, rows) if as_json else table(loaded, rows, table_width(asked_width)):
        write(f"{line}\n")
    return 0


def parse_ranks(text: str) -> set[int]:
    """``0-7,12`` as ranks. At most a million: more is a typing mistake."""
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first) > 7 or len(last) > 7:
            raise SettingsError(f"--rank {text!r} is not a list of ranks", hint="write 3, 0-7 or 0-7,12")
        low = int(first)
        high = int(last or first)
        if high < low:
            raise SettingsError(f"--rank {text!r}: {low}-{high} is backwards", hint=f"write {high}-{low}")
        chosen.update(range(low, high + 1))
    return chosen
