"""The verdict for people: the answer first, then why, who waits, what was ruled out, what to do, what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hangscope.diagnosis.evidence.code_lines import user_frame
from hangscope.diagnosis.verdict import (
    HISTORY_GAP,
    CauseKind,
    Completeness,
    Culprit,
    Diagnosis,
    Finding,
    LinkEnd,
    Victim,
)
from hangscope.diagnosis.waits.wait_graph import IN_FLIGHT_S
from hangscope.errors import LeftOut
from hangscope.model import Gap, Job, Source
from hangscope.report.history_lines import history_lines
from hangscope.report.rank_strip import strip
from hangscope.report.safe_text import safe
from hangscope.report.text_layout import Line, Piece, cells, pad, paragraph, plain, table, wrap
from hangscope.report.verdict_text import (
    BELOW_THE_CALLS,
    brief,
    clock,
    culprit_lines,
    direct,
    how_long,
    iso,
    kind_text,
    members,
    only_logs,
    place,
    place_text,
    short_place,
    source_text,
    through_text,
    title,
)
from hangscope.report.whole_stacks import whole_stacks
from hangscope.text import plural, ranges, rank_list, short, size
from hangscope.verdict_words import BAD, GOOD, TONES, WARN, Outcome, first_word

_HEAD = 7
_LABEL = 11
_BLANK: Line = ()

_CULPRITS_SHOWN = 4
_SOURCES_SHOWN = 2
_DETAIL_SHOWN = 6
_GAPS_SHOWN = 5
_LATE_SHOWN = 8
_SETS_SHOWN = 8
_PLACES_SHOWN = 2
_CODE_SHOWN = 100


def render_text(diagnosis: Diagnosis, *, width: int = 80, verbose: bool = False, job: Job | None = None) -> str:
    """The report as plain text."""
    return plain(render(diagnosis, width=width, verbose=verbose, job=job))


def render(diagnosis: Diagnosis, *, width: int = 80, verbose: bool = False, job: Job | None = None) -> list[Line]:
    """The report as lines whose pieces have roles. No line is wider than `width`. The job itself is what a verbose one
    takes the stacks from."""
    d = diagnosis if verbose else brief(diagnosis)
    left_out = LeftOut()
    last = {
        "what else is possible": lambda: _also_possible(d, width),
        "what is ruled out": lambda: _ruled_out(d, width),
        "what completed last": lambda: _last_good(d, width, verbose),
        "who reported it": lambda: _reported(d, width, verbose),
        "next steps": lambda: _next(d, width),
        "history": lambda: _history(d, width, verbose),
        "evidence": lambda: _evidence(d, width, verbose),
        "gaps": lambda: _gaps(d, width, verbose),
    }
    blocks = [
        left_out.part("head", _bare_head(d, width), lambda: _head(d, width, verbose)),
        left_out.several("why", lambda: _why(d, width, verbose)),
        left_out.several("slowest ranks", lambda: _slowest(d, width, verbose)),
        left_out.several("ranks", lambda: _ranks(d, width, verbose)),
        left_out.several("waits", lambda: _waits(d, width) if verbose else []),
        left_out.several("code", lambda: _code(d, width) if verbose else []),
        left_out.several("operation", lambda: _operation(d, width) if verbose else []),
        left_out.several("stacks", lambda: whole_stacks(job, d, width) if verbose and job is not None else []),
        [line for what, make in last.items() for line in left_out.several(what, make)],
        left_out.several("facts", lambda: _findings("Facts", d.evidence, d.inputs, width, verbose) if verbose else []),
    ]
    blocks.append([line for what, why in left_out.reasons for line in _labelled("Left out", f"{what}: {why}", width)])
    lines: list[Line] = []
    for block in blocks:
        if block and lines:
            lines.append(_BLANK)
        lines += block
    return lines


# ---- the answer ------------------------------------------------------------------------------------------------------


def _head(d: Diagnosis, width: int, verbose: bool) -> list[Line]:
    label, role = _label(d)
    first = pad(label, _HEAD)
    sure = f"confidence: {d.confidence}"
    said = wrap(d.headline or d.summary, width - _HEAD - len(sure) - 2)
    gap = " " * (width - _HEAD - cells(said[0]) - len(sure))
    lines: list[Line] = [(Piece(first, role), Piece(said[0], "label"), Piece(gap), Piece(sure, "faint"))]
    lines += [(Piece(" " * _HEAD), Piece(part, "label")) for part in said[1:]]
    if verbose and d.confidence_rule:
        lines += _under(f"confidence is {d.confidence}: {d.confidence_rule}", width, "faint")
    for text in _about(d, verbose):
        lines += _under(text, width)
    return lines


_ROLES = {BAD: "alarm", WARN: "waiting", GOOD: "good"}


def _bare_head(d: Diagnosis, width: int) -> list[Line]:
    """The answer, where the head as a whole cannot be made."""
    return [*paragraph(d.headline or d.summary, width, indent=0, role="label"), *_under(d.confidence, width)]


def _label(d: Diagnosis) -> tuple[str, str]:
    return first_word(d.outcome), _ROLES[TONES[d.outcome]]


def _under(text: str, width: int, role: str = "") -> list[Line]:
    return paragraph(text, width, indent=_HEAD, role=role)


def _about(d: Diagnosis, verbose: bool) -> list[str]:
    """Who, where, since when, from which line: one sentence a line."""
    lines = _places(d)
    lines += [_where(d.culprits[0])] if len(d.culprits) == 1 else _several(d.culprits, verbose)
    if (o := d.operation) is not None:
        frame = user_frame(o.frames)
        called = f", called at {place(frame)}" if frame is not None else ""
        lines.append(f"{title(o.name, o.seq)} of {o.group} ({members(d)}){called}")
    if d.link is not None:
        channel = "" if d.link.channel is None else f", channel {d.link.channel}"
        lines.append(f"link {_end(d.link.sender)} → {_end(d.link.receiver)}{channel}")
    if d.hang or d.outcome == Outcome.CRASH:
        lines += _waiting(d)
    if not d.hang and d.kind == CauseKind.NONE and d.completeness is not None and d.completeness.ranks:
        lines.append(_population(d))
    return lines


def _where(culprit: Culprit) -> str:
    parts = [culprit.role.says] if culprit.role is not None else []
    parts.append(f"node {culprit.node}" if culprit.node else "unknown node")
    if culprit.local_rank is not None:
        parts.append(f"local rank {culprit.local_rank}")
    if culprit.gpu:
        parts.append(f"GPU {culprit.gpu.removeprefix('0000:')}")
    if culprit.pid is not None:
        parts.append(f"pid {culprit.pid}")
    return ", ".join(parts)


def _places(d: Diagnosis) -> list[str]:
    """The culprits' lines of code with their text; not what the headline says already."""
    lines = []
    for where, ranks in culprit_lines(d)[:_PLACES_SHOWN]:
        if where.code or short_place(where.frame) not in d.headline:
            who = f"{rank_list(ranks, limit=8)} at " if len(d.culprits) > 1 else "at "
            code = f": {short(where.code, _CODE_SHOWN)}" if where.code else ""
            lines.append(f"{who}{place_text(where)}{code}{through_text(where)}")
    return lines


