"""Lines that the catalogue of wordings knows: from a row and what its groups captured to a failure.

Nothing is known here of any library; what a line means stands in its row (`hangscope.wordings`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from string import Formatter

from hangscope.model import FailureKind, Source
from hangscope.model.numbers import integer
from hangscope.model.values import RANK_LIMIT, pci_id
from hangscope.reader.logs.failure_line import FailureLine, make_failure
from hangscope.reader.logs.kernel_log import host_in_front
from hangscope.reader.logs.log_lines import Line
from hangscope.reader.logs.nccl_warnings import address_host
from hangscope.reader.logs.quoted_words import is_quoted
from hangscope.reader.logs.torch_words import clock_of, default_rank
from hangscope.wordings import Wording, find
from hangscope.wordings.wording import compiled

MOST = 2000
"""Failures of one file that are kept."""
_MOST_RANKS = 4096
_OTHER_LINES = 3
"""Lines in a row that may stand between those that go on with a wording."""
_PIECES = re.compile(r"\\n|\n|(?=/job:)")
"""How a message of several lines is cut where it was printed as one."""
_NUMBERS = re.compile(r"\d{1,6}")
_FORMATTER = Formatter()


@dataclass
class _Open:
    """A wording whose lines below are still read."""

    row: Wording
    key: tuple[object, ...]
    line: Line
    groups: dict[str, str]
    ranks: set[int] = field(default_factory=set)
    beside: list[Source] = field(default_factory=list)
    left: int = 0
    others: int = 0


class WordedLog:
    """Reads one file's lines by the catalogue."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: dict[tuple[object, ...], tuple[Wording, FailureLine]] = {}
        self._open: dict[tuple[int | None, str], _Open] = {}

    @property
    def failures(self) -> list[FailureLine]:
        """What the file says, in the order of its lines; a list that names nobody is none."""
        return [
            said
            for row, said in self._found.values()
            if row.kind != FailureKind.MEMORY_HELD or said.failure.pid is not None
        ]

    @property
    def waiting(self) -> bool:
        """Whether lines below may go on with one above."""
        return bool(self._open)

    def feed(self, line: Line) -> bool:
        """Take one line. True where the catalogue knows it."""
        continued = bool(self._open) and self._continues(line)
        for row, match in find(line.text):
            if is_quoted(line.text, match.start()):
                continue
            if row.recovers:
                self._take_back(row, _captured(match))
            else:
                self._begin(row, match, line)
            return True
        return continued

    def _begin(self, row: Wording, match: re.Match[str], line: Line) -> None:
        groups = _captured(match)
        begun = _Open(row, (), line, groups, left=row.most_below)
        _add_numbers(begun, groups)
        if row.below:
            for piece in _PIECES.split(line.text[match.start() :])[1:]:
                self._add_below(begun, piece)
        begun.key = _identity(begun)
        self._keep(begun)
        if row.most_below:
            self._open[line.tag, line.stream] = begun

    def _continues(self, line: Line) -> bool:
        writer = (line.tag, line.stream)
        text = line.text
        begun = self._open.get(writer)
        if begun is None and line.bare and line.task is not None:  # a row of a list, and no launcher's label
            label = f"{line.task}:"
            writer = (line.tag, line.stream.removesuffix(label).strip())
            text = f"{label} {text}"
            begun = self._open.get(writer)
        if begun is None:
            return False
        begun.left -= 1
        added = self._add_below(begun, text)
        if added:
            begun.others = 0
            begun.beside.append(Source(self.file, f"line {line.number}"))
            self._keep(begun)
        elif line.text.strip():
            begun.others += 1
        if begun.left <= 0 or begun.others > _OTHER_LINES:
            del self._open[writer]
        return added

    def _add_below(self, begun: _Open, text: str) -> bool:
        match = compiled(begun.row.below).search(text)
        if match is None:
            return False
        groups = _captured(match)
        _add_numbers(begun, groups)
        for name, value in groups.items():
            begun.groups.setdefault(name, value)
        return True

    def _keep(self, begun: _Open) -> None:
        if begun.key not in self._found and len(self._found) >= MOST:
            return
        self._found[begun.key] = (begun.row, self._failure(begun))

    def _failure(self, begun: _Open) -> FailureLine:
        row, line, groups = begun.row, begun.line, begun.groups
        kind = row.kind or FailureKind.OTHER
        effect = row.effect
        ranks = tuple(sorted(begun.ranks))[:_MOST_RANKS]
        rank = integer(groups["rank"]) if "rank" in groups else None
        if kind == FailureKind.MISSING_RANKS and not ranks:
            kind, effect = FailureKind.WAIT_TIMEOUT, True  # the list is cut off
        elif kind != FailureKind.MISSING_RANKS and rank is None and len(ranks) == 1 and not effect:
            rank, ranks = ranks[0], ()
        pid = groups.get("pid")
        failure = make_failure(
            self.file,
            line,
            kind,
            text=_text(row, line, groups),
            rank=rank,
            ranks=ranks,
            node=groups.get("node") or (host_in_front(line.text) if row.kernel else None),
            peer_rank=integer(groups["peer"]) if "peer" in groups else None,
            peer_node=_peer_node(groups),
            local_rank=integer(groups["local"]) if "local" in groups else None,
            pid=integer(pid) if pid is not None else (line.pid if row.of_writer else None),
            code=integer(groups["code"]) if "code" in groups else row.code,
            operation=_filled(row.operation, groups),
            detail=_filled(row.detail, groups) or (None if row.detail else groups.get("what")),
            device=pci_id(groups["device"]) or groups["device"] if "device" in groups else None,
            task=None if row.names_ranks else groups.get("task"),
            effect=effect,
            explains=row.explains,
            library=row.library,
            beside=tuple(begun.beside),
        )
        at = clock_of(line.text) or line.at_ns
        of_writer = row.of_writer or row.effect  # who waited, or was stopped, is who says so
        return FailureLine(failure, line, at, of_writer=of_writer, hint=default_rank(line.text))

    def _take_back(self, over: Wording, groups: dict[str, str]) -> None:
        """A server that answers again, or a wait that ended."""
        peer = _peer_node(groups)
        for key, (row, said) in list(self._found.items()):
            if row.library == over.library and row.warns and peer in (None, said.failure.peer_node):
                del self._found[key]


