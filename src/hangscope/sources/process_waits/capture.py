"""Two looks at a job's processes and at all that they wait for, on this node."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from hangscope.safeio.safe_files import Patience, Refused
from hangscope.sources.process_waits import proc
from hangscope.sources.process_waits.calls import Blocked, Call, blocked_on, call_of
from hangscope.sources.process_waits.says import Said, said_by
from hangscope.sources.process_waits.schema import DATABASE, FOLDER, NodeWaits, SeenProcess, Target, Wait
from hangscope.sources.process_waits.tables import LISTEN, Socket, Tables
from hangscope.sources.saving import Saving

MOST_PROCESSES = 512
MOST_THREADS = 512
"""Of one process."""
MOST_WAITS = 4096
MOST_TARGETS = 64
"""Of one wait: a server's event loop may watch thousands of connections."""
MOST_SOCKETS = 256
"""Of one process, that are saved for other nodes."""
BETWEEN_S = 2.0
MOST_PYTHONS = 64
PYTHONS_S = 3.0
"""For all Python programs' own words: a page of one may come from a file system that hangs."""
WHAT = "waits between programs"
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class _Thread:
    call: Call | None
    switches: int
    state: str
    name: str


@dataclass(slots=True)
class _Look:
    """What a look saw: the threads of each process, and what each process had used."""

    threads: dict[tuple[int, int], _Thread] = field(default_factory=dict)
    used: dict[int, proc.ProcStat] = field(default_factory=dict)
    hidden: set[int] = field(default_factory=set)
    """Processes whose threads' calls the kernel does not show."""

    def take(self, pid: int) -> None:
        stat = proc.stat(str(pid))
        if stat is None:
            return
        self.used[pid] = stat
        if stat.state not in "ZX" and not proc.text(f"{pid}/syscall", 512):
            self.hidden.add(pid)
        for thread in (proc.numbers(f"{pid}/task") or ())[:MOST_THREADS]:
            one = proc.stat(f"{pid}/task/{thread}")
            if one is not None:
                self.threads[pid, thread] = _Thread(
                    call_of(pid, thread), proc.switches(pid, thread), one.state, one.name
                )

    def calls_of(self, pid: int) -> list[tuple[int, Call]]:
        threads = proc.numbers(f"{pid}/task") or ()
        seen = ((thread, self.threads.get((pid, thread))) for thread in threads)
        return [(thread, one.call) for thread, one in seen if one is not None and one.call is not None]


def save(node: Saving, sample: int) -> None:
    """What the job's processes wait for, and those that they wait for."""
    del sample
    command = [node.command] if node.command is not None else []
    seen = take([*node.ranks, *command, *node.programs], node.ranks, node.ended.wait)
    if not node.ended.is_set():
        node.write(f"{FOLDER}/processes.json", json.dumps({**seen.to_json(), "node": node.node}, indent=1))


def take(
    roots: Iterable[int],
    ranks: Mapping[int, int],
    pause: Callable[[float], object],
    between_s: float = BETWEEN_S,
) -> NodeWaits:
    """The processes below `roots`, and those that they wait for, with what their threads wait in.

    `ranks` gives the rank of a process; `pause` waits between the looks.
    """
    first, notes = _closure(roots)
    pause(between_s)
    second = _Look()
    for pid in first.used:
        second.take(pid)
    tables = Tables()
    tables.read_holders()
    tables.read_namespaces(tuple(second.used))
    waits = [wait for key, thread in second.threads.items() if (wait := _wait(key, thread, first, tables)) is not None]
    waits = _with_words(waits)
    held = _sockets_held(tables, set(second.used))
    processes = [_process(pid, stat, first, second, ranks.get(pid), held[pid]) for pid, stat in second.used.items()]
    cut = [tables.cut] if tables.cut else []
    if len(waits) > MOST_WAITS:
        cut.append(f"of {len(waits)} waits {MOST_WAITS} are kept")
    return NodeWaits(
        tuple(processes), tuple(waits[:MOST_WAITS]), between_s, tables.not_visible, "; ".join(cut), tuple(notes)
    )