def _several(culprits: Sequence[Culprit], verbose: bool) -> list[str]:
    if verbose or len(culprits) <= _CULPRITS_SHOWN:
        return [f"rank {c.rank}: {_where(c)}{f'; {c.why}' if c.why else ''}" for c in culprits]
    homes: dict[str | None, list[int]] = {}
    for culprit in culprits:
        homes.setdefault(culprit.node, []).append(culprit.rank)
    lines = [f"{rank_list(ranks)} on {node or 'an unknown node'}" for node, ranks in homes.items()]
    more = len(lines) - _CULPRITS_SHOWN
    return lines if more <= 0 else [*lines[:_CULPRITS_SHOWN], f"and on {plural(more, 'more node')} (-v names them)"]


def _waiting(d: Diagnosis) -> list[str]:
    only_ended = d.outcome == Outcome.CRASH and (d.waiting_s is None or d.waiting_s < IN_FLIGHT_S)
    if not d.victims or only_ended:
        return []
    waiting = len(direct(d))
    behind = len(d.victims) - waiting
    text = f"{plural(waiting, 'rank')} {'waits' if waiting == 1 else 'wait'}"
    if behind:
        text += f", {behind} more {'waits' if behind == 1 else 'wait'} behind them"
    return [text + how_long(d) if d.waiting_s is not None else text]


def _population(d: Diagnosis) -> str:
    assert d.completeness is not None
    nodes = len(set(d.nodes.values()))
    where = f" on {plural(nodes, 'node')}" if nodes else ""
    return f"{plural(d.completeness.ranks, 'rank')}{where}"