def _captured(match: re.Match[str]) -> dict[str, str]:
    """What a pattern captured, by name; a group with a number behind its name is that group in another place."""
    captured: dict[str, str] = {}
    for name, value in match.groupdict().items():
        if value is not None:
            captured.setdefault(name.rstrip("0123456789"), value.strip())
    return captured


def _add_numbers(begun: _Open, groups: dict[str, str]) -> None:
    text = groups.get("ranks", "")
    if begun.row.names_ranks:
        text = f"{text} {groups.get('task', '')}"
    numbers = (integer(number) for number in _NUMBERS.findall(text))
    begun.ranks.update(number for number in numbers if number < RANK_LIMIT)


def _identity(begun: _Open) -> tuple[object, ...]:
    """What two lines about one thing have in common. Of a list of ranks the last one counts: some came meanwhile."""
    row, groups = begun.row, begun.groups
    if row.kind == FailureKind.MISSING_RANKS:
        return (row.kind, row.library, groups.get("op"))
    named = tuple(groups.get(name) for name in ("rank", "ranks", "task", "node", "peer_node", "pid", "device", "what"))
    return (row.kind, row.library, row.pattern, begun.line.tag, begun.line.stream, *named)


def _peer_node(groups: dict[str, str]) -> str | None:
    peer = groups.get("peer_node") or groups.get("mds")
    return None if peer is None else (address_host(peer) if "<" in peer else peer)


def _text(row: Wording, line: Line, groups: dict[str, str]) -> str:
    """The line; for the head of a table, with what its first rows say."""
    said = _filled(row.detail, groups) if row.kind is FailureKind.MEMORY_HELD else None
    return f"{line.text.strip()} {said}" if said else line.text


def _filled(template: str, groups: dict[str, str]) -> str | None:
    """A row's text with what was captured; None where nothing of what it needs was."""
    needed = [name for _, name, _, _ in _FORMATTER.parse(template) if name]
    if needed and not any(groups.get(name) for name in needed):
        return None
    return template.format_map(defaultdict(str, groups)).strip(" :,") or None