def _closure(roots: Iterable[int]) -> tuple[_Look, list[str]]:
    """A look at the processes below the roots, and at those that one of them waits for, and so on."""
    look = _Look()
    tables = Tables()
    tables.read_holders()
    waiting = list(dict.fromkeys(pid for root in roots for pid in (root, *proc.descendants(root, MOST_PROCESSES))))
    known = set(waiting)
    while waiting:
        pid = waiting.pop(0)
        if len(look.used) >= MOST_PROCESSES:
            return look, [f"only the first {MOST_PROCESSES} processes were looked at"]
        look.take(pid)
        reached = [
            other
            for thread, call in look.calls_of(pid)
            for target in blocked_on(pid, thread, call, tables, MOST_TARGETS).targets
            for other in target.pids
        ]
        if reached and proc.command(pid).startswith(DATABASE):
            reached += proc.children(look.used[pid].parent)  # another of the server's processes may hold the lock
        fresh = [other for other in dict.fromkeys(reached) if other not in known]
        known.update(fresh)
        waiting += fresh
    return look, []


def _wait(key: tuple[int, int], thread: _Thread, first: _Look, tables: Tables) -> Wait | None:
    """The wait of a thread that is in the call that it was in before; None for any other."""
    before = first.threads.get(key)
    if before is None or before.call is None or thread.call is None or before.call.line != thread.call.line:
        return None
    pid, number = key
    blocked = blocked_on(pid, number, thread.call, tables)
    return Wait(
        pid,
        number,
        _plain(thread.name),
        thread.call.name,
        _targets(blocked),
        any_of=blocked.any_of,
        timed=blocked.timed,
        woke=max(0, thread.switches - before.switches),
        main=pid == number,
    )


def _with_words(waits: list[Wait]) -> list[Wait]:
    """The same waits with what the programs themselves say of them: of as many programs as there is time for."""
    patience = Patience(PYTHONS_S)
    until = time.monotonic() + PYTHONS_S
    said: dict[int, dict[int, Said]] = {}
    for pid in list(dict.fromkeys(wait.pid for wait in waits))[:MOST_PYTHONS]:
        if time.monotonic() > until:
            break
        with contextlib.suppress(Refused):
            said[pid] = patience.ask(f"process {pid}", partial(said_by, pid))
    return [_with_word(wait, said.get(wait.pid, {}).get(wait.thread)) for wait in waits]


def _with_word(wait: Wait, said: Said | None) -> Wait:
    return wait if said is None else replace(wait, place=_plain(said.place), idles=said.idles, says=_plain(said.says))


def _targets(blocked: Blocked) -> tuple[Target, ...]:
    """Those with somebody at the other end first: of thousands only some are kept."""
    ordered = sorted(blocked.targets, key=lambda target: (not target.pids, target.kind in ("listen", "eventfd")))
    return tuple(replace(target, what=_plain(target.what)) for target in ordered[:MOST_TARGETS])


def _sockets_held(tables: Tables, pids: set[int]) -> dict[int, list[Socket]]:
    """The TCP sockets of each process."""
    held: dict[int, list[Socket]] = {pid: [] for pid in pids}
    for (kind, inode), holders in tables.holders.items():
        for pid in {pid for pid, _ in holders} & pids if kind == "socket" else ():
            line = tables.socket_of(pid, inode)
            if line is not None and line.kind == "tcp":
                held[pid].append(line)
    return held


def _process(
    pid: int, stat: proc.ProcStat, first: _Look, second: _Look, rank: int | None, sockets: list[Socket]
) -> SeenProcess:
    before = first.used.get(pid)
    used = max(0.0, stat.cpu_s - before.cpu_s) if before is not None else 0.0
    return SeenProcess(
        pid=pid,
        parent=stat.parent,
        name=_plain(stat.name),
        command=_plain(proc.command(pid)),
        state=stat.state,
        threads=stat.threads,
        cpu_s=round(used, 2),
        rank=rank,
        visible=pid not in second.hidden,
        listens=tuple(sorted(line.local for line in sockets if line.state == LISTEN))[:MOST_SOCKETS],
        sockets=tuple(sorted((line.local, line.peer) for line in sockets if line.state != LISTEN))[:MOST_SOCKETS],
    )


def _plain(text: str) -> str:
    """A name that a process gave itself, without what a terminal would obey."""
    return _UNPRINTABLE.sub("?", text)
