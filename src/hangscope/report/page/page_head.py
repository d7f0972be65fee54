"""The head of the page: the verdict in one glance, in the words of the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hangscope.diagnosis.evidence.code_lines import user_frame
from hangscope.diagnosis.verdict import Culprit, Diagnosis, Finding, LinkEnd
from hangscope.model import Gap, GpuKernel, Job
from hangscope.report.page.page_text import LONG, SHORT, code_line, shown
from hangscope.report.verdict_text import (
    BELOW_THE_CALLS,
    clock,
    culprit_lines,
    direct,
    how_long,
    iso,
    kind_text,
    members,
    place_note,
    source_text,
    title,
)
from hangscope.text import plural, ranges, rank_list, size
from hangscope.verdict_words import TONES

_CULPRITS = 4
_SOURCES = 12
_GAPS = 60
_GPU_ROWS = 64
_KERNELS = 8
_PLACES = 2
_DOTS = {"high": 3, "medium": 2, "low": 1}


def answer(diagnosis: Diagnosis, job: Job) -> dict[str, Any]:
    """Everything that the frame shows as text."""
    d = diagnosis
    word, tone = _word(d)
    return {
        "word": word,
        "tone": tone,
        "headline": shown(d.headline or d.summary),
        "summary": shown(d.summary, LONG),
        "kind": d.kind,
        "confidence": d.confidence,
        "dots": _DOTS.get(d.confidence, 0),
        "rule": shown(d.confidence_rule),
        "raise": _would_raise(d),
        "facts": [(name, shown(value, 300)) for name, value in _facts(d)],
        "next": [shown(step, 400) for step in d.next_steps],
        "culprits": [culprit.rank for culprit in d.culprits],
        "why": [_finding(finding, d.inputs) for finding in d.why],
        "evidence": [_finding(finding, d.inputs) for finding in d.evidence],
        "ruled_out": [(shown(kind_text(item.kind), SHORT), shown(item.why, 400)) for item in d.ruled_out],
        "also": _also(d),
        "gaps": [_gap(gap, d.inputs) for gap in d.gaps[:_GAPS]],
        "more_gaps": max(len(d.gaps) - _GAPS, 0),
        "completeness": list(_completeness(d)),
        "gpus": list(_gpus(d)),
        "last_good": _last_good(d),
        "reported": _reported(d),
        "versions": [(shown(k, SHORT), shown(v, SHORT)) for k, v in sorted(d.versions.items())][:12],
        "job": shown(job.job_id or "", SHORT),
        "inputs": [shown(path, 120) for path in d.inputs[:4]],
        "ranks": plural(len(job.ranks), "rank"),
        "nodes": plural(len(set(job.nodes.values())), "node") if job.nodes else "",
    }


def _word(d: Diagnosis) -> tuple[str, str]:
    """The first word, and how it is drawn."""
    return d.outcome.upper(), TONES[d.outcome]


def _short(name: str) -> str:
    return shown(name, 64)


# ---- who, where, since when ------------------------------------------------------------------------------------------


def _facts(d: Diagnosis) -> Iterator[tuple[str, str]]:
    yield from _who(d.culprits)
    operation = d.operation
    if operation is not None:
        parts = [
            f"{_short(title(operation.name, operation.seq))} of {_short(operation.group)}",
            members(d),
        ]
        if operation.bytes is not None:
            parts.append(size(operation.bytes))
        if operation.dtypes:
            parts.append("/".join(operation.dtypes[:2]))
        yield "operation", " · ".join(parts)
        frame = user_frame(operation.frames)
        if frame is not None:
            yield "called at", f"{code_line(frame)} in {_short(frame.name)}"
    yield from _culprit_places(d)
    if d.link is not None:
        channel = "" if d.link.channel is None else f" · channel {d.link.channel}"
        yield "link", f"{_end(d.link.sender)} → {_end(d.link.receiver)}{channel}"
    if d.hang and d.victims:
        yield "waiting", _waiting(d)


def _who(culprits: Sequence[Culprit]) -> Iterator[tuple[str, str]]:
    if len(culprits) <= _CULPRITS:
        for culprit in culprits:
            parts = [f"rank {culprit.rank}", *([culprit.role.says] if culprit.role is not None else [])]
            parts += [f"node {_short(culprit.node)}" if culprit.node else "unknown node"]
            if culprit.gpu:
                parts.append(f"GPU {culprit.gpu.removeprefix('0000:')}")
            if culprit.local_rank is not None:
                parts.append(f"local rank {culprit.local_rank}")
            if culprit.pid is not None:
                parts.append(f"pid {culprit.pid}")
            yield "culprit", " · ".join(parts)
        return
    homes: dict[str | None, list[int]] = {}
    for culprit in culprits:
        homes.setdefault(culprit.node, []).append(culprit.rank)
    for node, ranks in list(homes.items())[:_CULPRITS]:
        yield "culprits", f"{rank_list(ranks, 6)} · {_short(node or 'node not known')}"
    if len(homes) > _CULPRITS:
        yield "culprits", f"and on {plural(len(homes) - _CULPRITS, 'more node')}"


def _culprit_places(d: Diagnosis) -> Iterator[tuple[str, str]]:
    """The culprits' own lines, with their text where it was saved."""
    for where, ranks in culprit_lines(d)[:_PLACES]:
        who = f" ({rank_list(ranks, 6)})" if len(d.culprits) > 1 else ""
        code = f": {_code(where.code)}" if where.code else ""
        yield "culprit is at", f"{code_line(where.frame)} in {_short(where.function)}{place_note(where)}{who}{code}"
        if where.through is not None:
            yield "through", f"{code_line(where.through)} in {_short(where.through.name)}"


