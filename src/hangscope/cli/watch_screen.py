"""One screen of `watch`, as rich draws it: no taller and no wider than the terminal."""

from __future__ import annotations

from rich.console import ConsoleDimensions, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from hangscope.cli.watch_terminal import WatchChoice
from hangscope.cli.watch_text import WatchTable, headline, tables
from hangscope.recorder.rundir.live_view import LiveView
from hangscope.report.safe_text import safe

_WIDE = 100
_SPARED = ("pid", "last seen")
"""Columns that a narrow terminal does without."""
_SHRINK = ("ranks", "waits in", "wait in", "waits for", "wait for", "not reached by", "in", "at", "group", "node")
"""Columns that are cut before any other is."""
_RIGHT = ("rank", "for", "ops/s", "last seen", "waiting", "gone", "longest wait", "stalled for", "count")


def screen(now: LiveView, choice: WatchChoice, size: ConsoleDimensions) -> RenderableType:
    parts: list[RenderableType] = [_line(text, "bold" if i == 0 else "") for i, text in enumerate(headline(now))]
    before = tables(now, choice, 1)
    # Every table has a head and a blank line before it; the last line of the screen has the keys.
    used = len(parts) + sum(_height(table) for table in before if table.title != "ranks") + 1
    room = max(3, size.height - used - 4)
    for table in tables(now, choice, room):
        cut = room if table.title == "ranks" else len(table.rows)
        parts += [Text(""), _drawn(table, cut, size.width)]
        if table.more:
            parts.append(_line(f"({table.title}: {table.more})", "dim"))
    return Group(*parts, Text(""), _line(choice.line, "dim"))


def _height(table: WatchTable) -> int:
    return len(table.rows) + 2 + bool(table.more)


def _line(text: str, style: str) -> Text:
    return Text(safe(text), style=style, no_wrap=True, overflow="ellipsis")


def _drawn(table: WatchTable, most: int, width: int) -> Table:
    """By rich, which makes the columns fit: those that may shrink first."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    kept = [i for i, name in enumerate(table.head) if width >= _WIDE or name not in _SPARED]
    for name in (table.head[i] for i in kept):
        side: JustifyMethod = "right" if name in _RIGHT else "left"
        drawn.add_column(Text(name, no_wrap=True), justify=side, no_wrap=name not in _SHRINK, overflow="ellipsis")
    for number, row in enumerate(table.rows[:most]):
        # Each cell says itself that it is one line: a column that may shrink would wrap.
        drawn.add_row(*(_line(row[i], "") for i in kept), style="bold" if number in table.late else "")
    return drawn