def _end(end: LinkEnd) -> str:
    known = ", ".join(part for part in (end.node, end.nic) if part)
    return f"rank {end.rank}{f' ({known})' if known else ''}"


# ---- why -------------------------------------------------------------------------------------------------------------


def _why(d: Diagnosis, width: int, verbose: bool) -> list[Line]:
    return _findings("Why", d.why, d.inputs, width, verbose)


def _findings(
    heading: str, findings: Sequence[Finding], inputs: Sequence[str], width: int, verbose: bool
) -> list[Line]:
    if not findings:
        return []
    lines: list[Line] = [(Piece(heading, "label"),)]
    for number, finding in enumerate(findings, 1):
        first = f"  {number}. "
        lines += paragraph(finding.text, width, first=first, mark="")
        column = len(first)
        shown = finding.detail if verbose else finding.detail[:_DETAIL_SHOWN]
        for text in shown:
            lines += _verbatim(text, column + 2, width)
        if len(shown) < len(finding.detail):
            lines += _verbatim(f"… {len(finding.detail) - len(shown)} more with -v", column + 2, width, "faint")
        if finding.sources:
            lines += paragraph(_sources(finding.sources, inputs, verbose), width, indent=column, role="faint")
    return lines


def _verbatim(text: str, column: int, width: int, role: str = "") -> list[Line]:
    """A quoted line: its own blanks are kept, because they carry the shape of frames and logs."""
    clean = safe(text).rstrip()
    room = max(width - column, 10)
    if cells(clean) <= room:
        return [(Piece(" " * column), Piece(clean, role))]
    lead = len(clean) - len(clean.lstrip())
    parts = wrap(clean, room - min(lead, room // 2))
    return [(Piece(" " * (column + min(lead, room // 2))), Piece(part, role)) for part in parts]


def _sources(sources: Sequence[Source], inputs: Sequence[str], verbose: bool) -> str:
    shown = sources if verbose else sources[:_SOURCES_SHOWN]
    text = "; ".join(source_text(source, inputs) for source in shown)
    left = len(sources) - len(shown)
    return f"from {text}" + (f"; and {left} more" if left else "")


# ---- who -------------------------------------------------------------------------------------------------------------


def _slowest(d: Diagnosis, width: int, verbose: bool) -> list[Line]:
    """The ranks that keep the others waiting, worst first, with what they cost. Only where that is the finding."""
    if not d.lateness or (d.kind != CauseKind.SLOW and not verbose):
        return []
    ordered = sorted(d.lateness, key=lambda item: (-item.share_of_step, item.rank))
    shown = ordered if verbose else ordered[:_LATE_SHOWN]
    rows = [("rank", "node", "late (median)", "last in", "share of step")]
    for item in shown:
        rows.append(
            (
                str(item.rank),
                d.nodes.get(item.rank, "?"),
                f"{item.late_ms_median:.1f} ms",
                f"{item.times_last} of {item.operations}",
                f"{item.share_of_step:.1%}",
            )
        )
    drawn = table(rows, width - 2, right=frozenset((0, 2, 3, 4)))
    lines: list[Line] = [(Piece("Slowest", "label"),)]
    lines += [(Piece("  "), Piece(text, "faint" if i == 0 else "")) for i, text in enumerate(drawn)]
    if len(shown) < len(ordered):
        lines.append((Piece(f"  … {len(ordered) - len(shown)} more with -v", "faint"),))
    return lines


def _ranks(d: Diagnosis, width: int, verbose: bool) -> list[Line]:
    if not d.hang and not d.culprits:
        return []
    drawn = strip(d, width - _LABEL, verbose=verbose)
    return [(Piece(pad("Ranks" if i == 0 else "", _LABEL), "label"), *line) for i, line in enumerate(drawn)]


def _waits(d: Diagnosis, width: int) -> list[Line]:
    """Every victim: those that wait for the same in the same place together, with the chain to the root.

    A layout repeats: where one kind of operation on one kind of group has many such sets, they share one line.
    """
    alike: dict[tuple[str, str | None], dict[tuple[int, str | None], list[Victim]]] = {}
    lists = {id(v.waits_for): v.waits_for for v in d.victims}  # thousands that wait in one operation share one
    first: dict[tuple[int, ...], int] = {}
    same = {key: first.setdefault(tuple(sorted(ranks)), key) for key, ranks in lists.items()}
    for victim in sorted(d.victims, key=lambda v: v.rank):
        sort = ((victim.operation or "").split(" ")[0], victim.group)
        alike.setdefault(sort, {}).setdefault((same[id(victim.waits_for)], victim.operation), []).append(victim)
    if not alike:
        return []
    lines: list[Line] = [(Piece("Waits", "label"),)]
    for (operation, group), sets in alike.items():
        if len(sets) > _SETS_SHOWN:
            everyone = [v for victims in sets.values() for v in victims]
            awaited = {id(v.waits_for): v.waits_for for v in everyone}.values()
            text = _wait(everyone, set().union(*awaited), operation, group)
            lines += paragraph(f"{text} ({len(sets)} sets of ranks)", width, indent=2)
            continue
        for (key, whole), victims in sets.items():
            lines += paragraph(_wait(victims, lists[key], whole, group), width, indent=2)
    return lines


def _wait(victims: Sequence[Victim], waits_for: Iterable[int], operation: str | None, group: str | None) -> str:
    text = f"{rank_list((v.rank for v in victims), limit=24)} {'waits' if len(victims) == 1 else 'wait'}"
    others = set(waits_for)
    text += f" for {rank_list(others, limit=24)}" if others else ""
    text += f" in {operation}" if operation else ""
    text += f" of {group}" if group else ""
    longest = max(victims, key=lambda v: len(v.chain)).chain
    return f"{text}; chain {' → '.join(map(str, longest))}" if len(longest) > 2 else text


def _code(d: Diagnosis, width: int) -> list[Line]:
    """Where the culprits are in full: the source around the line, and the whole stack."""
    lines: list[Line] = []
    for where, ranks in culprit_lines(d)[:_PLACES_SHOWN]:
        lines += _labelled("" if lines else "Code", f"{rank_list(ranks, limit=8)} at {place_text(where)}", width)
        for number, text in where.around:
            mark = ">" if number == where.line else " "
            lines += _verbatim(f"{mark} {number:>4}  {text}", _LABEL + 2, width)
        for frame in where.frames:
            lines += _verbatim(str(frame), _LABEL + 2, width, "faint")
    return lines


def _operation(d: Diagnosis, width: int) -> list[Line]:
    """The operation in flight in full: its size, each rank's state, the whole stack."""
    if d.operation is None:
        return []
    o = d.operation
    facts = [title(o.name, o.seq), f"group {o.group}"]
    if o.bytes is not None:
        facts.append(size(o.bytes))
    if o.dtypes:
        facts.append("/".join(o.dtypes))
    lines = _labelled("Operation", ", ".join(facts), width)
    states: dict[str, list[int]] = {}
    for rank, state in sorted(o.state_by_rank.items()):
        states.setdefault(state, []).append(rank)
    for state, ranks in states.items():
        lines += _labelled("", f"{state}: {rank_list(ranks)}", width)
    for frame in o.frames:
        lines += _verbatim(str(frame), _LABEL + 2, width, "faint")
    return lines


# ---- the rest --------------------------------------------------------------------------------------------------------


def _labelled(label: str, text: str, width: int) -> list[Line]:
    return paragraph(text, width, first=pad(label, _LABEL), indent=_LABEL)


def _ruled_out(d: Diagnosis, width: int) -> list[Line]:
    if not d.ruled_out:
        return []
    said = [f"{kind_text(item.kind)} ({item.why})" if item.why else kind_text(item.kind) for item in d.ruled_out]
    return _labelled("Ruled out", " · ".join(said), width)


def _also_possible(d: Diagnosis, width: int) -> list[Line]:
    lines: list[Line] = []
    for i, other in enumerate(d.also_possible):
        who = f", {rank_list(other.culprits)}" if other.culprits else ""
        lines += _labelled("Or" if i == 0 else "", f"{kind_text(other.kind)}{who}: {other.why}", width)
    return lines


def _last_good(d: Diagnosis, width: int, verbose: bool) -> list[Line]:
    last = d.last_completed
    if last is None:
        return _labelled("Last good", "unknown", width) if d.hang else []
    at = (iso if verbose else clock)(last.at_ns)
    pair = "->" in last.name or "<-" in last.name
    where = f"of {last.group}" if pair else f"on every rank of {last.group}"
    where = f"of {last.group}, by what is known of its ranks" if only_logs(d) else where
    text = f"{title(last.name, last.seq)} {where}{f', {at}' if at else ''}"
    if (frame := user_frame(last.frames)) is not None:
        text += f", from {place(frame)}"
    return _labelled("Last good", text, width)


def _reported(d: Diagnosis, width: int, verbose: bool) -> list[Line]:
    first = d.first_reported
    if first is None:
        return []
    at = (iso if verbose else clock)(first.at_ns, local=first.local_time)
    text = f"first by rank {first.rank}"
    text += f" on {first.node}" if first.node else ""
    text += f" at {at}" if at else ""
    text += f" ({first.operation})" if first.operation else ""
    if first.rank in {c.rank for c in d.culprits}:
        text += "; the first reporter is rarely the culprit, but here it is"
    else:
        text += "; the first reporter is rarely the culprit"
        text += ", including here" if d.culprits else ""
    return _labelled("Reported", text, width)


def _next(d: Diagnosis, width: int) -> list[Line]:
    if len(d.next_steps) == 1:
        return _labelled("Next", d.next_steps[0], width)
    lines: list[Line] = []
    for number, step in enumerate(d.next_steps, 1):
        first = pad("Next" if number == 1 else "", _LABEL) + f"{number}. "
        lines += paragraph(step, width, first=first)
    return lines


def _history(d: Diagnosis, width: int, verbose: bool) -> list[Line]:
    lines: list[Line] = []
    for text in history_lines(d, verbose):
        lines += _labelled("" if lines else "History", text, width)
    if d.history is not None:
        for command in d.history.commands:
            lines += _verbatim(command, _LABEL + 2, width)
        for text in d.history.outcomes if verbose else ():
            lines += _labelled("", text, width)
    return lines


def _evidence(d: Diagnosis, width: int, verbose: bool) -> list[Line]:
    if d.completeness is None or not d.completeness.ranks:
        return []
    # NCCL's logs could say more only of a job that runs NCCL, and of what lies below the calls.
    nccl = "nccl" in d.versions and d.kind in BELOW_THE_CALLS
    return _labelled("Evidence", " · ".join(_complete(d.completeness, nccl or verbose)), width)


def _complete(c: Completeness, nccl: bool) -> Iterable[str]:
    def count(what: str, have: int, missing: Sequence[int] = ()) -> str:
        none = f" (none from {ranges(missing, limit=8)})" if missing and have else ""
        return f"{what} {have}/{c.ranks}{none}"

    yield count("dumps", c.dumps, c.missing_dumps)
    yield count("stacks", c.stacks)
    yield count("logs", c.logs)
    if nccl or c.nccl_logs:
        yield count("NCCL logs", c.nccl_logs, c.missing_nccl_logs)
    if c.gpu_cores:
        yield count("GPU cores", c.gpu_cores)
    if c.clock_skew_ms is not None:
        yield f"clock skew {c.clock_skew_ms:.1f} ms"


def _gaps(d: Diagnosis, width: int, verbose: bool) -> list[Line]:
    if not d.gaps:
        return []
    matter = tuple(gap for gap in (d.gaps if verbose else matters(d)) if gap.what != HISTORY_GAP)
    if not matter:
        return []
    shown = matter if verbose else matter[:_GAPS_SHOWN]
    lines: list[Line] = []
    for i, gap in enumerate(shown):
        lines += _labelled("Gaps" if i == 0 else "", _gap(gap, d.inputs, verbose), width)
    if len(shown) < len(d.gaps):
        lines += _labelled("", f"and {len(d.gaps) - len(shown)} more with -v", width)
    return lines


def matters(d: Diagnosis) -> tuple[Gap, ...]:
    """The gaps that could change this verdict. Where it is sure of who it was, those are the accused ranks' own, and
    whole nodes that are missing; what a victim's process or a kernel log would have said changes nothing then."""
    accused = {culprit.rank for culprit in d.culprits}
    if d.confidence != "high" or not accused:
        return d.gaps
    known = {None, *d.nodes.values()}
    return tuple(gap for gap in d.gaps if gap.rank in accused or (gap.rank is None and gap.node not in known))


def _gap(gap: Gap, inputs: Sequence[str], verbose: bool) -> str:
    text = f"{gap.what}: {gap.why}" if gap.why else gap.what
    if gap.source is not None and (verbose or gap.source.file not in text):
        text += f" ({source_text(gap.source, inputs)})"
    return text
