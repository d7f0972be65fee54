"""What one rank can still say: its flight recorder and stacks, twice; and of one that is lost, its last answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from hangscope.incident.node_dir import NodeDir
from hangscope.processes import linux_process
from hangscope.processes.file_waits import MOST_PROCESSES
from hangscope.processes.process_activity import ActivitySample
from hangscope.recorder.capture import flight_recorder, output_files, python_stacks
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.gil_watch import keeps_gil
from hangscope.recorder.live.polling import json_object
from hangscope.recorder.live.recorder_questions import MOST_MEMORY
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.live.worker_server import ask
from hangscope.safeio import bounded_json
from hangscope.sources.call_sites import schema as call_sites

BETWEEN_SAMPLES_S = 2.0
BY_COMPANION = ("gloo", "nccl2")
"""Recorders whose dumps do not say who belongs to a group."""
PING_S = 1.0
_DUMPS = (
    *(("nccl", "pickle"), ("gloo", "json"), ("nccl2", "json")),
    *((each, "pickle") for each in ("gloo", "nccl2", "xccl")),
)


def first_sample(node_dir: NodeDir, rank: WatchedRank, number: int, ranks: Sequence[WatchedRank]) -> None:
    """The recorder without stacks, Python's stacks, the recorder with stacks, and the rank's own output."""
    _look_at_files(rank, ranks)
    _save_recorders(node_dir, rank)
    _save_stacks(node_dir, rank, number)
    if rank.python_answers:
        _newest_groups(node_dir, rank)
    if rank.server_answers:
        rank.answering = True
        rank.answering = not flight_recorder.with_stacks(node_dir, rank.process)
    own = [file for file in rank.output if sum(file in other.output for other in ranks) == 1]
    if own:
        output_files.save_redirected(
            node_dir, f"rank_{rank.number}", own, dict.fromkeys(own, rank.rights), rank.output_before
        )


def second_sample(
    node_dir: NodeDir,
    rank: WatchedRank,
    number: int,
    ranks: Sequence[WatchedRank],
    ended: threading.Event,
    between_s: float = BETWEEN_SAMPLES_S,
) -> None:
    """The stacks again, some seconds later, and those of the processes that the rank started; and whether it worked in
    between, beside what we asked of it."""
    answering = rank.answering
    before = ActivitySample.of(rank.process.pid, time.monotonic(), answering=answering)
    if rank.process.socket is None:
        rank.python_answers = False if keeps_gil(rank.process.pid, ended, between_s) else None
    elif ended.wait(between_s):
        return
    if ended.is_set() or rank.handle.ended():
        return
    rank.activity = ActivitySample.of(rank.process.pid, time.monotonic(), answering=answering).since(before)
    _look_at_files(rank, ranks)
    if rank.python_answers is False:
        if rank.process.socket is not None:  # the first question to its Python is still open
            rank.server_answers = ask(rank.process.socket, "ping", PING_S).ok
        python_stacks.sample(node_dir, _without_server(rank), number, native=True)
    else:
        _save_stacks(node_dir, rank, number)
    python_stacks.children(node_dir, rank.process, number, {each.process.pid for each in ranks})


def _look_at_files(rank: WatchedRank, ranks: Sequence[WatchedRank]) -> None:
    """The files that the rank, or a process that it started, is blocked on: data loaders read in their workers."""
    others = {each.process.pid for each in ranks if each is not rank}
    below = [pid for pid, _ in islice(linux_process.descendants(rank.process.pid), MOST_PROCESSES)]
    rank.file_waits.look([rank.process.pid, *(pid for pid in below if pid not in others)])


def _save_recorders(node_dir: NodeDir, rank: WatchedRank) -> None:
    process = rank.process
    what = f"recorder of rank {rank.number}"
    if process.socket is None:
        why = flight_recorder.from_outside(node_dir, rank)
        if why:
            node_dir.gap(what, "; ".join((*process.errors, why)), rank.number)
        return
    stat = linux_process.stat(process.pid)
    frozen = stat is not None and stat.state in "Tt"
    # A stopped process still accepts connections into its queue: asking it costs deadlines and tells nothing.
    rank.server_answers = False if frozen else ask(process.socket, "ping", PING_S).ok
    if not rank.server_answers:
        rank.python_answers = None
        outside = flight_recorder.from_outside(node_dir, rank)
        if outside:
            why = "the process is stopped" if frozen else "its worker server does not answer"
            node_dir.gap(what, f"{why}; from outside: {outside}", rank.number)
        return
    for backend in flight_recorder.quick(node_dir, process):
        _complete_groups(node_dir, rank, backend)


def _save_stacks(node_dir: NodeDir, rank: WatchedRank, number: int) -> None:
    process = rank.process if rank.server_answers else _without_server(rank)
    answered = python_stacks.sample(node_dir, process, number)
    if rank.server_answers:
        rank.python_answers = answered


def _without_server(rank: WatchedRank) -> RankProcess:
    return replace(rank.process, socket=None)


def _newest_groups(node_dir: NodeDir, rank: WatchedRank) -> None:
    """Groups that were made since it was asked for them last: making one may be what hangs."""
    process = rank.process
    if process.socket is None or not process.asks_python:
        return
    answer = json_object(ask(process.socket, "hangscope_progress?groups=1", PING_S))
    if answer is not None and rank.take_groups(answer):
        for backend in BY_COMPANION:
            _complete_groups(node_dir, rank, backend)


def _complete_groups(node_dir: NodeDir, rank: WatchedRank, backend: str) -> None:
    """Put the members of the groups into a dump whose recorder does not know them."""
    name = f"dumps/{backend}_rank_{rank.number}.json"
    if not rank.members(backend) or not node_dir.has(name):
        return
    try:
        raw = node_dir.read(name, flight_recorder.MOST_BYTES)
        dump = bounded_json.loads(raw, most=MOST_MEMORY)
    except (OSError, ValueError):
        return
    if not isinstance(dump, dict):
        return
    rank.take_full(backend, dump)
    dump["pg_config"] = rank.members(backend)
    node_dir.write(name, json.dumps(dump), rank=rank.number)


# ---- what it said before ---------------------------------------------------------------------------------------------


def save_last_answers(node_dir: NodeDir, rank: WatchedRank) -> None:
    """What a rank said or wrote before now; of one that is lost, in place of what cannot be asked for any more."""
    output_files.save_error_file(node_dir, rank.number, rank.error_file, rank.rights)
    _save_call_sites(node_dir, rank)
    lost = rank.ended or rank.server_answers is False
    python_stacks.keep_crash(node_dir, rank.process, rank.exit_status, rank.rights)
    if lost and rank.last_stack:
        by = "worker-server" if rank.process.socket is not None else "memory"
        python_stacks.keep(node_dir, rank.process, 1, rank.last_stack, by)
    if not any(node_dir.has(f"dumps/{name}_rank_{rank.number}.{ending}") for name, ending in _DUMPS):
        _save_last_rings(node_dir, rank, lost=lost)


def _save_call_sites(node_dir: NodeDir, rank: WatchedRank) -> None:
    name = call_sites.name_of(rank.number)
    learnt = None if node_dir.has(name) else rank.call_sites.file(rank.number)
    if learnt is not None:
        node_dir.write_json(name, learnt, rank=rank.number)


def _save_last_rings(node_dir: NodeDir, rank: WatchedRank, *, lost: bool) -> None:
    """The rings that were read when the job fell apart, else what the last polls said."""
    rings = rank.last_rings() if lost else {}
    for source, ring in rings.items():
        node_dir.write(f"dumps/{source}_rank_{rank.number}.json", ring, rank=rank.number)
    if rings:
        node_dir.filled(f"recorder of rank {rank.number}", rank.number)
        return
    last_answer = rank.last_answer() if lost else None
    if last_answer is not None:
        node_dir.write(f"dumps/last_rank_{rank.number}.json", last_answer, rank=rank.number)
    elif rank.ended:
        moved = rank.last_poll_at is not None
        why = "it was moving when it was last asked, and ended after that" if moved else "it ended before it was asked"
        node_dir.gap(f"recorder of rank {rank.number}", why, rank.number)
