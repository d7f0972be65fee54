"""One function a tool: what is asked, from evidence to plain JSON values. Reads, and judges nothing by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from hangscope.assistant.untrusted_words import marked
from hangscope.diagnosis import diagnose as find_cause
from hangscope.diagnosis.evidence.training_thread import Stacks
from hangscope.errors import DamagedError, SettingsError
from hangscope.incident import manifest
from hangscope.incident.layout import MANIFEST, VERDICT_JSON
from hangscope.model import Frame, Job, Kind, Operation, State, ThreadStack
from hangscope.reader.load import load
from hangscope.report.export import to_dict
from hangscope.report.op_list import json_lines, select
from hangscope.report.safe_text import safe
from hangscope.safeio import bounded_json
from hangscope.safeio.safe_files import listing, read_below
from hangscope.text import is_own_code, ranges

MOST_OPERATIONS = 200
MOST_RANKS = 64
MOST_CALLS = 5_000
"""Of a rank in a group that are compared, the newest."""
MOST_INCIDENTS = 100
MOST_FOLDERS = 5_000
"""Directories that are looked at for incidents."""
DEEPEST = 6
_VERDICT_BYTES = 4 << 20
_DIFFERENCES = 5
_SHORT = (
    *("outcome", "kind", "headline", "summary", "confidence", "confidence_rule", "culprits", "operation"),
    *("last_completed", "link", "first_reported", "waiting_s", "why", "ruled_out", "also_possible", "next_steps"),
    *("completeness", "gaps", "facts"),
)
"""Of the verdict, what people ask for; `full` gives all of it."""


# ---- the verdict -----------------------------------------------------------------------------------------------------


def diagnosis(path: str, *, full: bool = False) -> dict[str, Any]:
    """The verdict of `hangscope diagnose --json`, all of it or what people ask for."""
    job = load(path)
    verdict = marked(to_dict(find_cause(job)), job)
    if full:
        return verdict
    short = {key: verdict[key] for key in (*_SHORT, "untrusted")}
    short["victims"] = ranges(victim["rank"] for victim in verdict["victims"])
    if short["operation"] is not None:
        short["operation"] = {**short["operation"], "frames": _own(short["operation"]["frames"])}
    if short["last_completed"] is not None:
        short["last_completed"] = {**short["last_completed"], "frames": _own(short["last_completed"]["frames"])}
    return short


def _own(frames: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The frames of the user's own code; all where there are none."""
    return [frame for frame in frames if is_own_code(frame["filename"])] or list(frames)


# ---- which incidents there are ---------------------------------------------------------------------------------------


def incidents(*paths: str) -> dict[str, Any]:
    """The incidents below directories, newest first, each with the verdict that was stored in it."""
    folders = chain.from_iterable(map(_incident_folders, paths))
    found = [_incident(folder) for folder in islice(folders, MOST_INCIDENTS)]
    found.sort(key=lambda one: str(one["captured_at"] or ""), reverse=True)
    answer: dict[str, Any] = {"below": [safe(path) for path in paths], "incidents": found}
    if not found:
        inside = (f"{path}/{entry.name}" for path in paths for entry in listing(path) if entry.is_folder)
        answer["folders"] = [safe(folder) for folder in islice(inside, MOST_INCIDENTS)]
        answer["hint"] = "there is no incident of hangscope; diagnose reads any folder of dumps and logs by its path"
    return answer


def _incident_folders(top: str) -> Iterator[str]:
    """Directories with a manifest. Below one there is no other; hidden directories are left alone."""
    waiting = [(top, 0)]
    for _ in range(MOST_FOLDERS):
        if not waiting:
            return
        folder, level = waiting.pop()
        try:
            inside = listing(folder)
        except OSError:
            continue
        if any(entry.name == MANIFEST and entry.is_file for entry in inside):
            yield folder
        elif level < DEEPEST:
            names = sorted(entry.name for entry in inside if entry.is_folder and not entry.name.startswith("."))
            waiting.extend((f"{folder.rstrip('/')}/{name}", level + 1) for name in reversed(names))


def _incident(folder: str) -> dict[str, Any]:
    try:
        said = manifest.read(Path(folder)) or manifest.Manifest()
        problem = None
    except (DamagedError, OSError) as error:
        said = manifest.Manifest(reason="")
        problem = safe(str(error))
    return {
        "path": safe(folder),
        "job": _safe(said.job),
        "attempt": _safe(said.attempt),
        "captured_at": _safe(said.captured_at),
        "reason": _safe(said.reason),
        "nodes": len(said.nodes_present or ()),
        "stored_verdict": _stored_verdict(folder),
        "problem": problem,
    }


