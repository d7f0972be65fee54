"""The flight recorder of one rank, asked over its worker server: without stacks at once, with them where it can.

Of a rank in which nothing of ours runs, or answers, it is read out of its memory, with stacks and without touching it.

The first answer with stacks takes seconds, because every frame is symbolised then (torch 2.11: 4 to 6 s); without it
takes milliseconds, and the rank may be gone in a second. JSON answers never have stacks.
"""

from __future__ import annotations

import contextlib
from typing import Any

from hangscope.incident.node_dir import NodeDir
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.recorder_questions import MOST_MEMORY, recorders
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.live.worker_server import ServerAnswer, ask
from hangscope.safeio import bounded_json
from hangscope.safeio.safe_files import Patience
from hangscope.sources.distributed_state import DistributedState
from hangscope.sources.flight_recorder.outside import CannotRead, dump_bytes, open_process

QUICK_S = 3.0
STACKS_S = 6.5
KNOW_NO_MEMBERS = frozenset(("gloo", "nccl2"))
"""Recorders whose own list of groups is of no use; the groups are Python's then."""
MEMORY_S = 6.0
"""For reading it from outside: a page of the process may come from a file system that hangs."""
MOST_BYTES = 64 << 20


def quick(node_dir: NodeDir, process: RankProcess) -> list[str]:
    """Save each recorder of the rank without stacks; the backends that answered. The first answer is kept.

    A later capture does not replace an earlier one: on torch 2.13 an operation of Gloo that has timed out is marked
    finished, so the later picture can be the poorer one.
    """
    answered: list[str] = []
    if process.socket is None:
        return answered
    for backend, question in recorders(process):
        name = f"dumps/{backend}_rank_{process.rank}{'.pickle' if 'pickle' in question else '.json'}"
        if node_dir.has(name):
            answered.append(backend)
            continue
        answer = ask(process.socket, question, QUICK_S)
        if not answer.ok:
            if answer.status != 404:
                node_dir.gap(f"recorder of rank {process.rank}", f"{backend}: {_why(answer)}", process.rank)
            continue
        if is_empty(answer.body):
            continue
        node_dir.filled(f"recorder of rank {process.rank}", process.rank)
        if node_dir.write(name, answer.body, rank=process.rank):
            answered.append(backend)
    return answered


def with_stacks(node_dir: NodeDir, process: RankProcess) -> bool:
    """Replace NCCL's dump by one with stacks, and let nccl2 write its own (2.15), if the rank still can.

    Whether it is done: a rank that has not answered in time is still at work on it.
    """
    if process.socket is None:
        return True
    answered = True
    if "dump_nccl_trace_pickle" in process.handlers and node_dir.has(f"dumps/nccl_rank_{process.rank}.pickle"):
        answer = ask(process.socket, "dump_nccl_trace_pickle", STACKS_S)
        if answer.ok:
            node_dir.write(f"dumps/nccl_rank_{process.rank}.pickle", answer.body, rank=process.rank)
        else:
            node_dir.gap(f"recorded stacks of rank {process.rank}", _why(answer), process.rank)
        answered = answer.ok
    if "fr_dump_file" in process.handlers and node_dir.has(f"dumps/nccl2_rank_{process.rank}.json"):
        answered &= ask(process.socket, "fr_dump_file?backend=nccl2", STACKS_S).ok
    return answered


def from_outside(node_dir: NodeDir, rank: WatchedRank) -> str:
    """Save each recorder of a rank in which no companion answers, with stacks, out of its memory. Empty where at least
    one was saved, else why there is none."""
    if rank.handle.ended():
        return "it has ended"
    pid = rank.process.pid
    try:
        dumps, reasons, groups = Patience(MEMORY_S).ask(str(pid), lambda: _read_memory(pid))
    except CannotRead as error:
        return error.reason if error.cure is None else f"{error.reason}; what helps: {error.cure}"
    except OSError as error:
        return f"its memory: {error.strerror or error}"
    if groups:
        rank.take_groups({"groups": groups})
    for backend, dump in dumps.items():
        rank.take_full(backend, dump)
        dump = rank.as_it_stood(backend, dump)
        if backend in KNOW_NO_MEMBERS and rank.groups:
            dump = {**dump, "pg_config": rank.members(backend)}
        name = f"dumps/{backend}_rank_{rank.number}.pickle"
        if not node_dir.has(name) and not node_dir.has(f"dumps/{backend}_rank_{rank.number}.json"):
            node_dir.write(name, dump_bytes(dump), rank=rank.number)
            rank.from_memory.add(backend)
    if dumps:
        node_dir.filled(f"recorder of rank {rank.number}", rank.number)
        return ""
    return "; ".join(reasons) or "it has recorded nothing so far"


def _read_memory(pid: int) -> tuple[dict[str, dict[str, Any]], list[str], list[dict[str, Any]]]:
    """(The dumps by backend, why others could not be read, the groups as Python knows them.)"""
    dumps: dict[str, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    with open_process(pid) as process:
        reasons = [f"{backend}: {why}" for backend, why in process.reasons.items()]
        for backend in process.recorders():
            try:
                dump = process.dump(backend)
            except CannotRead as error:
                reasons.append(f"{backend}: {error.reason}")
                continue
            if dump["entries"] or dump["pg_status"]:
                dumps[backend] = dump
        if KNOW_NO_MEMBERS & dumps.keys():
            with contextlib.suppress(CannotRead), DistributedState(pid) as state:
                groups = state.groups()
    return dumps, reasons, groups


def is_empty(body: bytes) -> bool:
    """Whether this recorder never recorded anything: a CUDA build answers for NCCL in a Gloo job too."""
    if body.startswith(b"{"):
        dump = _object(body)
        return not dump.get("entries") and not dump.get("pg_status")
    # The pickle of an unused recorder holds a version and empty tables: there is no entry and no state in it.
    return b"profiling_name" not in body and b"last_enqueued_collective" not in body


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = bounded_json.loads(body, most=MOST_MEMORY)
    except ValueError:
        return {"entries": "unread"}  # not empty: whoever reads it with more time says what it is
    return value if isinstance(value, dict) else {}


def _why(answer: ServerAnswer) -> str:
    return answer.error or f"status {answer.status}"
