"""The view of `watch` as rows and text. What is alike is one row: nodes that run as they should, groups of one mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hangscope.cli.watch_terminal import WatchChoice
from hangscope.recorder.rundir.live_view import GroupLine, LiveView, RankLine
from hangscope.report.safe_text import safe
from hangscope.report.text_layout import table
from hangscope.text import duration, plural, spans

STALE_SHOWN = 8
WAITED_FOR_SHOWN = 8
PLACES_SHOWN = 3
GROUPS_SHOWN = 12
NODES_SHOWN = 16
RANKS_SHOWN = 40
FOLD_OVER = 64
"""More ranks than this are folded where they do the same; `a` unfolds them."""
SLOW = 0.8
"""A rank below this share of the usual rate is worth a look."""

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WatchTable:
    """Rows under a head; `late` are the indices of those that need attention, `more` says what was left out."""

    title: str
    head: Row
    rows: tuple[Row, ...]
    late: frozenset[int] = frozenset()
    more: str = ""


def headline(now: LiveView) -> list[str]:
    lines = [_counts(now)]
    if now.ended:
        lines.append("the job has ended")
    if now.stale_nodes:
        more = f" and {len(now.stale_nodes) - STALE_SHOWN} more" if len(now.stale_nodes) > STALE_SHOWN else ""
        lines.append(f"no update from {', '.join(now.stale_nodes[:STALE_SHOWN])}{more}")
    lines += [f"captured: {each.detail or each.reason} -> {each.incident}" for each in now.captures[-3:]]
    if now.verdict is not None:
        lines.append(f"{now.verdict.outcome.upper()}: {now.verdict.headline} (confidence: {now.verdict.confidence})")
        lines += now.verdict.places[:PLACES_SHOWN]
    return lines


def _counts(now: LiveView) -> str:
    size = f" of {now.world_size}" if now.world_size and now.world_size != len(now.ranks) else ""
    waiting = sum(1 for line in now.ranks if line.waits)
    gone = sum(1 for line in now.ranks if line.gone)
    text = f"job {now.job}, attempt {now.attempt}: {len(now.ranks)}{size} ranks, {waiting} waiting, {gone} gone"
    rates = _known_rates(now.ranks)
    return f"{text}, {_usual_rate(rates)}" if rates and not now.ended else text


def tables(now: LiveView, choice: WatchChoice, ranks_shown: int | None) -> list[WatchTable]:
    """`ranks_shown` is how many rows of ranks there is room for; None for all of them."""
    made = (_waited_for(now), _stragglers(choice), _groups(now), _nodes(now), _ranks(now, choice, ranks_shown))
    return [each for each in made if each.rows]


def _waited_for(now: LiveView) -> WatchTable:
    rows = tuple(
        (
            f"{each.rank} {each.role}".rstrip(),
            each.node,
            _state(each.state, None),
            plural(each.waiting, "rank"),
            each.operation,
            seconds(each.longest_s),
            each.code or "-",
        )
        for each in now.waited_for[:WAITED_FOR_SHOWN]
    )
    old = now.threshold_s or 30.0
    late = frozenset(i for i, each in enumerate(now.waited_for[:WAITED_FOR_SHOWN]) if each.longest_s > old)
    left = len(now.waited_for) - len(rows)
    head = ("rank", "node", "state", "waited for by", "in", "for", "at")
    return WatchTable("waited for", head, rows, late, f"{left} more" if left > 0 else "")


def _stragglers(choice: WatchChoice) -> WatchTable:
    """The ranks of a job that moves for which the others wait again and again, since the view began."""
    rows = tuple(
        (str(each.rank), each.node, f"{each.times} of {each.looks} looks", each.code or "-")
        for each in choice.stragglers.found()
    )
    head = ("straggler", "node", "others waited for it in", "at")
    return WatchTable("stragglers", head, rows, frozenset(range(len(rows))))


def _groups(now: LiveView) -> WatchTable:
    """One row a group; groups of one description and recorder share a row, unless there are few enough to show."""
    families: dict[tuple[str, str], list[GroupLine]] = {}
    for line in now.groups:
        families.setdefault((line.recorder, line.group), []).append(line)
    fold = len(now.groups) > GROUPS_SHOWN
    rows: list[Row] = []
    for (recorder, group), lines in families.items():
        for each in [lines] if fold else [[line] for line in lines]:
            rows.append(_group(f"{group} ({recorder})", each))
    shown = rows[:GROUPS_SHOWN]
    late = frozenset(i for i, row in enumerate(shown) if row[4] != "-")
    left = f"{len(rows) - len(shown)} more" if len(rows) > len(shown) else ""
    return WatchTable(
        "groups",
        ("group", "ranks", "newest", "completed by all", "not reached by", "stalled for"),
        tuple(shown),
        late,
        left,
    )


def _group(label: str, lines: Sequence[GroupLine]) -> Row:
    members = [line.members for line in lines]
    count = str(members[0]) if len(lines) == 1 else f"{len(lines)} × {_span(members)}"
    behind = sorted({rank for line in lines for rank in line.behind})
    return (
        label,
        count,
        "#" + _span([line.newest for line in lines]),
        "#" + _span([line.completed for line in lines]),
        spans(behind, limit=8) if behind else "-",
        seconds(max(line.still_s for line in lines if line.behind or not behind)),
    )


def _nodes(now: LiveView) -> WatchTable:
    """The nodes that differ from the rest, and the rest in one row. One node alone is what its ranks are."""
    by_node: dict[str, list[RankLine]] = {}
    for line in now.ranks:
        by_node.setdefault(line.node, []).append(line)
    if len(by_node) < 2:
        return WatchTable("nodes", (), ())
    odd = _odd_nodes(now, by_node)
    rows = [_node(node, by_node[node]) for node in odd[:NODES_SHOWN]]
    late = frozenset(range(len(rows)))
    rest = [line for node, lines in by_node.items() if node not in odd for line in lines]
    if rest:
        rows.append(_node(plural(len(by_node) - len(odd), "other node" if odd else "node"), rest))
    left = f"{len(odd) - NODES_SHOWN} more" if len(odd) > NODES_SHOWN else ""
    return WatchTable("nodes", ("node", "ranks", "waiting", "gone", "ops/s", "longest wait"), tuple(rows), late, left)


def _odd_nodes(now: LiveView, by_node: Mapping[str, Sequence[RankLine]]) -> list[str]:
    """The nodes that need a look; where all do, those with a rank that others wait for."""
    usual_rate = median(_known_rates(now.ranks) or [0.0])
    blamed = {each.rank for each in now.waited_for}
    odd = [
        node
        for node, lines in by_node.items()
        if node in now.stale_nodes or any(_is_odd(line, blamed, usual_rate) for line in lines)
    ]
    if len(odd) < len(by_node):
        return odd
    return [node for node in odd if any(line.rank in blamed for line in by_node[node])]


def _is_odd(line: RankLine, blamed: set[int], usual_rate: float) -> bool:
    """Gone, stopped, stuck in the kernel, waited for by others, or slow."""
    if line.gone or line.rank in blamed or line.state in "TtDZX":
        return True
    return line.rate is not None and line.rate < SLOW * usual_rate


def _node(name: str, lines: Sequence[RankLine]) -> Row:
    return (
        name,
        spans((line.rank for line in lines), limit=4),
        str(sum(1 for line in lines if line.waits)),
        str(sum(1 for line in lines if line.gone)),
        _rate_span(_known_rates(lines)),
        _longest(line.waits_s for line in lines),
    )


_ORDER: dict[str, Callable[[RankLine], tuple[object, ...]]] = {
    "rank": lambda line: (line.rank,),
    "wait": lambda line: (not line.gone, -(line.waits_s or 0.0), line.rank),
    "rate": lambda line: (line.rate if line.rate is not None else -1.0, line.rank),
    "node": lambda line: (line.node, line.rank),
    "silent": lambda line: (-(line.silent_s or 0.0), line.rank),
}


def _ranks(now: LiveView, choice: WatchChoice, most: int | None) -> WatchTable:
    blamed = {each.rank for each in now.waited_for}
    kept = [line for line in now.ranks if _wanted(line, choice, blamed)]
    kept.sort(key=_ORDER[choice.sort], reverse=choice.reverse)
    if choice.sort == "wait":  # whoever is waited for waits least, and is looked for first
        kept.sort(key=lambda line: (line.rank in blamed) == choice.reverse)
    hidden = len(now.ranks) - len(kept)
    if len(kept) > FOLD_OVER and not choice.everything:
        return _folded(kept, blamed, hidden, most)
    shown = kept[choice.scroll :][:most]
    late = frozenset(i for i, line in enumerate(shown) if line.gone or line.rank in blamed)
    left = len(kept) - len(shown)
    more = _left_out(f"{left} more" if left else "", hidden)
    head = ("rank", "node", "pid", "state", "ops/s", "waits in", "for", "waits for", "last seen")
    return WatchTable("ranks", head, tuple(_rank(line) for line in shown), late, more)


def _rank(line: RankLine) -> Row:
    return (
        f"{line.rank} {line.role}".rstrip(),
        line.node,
        str(line.pid),
        _state(line.state, line.exit_status),
        "-" if line.rate is None else f"{line.rate:.1f}",
        _waits_in(line),
        seconds(line.waits_s),
        spans(line.for_ranks, limit=3) if line.for_ranks else "-",
        seconds(line.silent_s),
    )


def _folded(kept: Sequence[RankLine], blamed: set[int], hidden: int, most: int | None) -> WatchTable:
    """Ranks that do the same share a row, in the order of their first; those that others wait for have their own."""
    alike: dict[tuple[object, ...], list[RankLine]] = {}
    for line in kept:
        alone = line.rank if line.rank in blamed else None
        key = (alone, line.gone, line.exit_status, line.state in "Tt", line.waits, line.group)
        alike.setdefault(key, []).append(line)
    rows = tuple(_folded_row(lines) for lines in alike.values())
    late = frozenset(i for i, lines in enumerate(alike.values()) if lines[0].gone or lines[0].rank in blamed)
    left = f"{len(rows) - most} more rows" if most is not None and len(rows) > most else ""
    head = ("ranks", "count", "state", "ops/s", "wait in", "for", "wait for", "last seen")
    return WatchTable("ranks", head, rows[:most], late, _left_out(left, hidden))


def _folded_row(lines: Sequence[RankLine]) -> Row:
    first = lines[0]
    return (
        spans((line.rank for line in lines), limit=3),
        str(len(lines)),
        _state(first.state, first.exit_status),
        _rate_span(_known_rates(lines)),
        _waits_in(first),
        _longest(line.waits_s for line in lines),
        spans({rank for line in lines for rank in line.for_ranks}, limit=3) or "-",
        _longest(line.silent_s for line in lines),
    )


def _left_out(left: str, hidden: int) -> str:
    parts = [left] if left else []
    if hidden:
        parts.append(f"{hidden} hidden by the filter")
    return " · ".join(parts)


def _waits_in(line: RankLine) -> str:
    return f"{line.waits} of {line.group}" if line.waits else "-"


def _wanted(line: RankLine, choice: WatchChoice, blamed: set[int]) -> bool:
    kinds = {"waiting": bool(line.waits), "gone": line.gone, "late": line.rank in blamed or line.gone}
    if not kinds.get(choice.filter, True):
        return False
    text = choice.text.lower()
    return (
        not text
        or text == str(line.rank)
        or any(text in field.lower() for field in (line.node, line.group, line.waits))
    )


def _state(state: str, exit_status: int | None) -> str:
    return state if exit_status is None else f"gone ({exit_status})"


def _known_rates(lines: Iterable[RankLine]) -> list[float]:
    """The slowest first."""
    return sorted(line.rate for line in lines if line.rate is not None)


def _usual_rate(rates: Sequence[float]) -> str:
    return f"{median(rates):.1f} ops/s" if len(rates) == 1 else f"{median(rates):.1f} ops/s (slowest {rates[0]:.1f})"


def _rate_span(rates: Sequence[float]) -> str:
    return _joined(f"{rates[0]:.1f}", f"{rates[-1]:.1f}") if rates else "-"


def _span(values: Sequence[int]) -> str:
    return _joined(str(min(values)), str(max(values)))


def _joined(low: str, high: str) -> str:
    return low if low == high else f"{low}-{high}"


def _longest(values: Iterable[float | None]) -> str:
    return seconds(max((value for value in values if value is not None), default=None))


def seconds(value: float | None) -> str:
    return "-" if value is None else duration(max(0.0, value)) if value >= 60 else f"{value:.0f} s"


def as_text(now: LiveView, choice: WatchChoice, width: int) -> str:
    """The view as plain columns, no line wider than `width`."""
    out = [*map(safe, headline(now)), ""]
    for each in tables(now, choice, None if choice.everything else RANKS_SHOWN):
        out += table((each.head, *each.rows), width)
        out += [f"({each.title}: {each.more})"[:width]] if each.more else []
        out.append("")
    return "\n".join(out)
