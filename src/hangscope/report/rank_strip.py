"""The rank strip: one letter a rank, a row a node, readable from two ranks to many thousands.

Few ranks are drawn one by one. Many are folded: neighbouring rows that look alike become one, and the legend names the
ranks behind each letter as ranges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from hangscope.diagnosis.verdict import CauseKind, Diagnosis
from hangscope.report.safe_text import safe
from hangscope.report.text_layout import Line, Piece, cells, pad, paragraph, shorten
from hangscope.report.verdict_text import direct, title
from hangscope.text import plural, ranges, rank_list, spans
from hangscope.verdict_words import legend_word

FEW = 64
"""Up to so many ranks are drawn one by one."""
_ROWS = 12
"""Folded rows beyond this many are summed up in one line; those with a culprit are kept first."""
_CHUNK = 32
"""Letters in a row where no node bounds it."""

_STATES = {"not launched": "-", "scheduled": "s", "started": "S", "completed": "C", "unknown": "?"}
_OTHERS = {
    CauseKind.SLOW: "on time",
    CauseKind.MISMATCH: "like the majority",
    CauseKind.SHIFT: "like the majority",
}
_OF_THE_LIVING = (CauseKind.ABSENT, CauseKind.GPU)
"""What a live rank is accused of, beside others that ended or answer nothing."""
_ROLES = {"X": "culprit", "W": "waiting", "w": "waiting", "-": "culprit", ">": "culprit", "<": "culprit"}


@dataclass(frozen=True, slots=True)
class Letters:
    """One letter a rank, and what each letter says, in the order of the legend."""

    by_rank: Mapping[int, str]
    meaning: Mapping[str, str]

    def ranks(self, letter: str) -> list[int]:
        return [rank for rank, value in self.by_rank.items() if value == letter]


@dataclass(slots=True)
class _Row:
    """Ranks that are drawn on one line: those of a node, of part of one, or of several that look alike."""

    nodes: list[str]
    ranks: list[int]
    look: str
    folded: int = field(default=1)

    @property
    def uniform(self) -> bool:
        return len(set(self.look)) == 1


def strip(diagnosis: Diagnosis, width: int, *, verbose: bool = False) -> list[Line]:
    """The rows and the legend, no line wider than `width`; nothing where there is nobody to show."""
    letters = assign(diagnosis)
    if not letters.by_rank:
        return []
    few = len(letters.by_rank) <= FEW
    rows = _rows(letters.by_rank, diagnosis.nodes)
    rest: list[_Row] = []
    if not few:
        rows = _fold(rows)
        if not verbose and len(rows) > _ROWS:
            rows, rest = _most_telling(rows)
    lines = _draw(rows, width, spaced=few)
    if rest:
        counts = Counter(letters.by_rank[rank] for row in rest for rank in row.ranks)
        said = ", ".join(f"{counts[letter]} {letter}" for letter in letters.meaning if counts[letter])
        lines += paragraph(f"{plural(len(rest), 'more row')} with {said}", width)
    return lines + _legend(letters, width, few=few, verbose=verbose)


def assign(diagnosis: Diagnosis) -> Letters:
    """The letter of every rank that anything mentions."""
    d = diagnosis
    at_root = {v.rank for v in direct(d)}
    states = d.operation.state_by_rank if d.operation is not None else {}
    missing = set(d.completeness.missing_dumps) if d.completeness is not None else set()
    # What says most comes last, and wins.
    letters = dict.fromkeys(_everyone(d, missing.union(states)), ".")
    letters.update(dict.fromkeys(missing, "?"))
    letters.update((v.rank, "W" if v.rank in at_root else "w") for v in d.victims)
    if d.culprits:
        letters.update((c.rank, "X") for c in d.culprits)
    else:
        letters.update((rank, _STATES.get(state, "?")) for rank, state in states.items())
        if d.link is not None:
            ends = {d.link.sender.rank: ">", d.link.receiver.rank: "<"}
            letters.update((rank, end) for rank, end in ends.items() if rank in letters)
    used = set(letters.values())
    meaning = {letter: says for letter, says in _meanings(d, at_root).items() if letter in used}
    return Letters(dict(sorted(letters.items())), meaning)


def _everyone(d: Diagnosis, mentioned: set[int]) -> set[int]:
    """Every rank of the job, as far as the verdict says who that is."""
    everyone = mentioned.union(d.nodes, (c.rank for c in d.culprits), (v.rank for v in d.victims))
    if d.completeness is not None and all(rank < d.completeness.ranks for rank in everyone):
        everyone |= set(range(d.completeness.ranks))  # ranks count from 0: those that nothing mentions are the others
    return everyone


def _meanings(diagnosis: Diagnosis, at_root: set[int]) -> dict[str, str]:
    """What each letter says in this verdict, in the order of the legend."""
    d = diagnosis
    operation = "" if d.operation is None else title(d.operation.name, d.operation.seq)
    return {
        "X": legend_word(d.kind) if _alike(d) else "at fault",
        ">": "sending end of the link",
        "<": "receiving end of the link",
        "-": f"not launched {operation}",
        "W": _waits(d, at_root),
        "w": "waiting behind them",
        "?": "unknown",
        "s": f"scheduled {operation}",
        "S": f"started {operation}",
        "C": f"completed {operation}",
        ".": "not waiting" if d.hang else _OTHERS.get(d.kind, "not waiting"),
    }


def _alike(d: Diagnosis) -> bool:
    """Whether one word holds for all that are accused: the verdict's kind is that of the first cause."""
    kinds = [d.kinds.get(culprit.rank, d.kind) for culprit in d.culprits]
    return len({kind if kind in _OF_THE_LIVING else None for kind in kinds}) <= 1


