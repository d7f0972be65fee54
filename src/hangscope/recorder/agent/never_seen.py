"""Ranks that were announced and never seen: world_size, --ntasks or a loop's count is one too high, or a start failed.

All others wait in init_process_group for ever. Which rank is missing shows as soon as every node of the job is known:
the address at which the ranks meet is this machine's own, or the launcher says how many nodes there are.
"""

from __future__ import annotations

import ipaddress
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hangscope.processes import linux_process
from hangscope.recorder.live.find_ranks import is_python
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.rundir.run_directory import PeerAgent

_NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "GROUP_WORLD_SIZE")
_NAMED = 16
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def nodes_announced(ranks: Iterable[WatchedRank]) -> int | None:
    """On how many nodes the job runs, as far as its ranks tell; None where nothing says so."""
    first = next((rank for rank in ranks if not rank.ended), None)
    if first is None or one_rank_a_run(os.environ):
        return None
    environ = linux_process.environment(first.process.pid)
    host = first.meets_at.rpartition(":")[0] or environ.get("MASTER_ADDR", "")
    if not first.meets_at.startswith("file://") and is_loopback(host):
        return 1
    named = (environ.get(name, "") for name in _NODES)
    return next((count for text in named if (count := linux_process.whole_number(text))), None)


def one_rank_a_run(environ: Mapping[str, str]) -> bool:
    """Whether `hangscope run` was itself started once a rank: then others of this node are elsewhere."""
    tasks, nodes = (
        linux_process.whole_number(environ.get(f"SLURM_STEP_NUM_{what}", "")) for what in ("TASKS", "NODES")
    )
    several = tasks is not None and nodes is not None and tasks > nodes
    return environ.get("RANK", "").isdigit() or several


def is_loopback(address: str) -> bool:
    """Whether nobody on another machine can come to this address."""
    try:
        return address == "localhost" or ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def never_seen(ranks: Sequence[WatchedRank], everywhere: Iterable[int], world_size: int | None) -> Mapping[str, Any]:
    """What there is to say of ranks that no node has, while all that are here wait in their start; empty where nothing.

    `ranks` are this node's, `everywhere` the numbers that any node has seen; every node of the job is known.
    """
    living = [rank for rank in ranks if not rank.ended]
    missing = sorted(set(range(world_size or 0)) - set(everywhere) - {rank.number for rank in ranks})
    if not missing or not living or not all(rank.starts for rank in living):
        return {}
    twice = _started_twice(living)
    if _others(living, twice) or _started_by_others(living[0], missing):
        return {}  # one of these may be the missing rank, and has only not said so
    named = ", ".join(map(str, missing[:_NAMED])) + (" …" if len(missing) > _NAMED else "")
    text = f"no process of rank{'s' if len(missing) > 1 else ''} {named} was seen on any node of the job"
    text += f", whose world size is {world_size}"
    for number, pids in twice.items():
        text += f"; RANK={number} is set in {len(pids) + 1} processes, also in pid {', '.join(map(str, pids))}"
    return {"ranks": missing, "text": text}


def odd_addresses(agents: Iterable[PeerAgent]) -> Mapping[str, Any]:
    """What there is to say of the few that look for the others at another port, address or file; empty where nothing.

    A name and an address may be one machine: only addresses are compared with each other.
    """
    places = {rank: place for agent in agents for rank, place in agent.meets_at}
    keys = {rank: _key(place) for rank, place in places.items()}
    usual, count = Counter(keys.values()).most_common(1)[0] if keys else (("", ""), 0)
    odd = sorted(rank for rank, key in keys.items() if _differs(key, usual))
    if not odd or 2 * count <= len(keys):
        return {}
    other = places[next(rank for rank, key in keys.items() if key == usual)]
    return {"ranks": odd, "text": f"rank {odd[0]} looks for the others at {places[odd[0]]}, but they are at {other}"}


def still_starting(agents: Iterable[PeerAgent]) -> str:
    """Where the ranks that are in their start look for the others, as the end of a sentence; empty where none is."""
    places = sorted({place for agent in agents for _, place in agent.meets_at})
    return f", in init_process_group: they look for the others at {places[0]}" if places else ""


def _key(place: str) -> tuple[str, str]:
    """Address and port; the path of a file."""
    if place.startswith("file://"):
        return "", place
    host, _, port = place.rpartition(":")
    try:
        return str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))), port
    except ValueError:
        return "", port


def _differs(one: tuple[str, str], other: tuple[str, str]) -> bool:
    return one[1] != other[1] or (bool(one[0] and other[0]) and one[0] != other[0])


def _started_twice(living: Sequence[WatchedRank]) -> dict[int, list[int]]:
    """Rank → processes beside it that were given the same number."""
    found: dict[int, list[int]] = {}
    by_number = {str(rank.number): rank for rank in living}
    for pid in _siblings(living):
        twin = by_number.get(linux_process.environment(pid).get("RANK", ""))
        if twin is not None:
            found.setdefault(twin.number, []).append(pid)
    return found


def _others(living: Sequence[WatchedRank], twice: Mapping[int, Sequence[int]]) -> list[int]:
    known = {pid for pids in twice.values() for pid in pids}
    return [pid for pid in _siblings(living) if pid not in known]


def _started_by_others(known: WatchedRank, missing: Iterable[int]) -> bool:
    """Whether a process of this machine that somebody else started is one of these ranks, by its environment."""
    port = linux_process.environment(known.process.pid).get("MASTER_PORT")
    numbers = set(map(str, missing))
    for pid in linux_process.all_pids():
        environ = linux_process.environment(pid)
        if environ.get("RANK") in numbers and environ.get("MASTER_PORT") == port:
            return True
    return False


def _siblings(living: Sequence[WatchedRank]) -> list[int]:
    """Python processes that whoever started the ranks started as well."""
    own = {rank.process.pid for rank in living}
    stats = [linux_process.stat(pid) for pid in own]
    parents = {stat.parent for stat in stats if stat is not None and stat.parent > 1}
    found = [pid for parent in sorted(parents) for pid in linux_process.children(parent) if pid not in own]
    return [pid for pid in found if is_python(pid) and not _is_helper(linux_process.command_line(pid))]


def _is_helper(words: Sequence[str]) -> bool:
    return any(name in word for word in words for name in _HELPERS)
