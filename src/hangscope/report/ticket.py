"""ticket.md: what a support form asks for, in the order in which its reader asks.

Everything from evidence is untrusted: it is escaped, so that neither a log line nor a group's name becomes a link, an
image or a heading on the page where the ticket is pasted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hangscope.diagnosis.evidence.code_lines import user_frame
from hangscope.diagnosis.verdict import Culprit, Diagnosis, LinkEnd
from hangscope.errors import LeftOut
from hangscope.model import Frame, Job, TransportEvent
from hangscope.report.safe_text import safe
from hangscope.report.verdict_text import brief, iso, members, place, source_text, unranked_text
from hangscope.text import duration, plural, ranges, size

_FILES_SHOWN = 120
_LINES_SHOWN = 12
_GAPS_SHOWN = 20
_CULPRITS_SHOWN = 8
_VERSIONS = ("torch", "nccl", "driver", "cuda", "python", "kernel", "hangscope")
_SPELLED = {"torch": "PyTorch", "nccl": "NCCL", "driver": "GPU driver", "cuda": "CUDA", "python": "Python",
            "kernel": "Linux", "hangscope": "hangscope"}  # fmt: skip
_MARKUP = re.compile(r"([\\`*\[\]<>]|~(?=~)|&(?=#|\w+;)|^[#+=-])")
"""What would become a link, an image, HTML, emphasis or a heading. No more: a form that shows plain text shows these
too."""
_NUMBERED = re.compile(r"\d{1,9}[.)]")
"""A first word that begins a list, in which anything else may begin."""
_ACTS = re.compile(r"\w://|www\.|(?:^|[^\w.])@\w|\w@\w", re.IGNORECASE)
"""A word that becomes a link or calls somebody by itself; only as code it does not."""
_UNKNOWN = "unknown"


def render_ticket(
    diagnosis: Diagnosis, job: Job | None = None, *, files: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """The ticket. `job` adds what the verdict does not carry (NCCL's lines, NICs); `files` are those attached."""
    d = brief(diagnosis)
    left_out = LeftOut()
    blocks = [
        [f"# {_title(d, job)}", "", text(d.summary)],
        left_out.several("facts", lambda: _table(_facts(d, job))),
        left_out.several("NCCL's lines", lambda: _section("Relevant NCCL lines", _nccl(d, job))),
        left_out.several("why", lambda: _section("Why", _why(d))),
        _section("Ruled out", [f"- {text(out.kind)}{f': {text(out.why)}' if out.why else ''}" for out in d.ruled_out]),
        _section("Next steps", [f"- {text(step)}" for step in d.next_steps]),
        left_out.several("missing evidence", lambda: _section("Missing evidence", _gaps(d))),
        _section("Attached files", _files(files)) if files is not None else [],
        _section("Left out", [f"- {what}: {text(why)}" for what, why in left_out.reasons]),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def text(value: object) -> str:
    """Evidence as one line of Markdown that shows what it says and does nothing else."""
    words = safe(str(value)).split()
    if words and _NUMBERED.fullmatch(words[0]):
        words[0] = f"{words[0][:-1]}\\{words[0][-1]}"
        return f"{words[0]} {text(' '.join(words[1:]))}".rstrip()
    if not any(map(_ACTS.search, words)):
        return _MARKUP.sub(r"\\\1", " ".join(words))
    return " ".join(f"`{_code(word)}`" if _ACTS.search(word) else _MARKUP.sub(r"\\\1", word) for word in words)


def _title(d: Diagnosis, job: Job | None) -> str:
    what = text(d.headline or d.summary)
    if job is None or job.job_id is None:
        return what[:1].upper() + what[1:]
    attempt = f" (attempt {text(job.attempt)})" if job.attempt else ""
    return f"Job {text(job.job_id)}{attempt}: {what}"


def _facts(d: Diagnosis, job: Job | None) -> list[tuple[str, str]]:
    rows = [
        ("Verdict", f"{text(d.kind)}, confidence {text(d.confidence)}"),
        (_what_was_reported(d), _first_reported(d)),
    ]
    rows += [(_numbered("Culprit", index, d.culprits), _culprit(c, d, job)) for index, c in _shown(d.culprits)]
    rows += [("Culprit", text(unranked_text(each))) for each in d.unranked]
    if not d.culprits and not d.unranked:
        rows.append(("Culprit", "this evidence does not point to any rank" if d.hang else "none"))
    if d.link is not None:
        rows.append(("Link", f"from {_end(d.link.sender)} to {_end(d.link.receiver)}{_channel(d.link.channel)}"))
    rows.append(("Operation in flight", _operation(d)))
    rows.append(("Last good operation", _last(d)))
    if d.waiting_s is not None:
        rows.append(("Waiting", f"{plural(len(d.victims), 'rank')}, {_longest(d)}"))
    nodes = sorted({node for node in d.nodes.values() if node})
    world = d.completeness.ranks if d.completeness else len(d.nodes)
    rows.append(
        ("Job size", f"{plural(world, 'rank')} on {plural(len(nodes), 'node')}" if nodes else plural(world, "rank"))
    )
    rows += [(_SPELLED[name], text(d.versions.get(name) or _UNKNOWN)) for name in _VERSIONS[:4]]
    rows += [(_SPELLED[name], text(d.versions[name])) for name in _VERSIONS[4:] if d.versions.get(name)]
    return rows


def _longest(d: Diagnosis) -> str:
    least = "at least " if d.waiting_is_least else ""
    return f"the longest for {least}{duration(d.waiting_s or 0.0)}"


def _what_was_reported(d: Diagnosis) -> str:
    timeout = d.first_reported is None or d.first_reported.timeout
    return "Timeout first reported" if timeout else "Failure first reported"


def _first_reported(d: Diagnosis) -> str:
    first = d.first_reported
    if first is None:
        return "no rank reported one" if d.hang else "none"
    at = iso(first.at_ns, local=first.local_time) or "at an unknown time"
    said = [f"rank {first.rank}", f"node {_or(first.node)}", at]
    said += [text(first.operation)] if first.operation else []
    return ", ".join(said)


def _shown(culprits: Sequence[Culprit]) -> Iterable[tuple[int, Culprit]]:
    return enumerate(culprits[:_CULPRITS_SHOWN], 1)


def _numbered(word: str, index: int, of: Sequence[object]) -> str:
    if len(of) == 1:
        return word
    return f"{word} {index} of {len(of)}"


def _culprit(culprit: Culprit, d: Diagnosis, job: Job | None) -> str:
    nic = _nics(culprit.rank, d, job)
    said = [
        f"rank {culprit.rank}",
        *([text(culprit.role.says)] if culprit.role is not None else []),
        f"node {_or(culprit.node)}",
        f"local rank {_or(culprit.local_rank)}",
        f"GPU {_or(culprit.gpu)}",
        f"NIC {text(', '.join(nic)) if nic else _UNKNOWN}",
        f"pid {_or(culprit.pid)}",
    ]
    return ", ".join(said) + (f": {text(culprit.why)}" if culprit.why else "")


def _nics(rank: int, d: Diagnosis, job: Job | None) -> list[str]:
    """The NICs of a rank: of the link in question, else those NCCL said it uses, else those its warnings name."""
    if d.link is not None:
        ends = {end.nic for end in (d.link.sender, d.link.receiver) if end.rank == rank and end.nic}
        if ends:
            return sorted(ends)
    if job is None:
        return []
    used = {edge.nic for comm in job.facts.communicators if comm.rank == rank for edge in comm.edges if edge.nic}
    return sorted(used or {event.hca for event in job.facts.transport if event.rank == rank and event.hca})[:8]


def _end(end: LinkEnd) -> str:
    return f"rank {end.rank} (node {_or(end.node)}, NIC {_or(end.nic)})"


def _channel(channel: int | None) -> str:
    return "" if channel is None else f", channel {channel}"


def _operation(d: Diagnosis) -> str:
    operation = d.operation
    if operation is None:
        return _UNKNOWN if d.hang else "none"
    number = f" #{operation.seq}" if operation.seq is not None else ""
    said = [f"{text(operation.name)}{number} on {text(operation.group)} ({members(d)})"]
    if operation.bytes is not None:
        said.append(
            f"{size(operation.bytes)}{f' of {text(chr(44).join(operation.dtypes))}' if operation.dtypes else ''}"
        )
    states: dict[str, list[int]] = {}
    for rank, state in operation.state_by_rank.items():
        states.setdefault(state, []).append(rank)
    said += [f"{text(state)}: {ranges(ranks, 12)}" for state, ranks in sorted(states.items())]
    return "; ".join([*said, *_line(operation.frames)])


def _last(d: Diagnosis) -> str:
    last = d.last_completed
    if last is None:
        return _UNKNOWN if d.hang else "not applicable: nothing hangs"
    number = f" #{last.seq}" if last.seq is not None else ""
    said = [f"{text(last.name)}{number} on {text(last.group)}", *([iso(last.at_ns) or ""] if last.at_ns else [])]
    return "; ".join([*said, *_line(last.frames)])


def _line(frames: tuple[Frame, ...]) -> list[str]:
    frame = user_frame(frames)
    return [f"called at {text(place(frame))}"] if frame is not None else []


def _nccl(d: Diagnosis, job: Job | None) -> list[str]:
    if job is None:
        return []
    involved = {culprit.rank for culprit in d.culprits}
    if d.link is not None:
        involved |= {d.link.sender.rank, d.link.receiver.rank}
    if d.first_reported is not None:
        involved.add(d.first_reported.rank)

    def weight(event: TransportEvent) -> tuple[bool, int, str]:
        return event.rank not in involved, event.at_ns or 0, str(event.source)

    events = sorted(job.facts.transport, key=weight)
    if not events:
        logs = d.completeness.nccl_logs if d.completeness else 0
        return [f"None: NCCL's logs of {plural(logs, 'rank')} contain no warning." if logs else "There is no NCCL log."]
    lines = ["```text"]
    for event in events[:_LINES_SHOWN]:
        who = ", ".join([f"rank {_plain(event.rank)}", f"node {_plain(event.node)}", iso(event.at_ns) or "no time"])
        lines += [f"{who}  ({_code(source_text(event.source, d.inputs))})", f"    NCCL WARN {_code(event.text)}"]
    lines.append("```")
    if len(events) > _LINES_SHOWN:
        lines.append(f"and {len(events) - _LINES_SHOWN} more")
    return lines


def _why(d: Diagnosis) -> list[str]:
    lines: list[str] = []
    for number, finding in enumerate(d.why, 1):
        source = f" ({text(source_text(finding.sources[0], d.inputs))})" if finding.sources else ""
        lines.append(f"{number}. {text(finding.text)}{source}")
        if finding.detail:
            lines += ["", "   ```text", *(f"   {_code(line)}" for line in finding.detail[:12]), "   ```", ""]
    return lines


def _gaps(d: Diagnosis) -> list[str]:
    lines = [f"- {text(gap.what)}{f': {text(gap.why)}' if gap.why else ''}" for gap in d.gaps[:_GAPS_SHOWN]]
    if len(d.gaps) > _GAPS_SHOWN:
        lines.append(f"- and {len(d.gaps) - _GAPS_SHOWN} more")
    return lines


def _files(files: Mapping[str, Mapping[str, Any]] | None) -> list[str]:
    if not files:
        return []
    total = sum(int(entry.get("size") or 0) for entry in files.values())
    lines = [f"{plural(len(files), 'file')}, {size(total)} unpacked; incident.json lists them all.", ""]
    lines += ["| file | size | SHA-256 |", "|---|---:|---|"]
    for name, entry in sorted(files.items())[:_FILES_SHOWN]:
        cells = (text(name), str(int(entry.get("size") or 0)), text(entry.get("sha256")))
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    if len(files) > _FILES_SHOWN:
        lines += ["", f"and {len(files) - _FILES_SHOWN} more"]
    return lines


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *lines] if lines else []


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in rows)]


def _cell(value: str) -> str:
    return value.replace("|", "\\|")


def _or(value: object) -> str:
    return _UNKNOWN if value is None else text(value)


def _plain(value: object) -> str:
    return "?" if value is None else _code(str(value))


def _code(value: str) -> str:
    """Evidence inside a block of code, which it must not end."""
    return safe(value).replace("```", "'''").replace("`", "'")
