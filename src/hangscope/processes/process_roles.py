"""Which processes an engine has below a command, by what it titles them: workers, engine cores, servers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from hangscope.engine_roles import Role, of_words, with_replicas
from hangscope.processes import linux_process

MOST_PROCESSES = 4096
_MOST_ABOVE = 4
"""Processes between a worker and its engine core."""


def roles_of(pids: Iterable[int]) -> dict[int, Role]:
    """Those of these processes that have a role in an engine. A title may change while an engine starts."""
    found: dict[int, Role] = {}
    core_of: dict[int, Role] = {}
    for pid in pids:
        role = of_words(linux_process.command_line(pid))
        if role is None:
            continue
        found[pid] = role
        core = _core_above(pid) if role.works and role.place("DP") is None else None
        if core is not None:
            core_of[pid] = core
    return with_replicas(found, core_of)


def roles_below(pid: int) -> dict[int, Role]:
    """The processes below `pid`, and itself, that have a role in an engine."""
    below = (each for each, _ in islice(linux_process.descendants(pid), MOST_PROCESSES))
    return roles_of([pid, *below])


def _core_above(pid: int) -> Role | None:
    """The engine core that started a process."""
    for _ in range(_MOST_ABOVE):
        stat = linux_process.stat(pid)
        if stat is None or stat.parent < 2:
            return None
        pid = stat.parent
        role = of_words(linux_process.command_line(pid))
        if role is not None and role.name.startswith("EngineCore"):
            return role
    return None


def workers(roles: dict[int, Role]) -> dict[int, Role]:
    """Those that compute. An engine with one GPU a replica computes in its engine core."""
    found = {pid: role for pid, role in roles.items() if role.works}
    return found or {pid: role for pid, role in roles.items() if role.name.startswith("EngineCore")}


def top_of_engine(pid: int) -> int:
    """The server above a process of an engine; the process itself where it is none."""
    while of_words(linux_process.command_line(pid)) is not None:
        stat = linux_process.stat(pid)
        if stat is None or stat.parent < 2 or of_words(linux_process.command_line(stat.parent)) is None:
            break
        pid = stat.parent
    return pid