def _waits(diagnosis: Diagnosis, at_root: set[int]) -> str:
    operations = {v.operation for v in diagnosis.victims if v.rank in at_root}
    if len(operations) == 1 and (operation := operations.pop()):
        return f"waiting in {operation}"
    accused = [c.rank for c in diagnosis.culprits]
    return f"waiting for {rank_list(accused, limit=3)}" if accused else "waiting"


def _rows(by_rank: Mapping[int, str], nodes: Mapping[int, str]) -> list[_Row]:
    """One row a node, in the order of their lowest ranks; ranks of no known node follow each other in chunks."""
    homes: dict[str, list[int]] = {}
    for rank in by_rank:
        homes.setdefault(nodes.get(rank, ""), []).append(rank)
    rows = []
    for node, ranks in homes.items():
        for at in range(0, len(ranks), _CHUNK):
            part = ranks[at : at + _CHUNK]
            rows.append(_Row([node] if node else [], part, "".join(by_rank[rank] for rank in part)))
    return sorted(rows, key=lambda row: row.ranks[0])


def _fold(rows: Sequence[_Row]) -> list[_Row]:
    """Neighbouring rows of one look as one. All-alike rows fold whatever their length."""
    folded = []
    for _, group in groupby(rows, key=lambda row: row.look[0] if row.uniform else row.look):
        same = list(group)
        nodes = [node for row in same for node in row.nodes]
        look = same[0].look
        folded.append(_Row(nodes, [rank for row in same for rank in row.ranks], look, len(same)))
        if folded[-1].uniform:
            folded[-1].look = look[0] * len(folded[-1].ranks)
    return folded


def _most_telling(rows: Sequence[_Row]) -> tuple[list[_Row], list[_Row]]:
    """The rows to draw and the rest: rows with a culprit first, then the others from the top."""
    by_weight = sorted(range(len(rows)), key=lambda i: (not set(rows[i].look) & set("X><-"), i))
    kept = set(by_weight[:_ROWS])
    return [row for i, row in enumerate(rows) if i in kept], [row for i, row in enumerate(rows) if i not in kept]


def _draw(rows: Sequence[_Row], width: int, *, spaced: bool) -> list[Line]:
    said = [shorten(_span(row.ranks), max(width // 4, 8)) for row in rows]
    span_width = max(map(cells, said))
    looks = (len(row.look) for row in rows if not (row.folded > 1 and row.uniform))
    look_width = min(max(looks, default=0) + 5, width // 3)
    labels = [shorten(_label(row), max(width - span_width - look_width - 4, 8)) for row in rows]
    label_width = max(map(cells, labels))
    lead = (label_width + 2 if label_width else 0) + span_width + 2
    room = max(width - lead, 8)
    lines: list[Line] = []
    for row, label, span in zip(rows, labels, said, strict=True):
        head = f"{pad(label, label_width)}  " if label_width else ""
        head += f"{pad(span, span_width)}  "
        if row.folded > 1:
            lines.append((Piece(head, "faint"), _folded_look(row, room)))
            continue
        gap = " " if spaced and 2 * len(row.look) - 1 <= room else ""
        step = room if not gap else len(row.look)
        for at in range(0, len(row.look), step):
            lines.append((Piece(head if at == 0 else " " * lead, "faint"), *_coloured(row.look[at : at + step], gap)))
    return lines


def _folded_look(row: _Row, room: int) -> Piece:
    look = f"all {row.look[0]}" if row.uniform else f"each {row.look}"
    if cells(look) > room:
        look = f"each {_run_lengths(row.look)}"
    return Piece(shorten(look, room), _ROLES.get(row.look[0], ""))


def _coloured(look: str, gap: str) -> list[Piece]:
    pieces = []
    for letter, group in groupby(look):
        pieces.append(Piece(gap.join(group) + gap, _ROLES.get(letter, "")))
    return pieces


def _run_lengths(look: str) -> str:
    return " ".join(f"{len(list(group))}×{letter}" for letter, group in groupby(look))


def _label(row: _Row) -> str:
    distinct = [safe(node) for node in dict.fromkeys(row.nodes)]
    if len(distinct) <= 1:
        return "".join(distinct)
    return f"{distinct[0]} … {distinct[-1]} ({len(distinct)} nodes)"


def _span(ranks: Sequence[int]) -> str:
    if ranks[-1] - ranks[0] + 1 == len(ranks) and len(ranks) > 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ranges(ranks, limit=3)


def _legend(letters: Letters, width: int, *, few: bool, verbose: bool) -> list[Line]:
    if few:
        lines: list[Line] = []
        current: list[Piece] = []
        used = 0
        for letter, meaning in letters.meaning.items():
            says = safe(meaning)
            size = len(letter) + 1 + cells(says)
            if current and used + 3 + size > width:
                lines.append(tuple(current))
                current = []
                used = 0
            if current:
                current.append(Piece("   "))
                used += 3
            current += [Piece(letter, _ROLES.get(letter, "")), Piece(f" {shorten(says, width - 2)}")]
            used += size
        lines.append(tuple(current))
        return lines
    lines = []
    for letter, says in letters.meaning.items():
        ranks = letters.ranks(letter)
        text = f"{says}, {plural(len(ranks), 'rank')}: {spans(ranks, 24 if verbose else 6)}"
        lines += paragraph(text, width, first=f"{letter} ", mark=_ROLES.get(letter, ""))
    return lines