def _stored_verdict(folder: str) -> dict[str, Any] | None:
    """What the run wrote down when it was captured. `diagnose` judges anew."""
    try:
        value = bounded_json.loads(read_below(Path(folder), VERDICT_JSON, _VERDICT_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    keys = ("outcome", "kind", "headline", "confidence")
    return {key: _safe(value[key]) if isinstance(value.get(key), str) else None for key in keys}


def _safe(text: str | None) -> str | None:
    return None if text is None else safe(text)


# ---- the evidence itself ---------------------------------------------------------------------------------------------


def operations(
    path: str,
    *,
    ranks: Sequence[int] | None = None,
    group: str | None = None,
    state: str | None = None,
    name: str | None = None,
    last: int = 20,
) -> dict[str, Any]:
    """The operations that match, as the flight recorder kept them: the last of each rank."""
    job = load(path)
    rows = select(job, ranks=ranks, group=group, state=state, name=name, last=max(1, last))
    shown = [json.loads(line) for line in json_lines(job, rows[:MOST_OPERATIONS])]
    for operation in shown:
        operation["frames"] = _own(operation["frames"])[:4]
    return {"matching": len(rows), "shown": len(shown), "ranks": ranges(job.ranks, limit=64), "operations": shown}


def stacks(path: str, *, ranks: Sequence[int] | None = None, all_threads: bool = False) -> dict[str, Any]:
    """Where ranks are: of each the thread that trains, or every thread that was captured."""
    job = load(path)
    chosen = _chosen(job, ranks)
    training = Stacks(job)
    found = []
    for rank in chosen[:MOST_RANKS]:
        main = training.main(rank)
        threads = [stack for stack in job.facts.stacks if stack.rank == rank] if all_threads else [main]
        found += [_stack(rank, stack, job.nodes.get(rank)) for stack in threads if stack is not None]
    seen = {stack.rank for stack in job.facts.stacks if stack.rank is not None}
    return {
        "asked_ranks": len(chosen),
        "shown_ranks": min(len(chosen), MOST_RANKS),
        "without_stack": ranges(rank for rank in chosen if rank not in seen),
        "stacks": found,
    }


def _chosen(job: Job, ranks: Sequence[int] | None) -> list[int]:
    if ranks is None:
        return list(job.ranks)
    strangers = sorted(set(ranks) - set(job.ranks))
    if strangers:
        raise SettingsError(
            f"the job has no rank {ranges(strangers, limit=12)}", hint=f"its ranks are {ranges(job.ranks, limit=12)}"
        )
    return sorted(set(ranks))


def _stack(rank: int, stack: ThreadStack, node: str | None) -> dict[str, Any]:
    return {
        "rank": rank,
        "node": _safe(node),
        "thread": safe(stack.thread),
        "main": stack.main,
        "child_process": stack.pid if stack.child else None,
        "innermost_first": [_frame(frame) for frame in stack.frames],
        "source": safe(str(stack.source)),
    }


def _frame(frame: Frame) -> str:
    return safe(f"{frame.filename}:{frame.line} {frame.name}")


def comparison(path: str, *, ranks: Sequence[int]) -> dict[str, Any]:
    """Ranks side by side in every group that they share: how far each came, and where their calls first differ."""
    job = load(path, full=True)
    chosen = _chosen(job, ranks)
    if not 2 <= len(chosen) <= MOST_RANKS:
        raise SettingsError(f"{len(chosen)} ranks cannot be compared", hint=f"name 2 to {MOST_RANKS} different ranks")
    groups = []
    for group in job.groups:
        calls = {rank: _collectives(job, rank, group.index) for rank in chosen}
        if sum(map(bool, calls.values())) < 2:
            continue
        groups.append(
            {
                "group": safe(f"{group.label} ({group.name})" if group.name else group.label),
                "ranks": [_progress(job, rank, of_rank) for rank, of_rank in calls.items()],
                "differences": list(islice(_differences(calls), _DIFFERENCES)),
            }
        )
    return {
        "without_dump": ranges(rank for rank in chosen if rank not in job.dumps),
        "groups": groups,
        "note": "Only what both recorded is compared: a call that one lacks at its end is shown by last_launched.",
    }


def _collectives(job: Job, rank: int, group: int) -> dict[int, Operation]:
    """One rank's collectives in a group, by their number."""
    part = job.ops.span(rank)
    here = (job.ops.column("group")[part] == group) & (job.ops.column("kind")[part] == Kind.COLLECTIVE)
    rows = part.start + here.nonzero()[0][-MOST_CALLS:]
    return {operation.seq: operation for operation in map(job.ops.__getitem__, rows.tolist())}


def _progress(job: Job, rank: int, calls: Mapping[int, Operation]) -> dict[str, Any]:
    unfinished = [call for call in calls.values() if call.state != State.COMPLETED]
    launched = max(calls, default=None)
    return {
        "rank": rank,
        "node": _safe(job.nodes.get(rank)),
        "last_launched": None if launched is None else _call(calls[launched]),
        "oldest_unfinished": _call(min(unfinished, key=lambda call: call.seq)) if unfinished else None,
        "recorded": len(calls),
    }


def _call(call: Operation) -> dict[str, Any]:
    own = [frame for frame in call.frames if is_own_code(frame.filename)]
    return {
        "title": safe(call.title),
        "state": call.state.name.lower(),
        "input_shapes": call.input_shapes,
        "input_dtypes": [safe(dtype) for dtype in call.input_dtypes],
        "called_at": _frame(own[0]) if own else None,
    }


def _differences(calls: Mapping[int, Mapping[int, Operation]]) -> Iterator[dict[str, Any]]:
    """Numbers at which those who recorded them made different calls, the oldest first."""
    for seq in sorted({seq for of_rank in calls.values() for seq in of_rank}):
        there = {rank: of_rank[seq] for rank, of_rank in calls.items() if seq in of_rank}
        if len({(call.name, call.input_shapes, call.input_dtypes) for call in there.values()}) > 1:
            yield {"seq": seq, "by_rank": {str(rank): _call(call) for rank, call in there.items()}}


TOOLS: dict[str, Callable[..., dict[str, Any]]] = {
    "diagnose": diagnosis,
    "list_incidents": incidents,
    "show_operations": operations,
    "show_stacks": stacks,
    "compare_ranks": comparison,
}
"""Each is given the real path that is meant, and the tool's other arguments."""
