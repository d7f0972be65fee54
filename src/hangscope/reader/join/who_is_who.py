"""Who is who: joins pids, hosts, local ranks, tasks and ranks of communicators into ranks of the job and their nodes.

Every source knows a process by something else. What is certain is joined; what is not stays unknown. Nothing here
depends on the order of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from hangscope.model import Gap, Group, Process, RasReport, Source
from hangscope.model.numbers import integer
from hangscope.model.statements import Statement, Trust, by_trust
from hangscope.model.values import host_name, is_loopback, short_name
from hangscope.reader.join.nccl_processes import Processes, WorldCommunicator, world_communicator
from hangscope.reader.logs.log_file import TextFile

_ADDRESS = re.compile(r"^(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F:]*:[0-9a-fA-F:]*)$")


def is_address(name: str) -> bool:
    return _ADDRESS.match(name) is not None


@dataclass
class Identity:
    """The answer. `statements` have a rank each; `by_process` is keyed by (short host name, pid)."""

    world_size: int | None = None
    by_process: dict[tuple[str, int], int] = field(default_factory=dict)
    by_pid: dict[int, int] = field(default_factory=dict)
    """pids that one process alone has over all nodes."""
    by_local_rank: dict[tuple[str, int], int] = field(default_factory=dict)
    """(short host name, local rank); the host is "" where a launcher calls itself localhost."""
    by_directory: dict[tuple[str, ...], int] = field(default_factory=dict)
    """torchrun's directory of one worker, ``attempt_0/3``, which is named by the local rank."""
    statements: list[Statement] = field(default_factory=list)
    members: dict[str, dict[int, int]] = field(default_factory=dict)
    """Communicator → its own rank → rank of the job."""
    nodes: dict[int, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    """Short name → the spelling to show."""
    addresses: dict[str, str] = field(default_factory=dict)
    """IP address → host."""
    ranks: set[int] = field(default_factory=set)
    reports: list[RasReport] = field(default_factory=list)
    """What RAS said about this job, and not about another one on the same node."""
    gaps: list[Gap] = field(default_factory=list)

    def rank_of(self, host: str | None, pid: int | None) -> int | None:
        if pid is None:
            return None
        if host is not None and not is_loopback(host):
            known = self.addresses.get(host, host)
            found = self.by_process.get((short_name(known), pid))
            if found is not None or not is_address(known):
                return found
        return self.by_pid.get(pid)

    def host_in_path(self, parts: tuple[str, ...]) -> str | None:
        """The innermost directory of a path that has the name of a host that something else names too."""
        named = (short_name(part) for part in reversed(parts[:-1]))
        return next((self.hosts[name] for name in named if name in self.hosts), None)


def identify(
    texts: Sequence[TextFile],
    processes: Processes,
    statements: Sequence[Statement],
    groups: Sequence[Group],
    dump_ranks: Iterable[int],
    world_size: int | None,
    named_hosts: Iterable[str],
    dump_paths: Mapping[int, Sequence[tuple[str, ...]]],
    reports: Sequence[RasReport] = (),
    pods: Iterable[str] = (),
) -> Identity:
    """Join all sources. `world_size` is what a manifest says; `named_hosts` are hosts that manifests or paths name;
    `dump_paths` says where the dumps of a rank lie; a host that is one of `pods` is called by the pod's name."""
    who = Identity()
    who.hosts.update({short_name(pod): pod for pod in pods})
    _learn_hosts(who, statements, processes, named_hosts)
    certain = _certain_ranks(texts, statements, groups, dump_ranks)
    least = max([*(rank + 1 for rank in certain), world_size or 0])
    world = world_communicator(processes, least)
    in_world = range(world.size if world is not None else 0)
    reports = who.reports = own_reports(reports, processes, statements, max(least, len(in_world)))
    who.world_size = max([least, len(in_world), *(report.size for report in reports)]) or None
    statements = [*statements, *_ras_statements(reports, who.world_size)]
    who.ranks = certain.union(range(world_size or 0), in_world)
    who.ranks.update(said.rank for said in statements if said.rank is not None)

    _join_processes(who, texts, processes, statements, world)
    _join_pids(who, texts, statements)
    _resolve(who, texts, statements)
    _members(who, processes, groups, world)
    for text in texts:
        text.rank = _own_rank(who, text)
        if text.rank is not None and text.is_rank_log:
            who.ranks.add(text.rank)
        if text.node is None:
            text.node = who.host_in_path(text.parts)
    _share_directories(who, texts)
    _name_nodes(who, texts, processes, dump_paths)
    return who


def _learn_hosts(
    who: Identity, statements: Sequence[Statement], processes: Processes, named_hosts: Iterable[str]
) -> None:
    """How hosts are spelled, and whose addresses NCCL names."""
    for node in (said.process.node for said in sorted(statements, key=by_trust)):
        if node is not None and not is_address(node):
            who.hosts.setdefault(short_name(node), node)
    for host in [*sorted(named_hosts), *sorted({host for host, _ in processes})]:
        if host_name(host) and not is_address(host):
            who.hosts.setdefault(short_name(host), host)
    for process in processes.values():
        for address in process.addresses:
            who.addresses.setdefault(address, process.host)


def _certain_ranks(
    texts: Sequence[TextFile], statements: Sequence[Statement], groups: Sequence[Group], dump_ranks: Iterable[int]
) -> set[int]:
    certain = {said.rank for said in statements if said.rank is not None}
    certain.update(dump_ranks)
    for text in texts:
        certain.update(text.writers.tags)
    for group in groups:
        certain.update(group.members or ())
    return certain


def _own_rank(who: Identity, text: TextFile) -> int | None:
    """The rank whose file it is: by PyTorch's tags, by the one NCCL process in it, by its name."""
    hint = text.name_rank
    if len(text.nccl.processes) == 1:
        by_pid = who.rank_of(*next(iter(text.nccl.processes)))
        hint = by_pid if by_pid is not None else hint
    return text.writers.own_rank(hint)


_WORKER = re.compile(r"^attempt_\d+/(\d{1,6})$", re.ASCII)


def _share_directories(who: Identity, texts: Sequence[TextFile]) -> None:
    """torchrun's ``attempt_0/<local rank>/``: one worker's files are one rank's, though not each of them says so.

    Ranks of one node follow each other, so one worker that is known tells who the others are; also the one that was
    killed before it could write a word.
    """
    where = [text.parts[:-1] if _WORKER.match("/".join(text.parts[-3:-1])) else None for text in texts]
    starts: dict[tuple[str, ...], set[int]] = {}
    for text, worker in zip(texts, where, strict=True):
        if text.rank is not None and worker is not None:
            starts.setdefault(worker[:-1], set()).add(text.rank - integer(worker[-1]))
    for text, worker in zip(texts, where, strict=True):
        if worker is None:
            continue
        start = starts.get(worker[:-1], set())
        if len(start) == 1 and min(start) >= 0:
            who.by_directory[worker] = min(start) + integer(worker[-1])
            if text.rank is None and not text.writers.shared:
                text.rank = who.by_directory[worker]
                who.ranks.add(text.rank)


def own_reports(
    reports: Sequence[RasReport],
    processes: Processes,
    statements: Sequence[Statement],
    world_size: int,
) -> list[RasReport]:
    """Those of this job: all jobs of a user on a node listen on one port, and the kernel picks who answers.

    It is this job's where it knows one of its communicators or processes, or speaks of a job of the same size.
    """
    idents = {comm.comm_id for process in processes.values() for comm in process.comms}
    pids = {pid for _, pid in processes} | {said.process.pid for said in statements if said.process.pid is not None}
    answers: dict[tuple[str, str | None], list[RasReport]] = {}
    for report in reports:
        answers.setdefault((report.source.file, report.at), []).append(report)
    kept: list[RasReport] = []
    for answer in answers.values():
        size = max(report.size for report in answer)
        nobody_known = not idents and not pids and size <= world_size
        if nobody_known or world_size in {0, size} or _mentions(answer, idents, pids):
            kept.extend(answer)
    return kept


def _mentions(answer: Sequence[RasReport], idents: Set[str | None], pids: Set[int]) -> bool:
    """Whether an answer of RAS names one of these communicators or processes."""
    return any(report.comm_id in idents or any(row.pid in pids for row in report.ranks) for report in answer)


def _ras_statements(reports: Sequence[RasReport], world_size: int | None) -> list[Statement]:
    """pids as RAS knows them, from communicators of all ranks; none where two of them number a process otherwise."""
    found: dict[tuple[str | None, int], dict[int, Statement]] = {}
    for report in sorted(reports, key=lambda r: (r.source.file, r.source.place)):
        if report.size != world_size:
            continue
        for row in report.ranks:
            if row.pid is not None:
                process = Process(rank=row.rank, node=host_name(row.host), pid=row.pid, source=report.source)
                found.setdefault((row.host, row.pid), {}).setdefault(row.rank, Statement(Trust.RAS, process))
    if any(len(ranks) > 1 for ranks in found.values()):
        return []
    return [said for ranks in found.values() for said in ranks.values()]


def _join_processes(
    who: Identity,
    texts: Sequence[TextFile],
    processes: Processes,
    statements: Sequence[Statement],
    world: WorldCommunicator | None,
) -> None:
    """The rank of each process: what statements say, else NCCL's log, else the name of the one file it wrote into."""
    for said in sorted(statements, key=by_trust):
        process_said = said.process
        if said.rank is not None and process_said.pid is not None and process_said.node is not None:
            _claim(who, (short_name(process_said.node), process_said.pid), said.rank, process_said.source)
    for (host, pid), process in sorted(processes.items()):
        key = (short_name(host), pid)
        in_world = next((comm for comm in process.comms if world is not None and comm.comm_id == world.ident), None)
        if in_world is not None:
            _claim(who, key, in_world.rank, in_world.source)
        if len(process.tags) == 1 and process.first_source is not None:
            _claim(who, key, next(iter(process.tags)), process.first_source)
    for text in texts:
        if len(text.nccl.processes) == 1 and text.name_rank is not None:
            ((host, pid),) = text.nccl.processes
            who.by_process.setdefault((short_name(host), pid), text.name_rank)


def _join_pids(who: Identity, texts: Sequence[TextFile], statements: Sequence[Statement]) -> None:
    """pids that one rank alone has, for sources that name no host."""
    pids: dict[int, set[int]] = {}
    for (_, pid), rank in who.by_process.items():
        pids.setdefault(pid, set()).add(rank)
    for said in statements:
        if said.rank is not None and said.process.pid is not None:
            pids.setdefault(said.process.pid, set()).add(said.rank)
    for text in texts:
        for pid, seen in text.writers.pids.items():
            if len(seen) == 1:
                pids.setdefault(pid, set()).update(seen)
    who.by_pid = {pid: next(iter(ranks)) for pid, ranks in pids.items() if len(ranks) == 1}
    for text in texts:
        text.writers.learn_pids(who.rank_of, text.node)


def _claim(who: Identity, key: tuple[str, int], rank: int, source: Source | None) -> None:
    known = who.by_process.setdefault(key, rank)
    if known != rank:
        who.gaps.append(
            Gap(
                f"rank of pid {key[1]} on {who.hosts.get(key[0], key[0])}",
                f"one source says {known}, another {rank}; {known} is used",
                source=source,
            )
        )


def _resolve(who: Identity, texts: Sequence[TextFile], statements: Sequence[Statement]) -> None:
    """Give every statement a rank, by pid, by local rank on its node, or by the launcher's task number."""
    local: dict[tuple[str, int], set[int]] = {}
    for said in statements:
        if said.rank is not None and said.process.local_rank is not None:
            local.setdefault((short_name(said.process.node or ""), said.process.local_rank), set()).add(said.rank)
    who.by_local_rank = {key: next(iter(ranks)) for key, ranks in local.items() if len(ranks) == 1}
    torchrun = any(text.launcher.elastic for text in texts)
    for said in sorted(statements, key=by_trust):
        rank = said.rank if said.rank is not None else _rank_of(who, said, torchrun)
        if rank is not None:
            who.statements.append(replace(said, process=replace(said.process, rank=rank)))
            who.ranks.add(rank)
        elif said.process.exit_status is not None:
            who.gaps.append(_end_of_unknown(said))


def _rank_of(who: Identity, said: Statement, torchrun: bool) -> int | None:
    """The rank of a statement that names none; below torchrun a launcher's tasks are nodes."""
    process = said.process
    if said.task is not None and not torchrun and (who.world_size is None or said.task < who.world_size):
        return said.task
    rank = who.rank_of(process.node, process.pid)
    if rank is None and process.local_rank is not None:
        rank = who.by_local_rank.get((short_name(process.node or ""), process.local_rank))
    return rank


def _end_of_unknown(said: Statement) -> Gap:
    process = said.process
    if process.pid is not None:
        what = f"pid {process.pid}"
    elif said.task is not None:
        what = f"task {said.task}"
    else:
        what = f"local rank {process.local_rank}" if process.local_rank is not None else "a process"
    why = f"a launcher reports that it exited with {process.exit_status}, but not which rank it was"
    return Gap(f"rank of {what}", why, node=process.node, source=process.source)


def _members(who: Identity, processes: Processes, groups: Sequence[Group], world: WorldCommunicator | None) -> None:
    """Which rank of the job each member of each communicator is: by its process, else by a process group that fits."""
    for ident, size in _members_by_process(who, processes).items():
        known = who.members[ident]
        holds_all = world is not None and size == world.size == who.world_size
        if holds_all and all(inner == outer for inner, outer in known.items()):
            who.members[ident] = {rank: rank for rank in range(size)}
        elif known and len(known) != size:
            fitting = {group.members for group in groups if _fits(group, known, size)}
            if len(fitting) == 1:
                who.members[ident] = dict(enumerate(fitting.pop() or ()))


def _members_by_process(who: Identity, processes: Processes) -> dict[str, int]:
    """Fills in the members whose processes are known; returns the size of every communicator."""
    sizes: dict[str, int] = {}
    for (host, pid), process in sorted(processes.items()):
        rank = who.rank_of(host, pid)
        for comm in process.comms:
            ident = comm.comm_id or ""
            sizes[ident] = comm.size
            known = who.members.setdefault(ident, {})
            if rank is not None:
                known[comm.rank] = rank
    return sizes


def _fits(group: Group, known: Mapping[int, int], size: int) -> bool:
    """Whether a group can be the communicator of that size with these members."""
    if group.members is None or len(group.members) != size:
        return False
    return all(group.members[inner] == outer for inner, outer in known.items() if inner < size)


def _name_nodes(
    who: Identity,
    texts: Sequence[TextFile],
    processes: Processes,
    dump_paths: Mapping[int, Sequence[tuple[str, ...]]],
) -> None:
    """rank → host: a roster or manifest, else NCCL's prefix, else the directory its files lie in, else an address."""
    weak: dict[int, str] = {}
    doubts: list[tuple[int, str, str, Source | None]] = []

    def say(rank: int | None, node: str | None, source: Source | None) -> None:
        if rank is None or host_name(node) is None or node is None:
            return
        if is_address(node):
            host = who.addresses.get(node)
            if host is None:
                weak.setdefault(rank, node)
                return
            node = host
        name = who.hosts.setdefault(short_name(node), node)
        known = who.nodes.setdefault(rank, name)
        if known != name:
            doubts.append((rank, known, name, source))

    for said in who.statements:
        say(said.rank, said.process.node, said.process.source)
    for (host, pid), process in sorted(processes.items()):
        say(who.rank_of(host, pid), host, process.first_source)
    for text in texts:
        if text.node is not None and text.rank is not None and text.rank not in who.nodes:
            say(text.rank, text.node, Source(text.file))
    for rank, paths in sorted(dump_paths.items()):
        for parts in sorted(paths):
            if rank not in who.nodes:
                say(rank, who.host_in_path(parts), None)
    for rank, node in weak.items():
        who.nodes.setdefault(rank, node)
    # a pod has another name than its machine: where the two always go together, nobody contradicts anybody
    meant: dict[str, set[str]] = {}
    named = set(who.nodes.values())
    for _, known, name, _ in doubts:
        meant.setdefault(name, set()).add(known)
    for rank, known, name, source in doubts:
        if len(meant[name]) > 1 or name in named:
            why = f"one source says {known}, another {name}; {known} is used"
            who.gaps.append(Gap(f"node of rank {rank}", why, rank=rank, source=source))
        else:
            who.hosts[short_name(name)] = known