def _code(text: str) -> str:
    return shown(text, 160)


def _end(end: LinkEnd) -> str:
    known = ", ".join(_short(part) for part in (end.node, end.nic) if part)
    return f"rank {end.rank}{f' ({known})' if known else ''}"


def _waiting(d: Diagnosis) -> str:
    first = len(direct(d))
    behind = len(d.victims) - first
    text = plural(first, "rank") + (f", {behind} more behind them" if behind else "")
    return text + how_long(d) if d.waiting_s is not None else text


# ---- how sure --------------------------------------------------------------------------------------------------------


def _would_raise(d: Diagnosis) -> list[str]:
    """Evidence that is missing and could make the verdict surer; nothing where it is sure."""
    c = d.completeness
    if d.confidence == "high" or c is None or c.ranks == 0:
        return []
    wanted = []
    if c.dumps < c.ranks:
        missing = f" of {rank_list(c.missing_dumps, 4)}" if c.missing_dumps else ""
        wanted.append(f"flight recorder dumps{missing} ({c.dumps} of {c.ranks} ranks have one)")
    if c.stacks < c.ranks:
        wanted.append(f"Python stacks ({c.stacks} of {c.ranks} ranks have one)")
    # NCCL's log could say more only of a job that runs NCCL, and of what lies below the calls.
    if "nccl" in d.versions and d.kind in BELOW_THE_CALLS and c.nccl_logs < c.ranks:
        missing = f" of {rank_list(c.missing_nccl_logs, 4)}" if c.missing_nccl_logs and c.nccl_logs else ""
        wanted.append(f"NCCL's log{missing} ({c.nccl_logs} of {c.ranks} ranks have one)")
    if c.logs < c.ranks:
        wanted.append(f"the ranks' own logs ({c.logs} of {c.ranks})")
    return wanted


def _also(d: Diagnosis) -> list[tuple[str, str]]:
    found = []
    for other in d.also_possible:
        who = f"{rank_list(other.culprits, 6)}: " if other.culprits else ""
        found.append((shown(kind_text(other.kind), SHORT), shown(f"{who}{other.why}", 400)))
    return found


# ---- evidence --------------------------------------------------------------------------------------------------------


def _finding(finding: Finding, inputs: Sequence[str]) -> dict[str, Any]:
    return {
        "text": shown(finding.text, LONG),
        "detail": [shown(line, 600) for line in finding.detail[:40]],
        "sources": [shown(source_text(source, inputs)) for source in finding.sources[:_SOURCES]],
        "more": max(len(finding.sources) - _SOURCES, 0),
    }


def _gap(gap: Gap, inputs: Sequence[str]) -> str:
    text = f"{gap.what}: {gap.why}" if gap.why else gap.what
    if gap.source is not None and gap.source.file not in text:
        text += f" ({shown(source_text(gap.source, inputs))})"
    return shown(text, 600)


def _completeness(d: Diagnosis) -> Iterator[dict[str, Any]]:
    c = d.completeness
    if c is None:
        return
    for name, have, missing in (
        ("dumps", c.dumps, c.missing_dumps),
        ("stacks", c.stacks, ()),
        ("logs", c.logs, ()),
        ("NCCL logs", c.nccl_logs, c.missing_nccl_logs),
        *([("GPU cores", c.gpu_cores, ())] if c.gpu_cores else []),
    ):
        none = f"none from {ranges(missing, limit=8)}" if missing and have else ""
        yield {"name": name, "have": have, "all": c.ranks, "none": none}


def _gpus(d: Diagnosis) -> Iterator[dict[str, Any]]:
    """What the GPUs ran, those of the accused first; ranks that ran the same are one row."""
    accused = {culprit.rank for culprit in d.culprits}
    rows: dict[tuple[bool, tuple[GpuKernel, ...]], list[int]] = {}
    for core in d.gpu_cores:
        if core.rank is not None:
            rows.setdefault((core.rank not in accused, core.kernels), []).append(core.rank)
    for (innocent, kernels), ranks in sorted(rows.items(), key=lambda row: (row[0][0], row[1][0]))[:_GPU_ROWS]:
        yield {
            "ranks": rank_list(ranks, 8),
            "accused": not innocent,
            "kernels": [(shown(kernel.name, 400), _launched(kernel)) for kernel in kernels[:_KERNELS]],
        }


def _launched(kernel: GpuKernel) -> str:
    """``grid 2×1×1, blocks of 544×1×1, 2 on the GPU``."""
    parts = []
    if kernel.grid is not None:
        parts.append(f"grid {'×'.join(map(str, kernel.grid))}")
    if kernel.block is not None:
        parts.append(f"blocks of {'×'.join(map(str, kernel.block))}")
    if kernel.blocks is not None:
        parts.append(f"{kernel.blocks} on the GPU")
    return ", ".join(parts)


def _last_good(d: Diagnosis) -> str:
    last = d.last_completed
    if last is None:
        return "unknown" if d.hang else ""
    at = clock(last.at_ns)
    frame = user_frame(last.frames)
    text = f"{title(last.name, last.seq)} of {last.group}{f', {at}' if at else ''}"
    return shown(text + (f", from {code_line(frame)}" if frame is not None else ""), 400)


def _reported(d: Diagnosis) -> str:
    first = d.first_reported
    if first is None:
        return ""
    text = f"first by rank {first.rank}{f' on {first.node}' if first.node else ''}"
    at = iso(first.at_ns, local=first.local_time)
    text += f" at {at}" if at else ""
    text += f" ({first.operation})" if first.operation else ""
    if d.culprits:
        here = first.rank in {c.rank for c in d.culprits}
        text += "; the first reporter is rarely the culprit" + (", here it is" if here else ", including here")
    return shown(text, 400)
