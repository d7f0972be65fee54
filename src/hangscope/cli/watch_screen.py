"""One screen of `watch`, as rich draws it: no taller and no wider than the terminal."""

from __future__ import annotations

from rich.console import ConsoleDimensions, Group, RenderableType
from rich.text import Text

from hangscope.cli.watch_terminal import WatchChoice
from hangscope.cli.watch_text import WatchTable, headline, tables
from hangscope.recorder.rundir.live_view import LiveView
from hangscope.report.safe_text import safe

_WIDE = 100
_SPARED = ("pid", "last seen")
"""Columns that a narrow terminal does without."""
_SHRINK = ("ranks", "waits in", "wait in", "waits for", "wait for", "not reached by", "in", "group", "node")
"""Columns that are cut before any other is."""
_RIGHT = ("rank", "for", "ops/s", "last seen", "waiting", "gone", "longest wait", "stalled for", "count")
_LEAST = 8


def screen(now: LiveView, choice: WatchChoice, size: ConsoleDimensions) -> RenderableType:
    parts: list[RenderableType] = [_line(text, "bold" if i == 0 else "") for i, text in enumerate(headline(now))]
    before = tables(now, choice, 1)
    # Every table has a head and a blank line before it; the last line of the screen has the keys.
    used = len(parts) + sum(_height(table) for table in before if table.title != "ranks") + 1
    room = max(3, size.height - used - 4)
    for table in tables(now, choice, room):
        cut = room if table.title == "ranks" else len(table.rows)
        parts += [Text(""), *_drawn(table, cut, size.width)]
        if table.more:
            parts.append(_line(f"({table.title}: {table.more})", "dim"))
    return Group(*parts, Text(""), _line(choice.line, "dim"))


def _height(table: WatchTable) -> int:
    return len(table.rows) + 2 + bool(table.more)


def _line(text: str, style: str) -> Text:
    return Text(safe(text), style=style, no_wrap=True, overflow="ellipsis")


def _drawn(table: WatchTable, most: int, width: int) -> list[Text]:
    kept = [i for i, name in enumerate(table.head) if width >= _WIDE or name not in _SPARED]
    rows = [table.head, *table.rows[:most]]
    widths = {i: max(len(row[i]) for row in rows) for i in kept}
    while sum(widths.values()) + 2 * (len(kept) - 1) > width:
        wide = [i for i in kept if table.head[i] in _SHRINK and widths[i] > _LEAST]
        if not wide:
            break
        widths[max(wide, key=lambda i: widths[i])] -= 1
    lines = []
    for number, row in enumerate(rows):
        style = "dim" if number == 0 else "bold" if number - 1 in table.late else ""
        cells = [_cell(row[i], widths[i], right=table.head[i] in _RIGHT) for i in kept]
        lines.append(_line("  ".join(cells).rstrip(), style))
    return lines


def _cell(text: str, width: int, *, right: bool) -> str:
    shown = text if len(text) <= width else f"{text[: width - 1]}…"
    return shown.rjust(width) if right else shown.ljust(width)
