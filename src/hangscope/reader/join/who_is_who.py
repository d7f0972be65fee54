"""Who is who: joins pids, hosts, local ranks, tasks and ranks of communicators into ranks of the job and their nodes.

Every source knows a process by something else. What is certain is joined; what is not stays unknown. Nothing here
depends on the order of files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hangscope.model import Gap, Group, Process, RasReport, Source
from hangscope.reader.logs.log_file import TextFile
from hangscope.reader.logs.nccl_logs import NcclProcess
from hangscope.reader.statements import Statement, Trust, by_trust
from hangscope.reader.values import host_name, is_loopback, short_name

_ADDRESS = re.compile(r"^(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F:]*:[0-9a-fA-F:]*)$")


def is_address(name: str) -> bool:
    return _ADDRESS.match(name) is not None


def merge_nccl(texts: Iterable[TextFile]) -> dict[tuple[str, int], NcclProcess]:
    """One entry a process, over all files that hold lines of it."""
    merged: dict[tuple[str, int], NcclProcess] = {}
    for text in texts:
        for key, process in sorted(text.nccl.processes.items()):
            known = merged.get(key)
            if known is None:
                merged[key] = process
                continue
            if not known.comms or not process.comms or process.comms[0].pointer != known.comms[0].pointer:
                known.comms.extend(process.comms)
            known.devices.update(process.devices)
            known.addresses |= process.addresses
            known.warnings.extend(process.warnings)
            known.tags |= process.tags
    return merged


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


def identify(
    texts: Sequence[TextFile],
    processes: Mapping[tuple[str, int], NcclProcess],
    statements: Sequence[Statement],
    groups: Sequence[Group],
    dump_ranks: Iterable[int],
    world_size: int | None,
    named_hosts: Iterable[str],
    dump_paths: Mapping[int, Sequence[tuple[str, ...]]],
    reports: Sequence[RasReport] = (),
) -> Identity:
    """Join all sources. `world_size` is what a manifest says; `named_hosts` are hosts that manifests or paths name;
    `dump_paths` says where the dumps of a rank lie."""
    who = Identity()
    for node in (said.process.node for said in sorted(statements, key=by_trust)):
        if node is not None and not is_address(node):
            who.hosts.setdefault(short_name(node), node)
    for host in [*sorted(named_hosts), *sorted({host for host, _ in processes})]:
        if host_name(host) and not is_address(host):
            who.hosts.setdefault(short_name(host), host)
    for process in processes.values():
        for address in process.addresses:
            who.addresses.setdefault(address, process.host)

    tags = {tag for text in texts for tag in text.writers.tags}
    certain = set(dump_ranks) | tags | {said.rank for said in statements if said.rank is not None}
    for group in groups:
        certain.update(group.members or ())
    least = max([*(rank + 1 for rank in certain), world_size or 0], default=0)
    world_comm = _world_communicator(processes, least)
    reports = who.reports = own_reports(reports, processes, statements, max(least, world_comm[1] if world_comm else 0))
    largest = max((report.size for report in reports), default=0)
    who.world_size = max(least, world_comm[1] if world_comm else 0, largest) or None
    who.ranks = certain | set(range(world_size or 0)) | set(range(world_comm[1] if world_comm else 0))
    statements = [*statements, *_ras_statements(reports, who.world_size)]
    who.ranks.update(said.rank for said in statements if said.rank is not None)

    _join_pids(who, texts, processes, statements, world_comm[0] if world_comm else None)
    _resolve(who, texts, statements)
    _members(who, processes, groups, world_comm)
    for text in texts:
        text.rank = _own_rank(who, text)
        if text.rank is not None and text.is_rank_log:
            who.ranks.add(text.rank)
        if text.node is None:
            text.node = host_in_path(who, text.parts)
    _share_directories(who, texts)
    _name_nodes(who, texts, processes, dump_paths)
    return who


def host_in_path(who: Identity, parts: tuple[str, ...]) -> str | None:
    """The innermost directory of a path that has the name of a host that something else names too."""
    return next((who.hosts[short_name(part)] for part in reversed(parts[:-1]) if short_name(part) in who.hosts), None)


def _own_rank(who: Identity, text: TextFile) -> int | None:
    """The rank whose file it is: by PyTorch's tags, by the one NCCL process in it, by its name."""
    hint = text.name_rank
    if len(text.nccl.processes) == 1:
        by_pid = who.rank_of(*next(iter(text.nccl.processes)))
        hint = by_pid if by_pid is not None else hint
    return text.writers.own_rank(hint)


_WORKER = re.compile(r"^attempt_\d+/(\d{1,6})$")


def _share_directories(who: Identity, texts: Sequence[TextFile]) -> None:
    """torchrun's ``attempt_0/<local rank>/``: one worker's files are one rank's, though not each of them says so.

    Ranks of one node follow each other, so one worker that is known tells who the others are; also the one that was
    killed before it could write a word.
    """
    where = [text.parts[:-1] if _WORKER.match("/".join(text.parts[-3:-1])) else None for text in texts]
    starts: dict[tuple[str, ...], set[int]] = {}
    for text, worker in zip(texts, where, strict=True):
        if text.rank is not None and worker is not None:
            starts.setdefault(worker[:-1], set()).add(text.rank - int(worker[-1]))
    for text, worker in zip(texts, where, strict=True):
        if worker is None:
            continue
        start = starts.get(worker[:-1], set())
        if len(start) == 1 and min(start) >= 0:
            who.by_directory[worker] = min(start) + int(worker[-1])
            if text.rank is None and not text.writers.shared:
                text.rank = who.by_directory[worker]
                who.ranks.add(text.rank)


def _world_communicator(processes: Mapping[tuple[str, int], NcclProcess], least: int) -> tuple[str, int] | None:
    """The first communicator that can hold every rank, as (id, size); its ranks are the job's ranks.

    None where the largest one is smaller than the job, or where two of that size have no process in common: then they
    are parts of a job whose all-rank group never made a communicator.
    """
    size = max((comm.size for p in processes.values() for comm in p.comms), default=0)
    if size == 0 or size < least:
        return None
    holders: dict[str, set[tuple[str, int]]] = {}
    first: Counter[str] = Counter()
    for key, process in processes.items():
        whole_job = [comm for comm in process.comms if comm.size == size and comm.comm_id]
        for comm in whole_job:
            holders.setdefault(comm.comm_id or "", set()).add(key)
        if whole_job:
            first[whole_job[0].comm_id or ""] += 1
    everyone = set().union(*holders.values())
    if len(everyone) > size:
        return None
    most = max(len(keys) for keys in holders.values())
    if most < len(everyone) and any(not (a & b) for a in holders.values() for b in holders.values()):
        return None
    best = max(holders, key=lambda ident: (len(holders[ident]), first[ident], ident))
    return best, size


def own_reports(
    reports: Sequence[RasReport],
    processes: Mapping[tuple[str, int], NcclProcess],
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
        knows = any(report.comm_id in idents for report in answer)
        knows |= any(row.pid in pids for report in answer for row in report.ranks)
        size = max(report.size for report in answer)
        nobody_known = not idents and not pids and size <= world_size
        if knows or nobody_known or world_size in {0, size}:
            kept.extend(answer)
    return kept


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


def _join_pids(
    who: Identity,
    texts: Sequence[TextFile],
    processes: Mapping[tuple[str, int], NcclProcess],
    statements: Sequence[Statement],
    world: str | None,
) -> None:
    for said in sorted(statements, key=by_trust):
        process_said = said.process
        if said.rank is not None and process_said.pid is not None and process_said.node is not None:
            _claim(who, (short_name(process_said.node), process_said.pid), said.rank, process_said.source)
    for (host, pid), process in sorted(processes.items()):
        key = (short_name(host), pid)
        for comm in process.comms:
            if comm.comm_id == world:
                _claim(who, key, comm.rank, comm.source)
                break
        if len(process.tags) == 1 and process.first_source is not None:
            _claim(who, key, next(iter(process.tags)), process.first_source)
    for text in texts:
        if len(text.nccl.processes) == 1 and text.name_rank is not None:
            ((host, pid),) = text.nccl.processes
            who.by_process.setdefault((short_name(host), pid), text.name_rank)
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
    unknown: list[Statement] = []
    for said in sorted(statements, key=by_trust):
        rank, process = said.rank, said.process
        if rank is None and said.task is not None and not torchrun:
            rank = said.task if who.world_size is None or said.task < who.world_size else None
        if rank is None:
            rank = who.rank_of(process.node, process.pid)
        if rank is None and process.local_rank is not None:
            rank = who.by_local_rank.get((short_name(process.node or ""), process.local_rank))
        if rank is None:
            unknown.append(said)
        else:
            who.statements.append(replace(said, process=replace(process, rank=rank)))
            who.ranks.add(rank)
    for said in unknown:
        process = said.process
        if process.exit_status is not None:
            what = f"pid {process.pid}" if process.pid is not None else f"task {said.task}"
            if process.pid is None and said.task is None:
                what = f"local rank {process.local_rank}" if process.local_rank is not None else "a process"
            who.gaps.append(
                Gap(
                    f"rank of {what}",
                    f"a launcher says that it ended with {process.exit_status}, and nothing says which rank it was",
                    node=process.node,
                    source=process.source,
                )
            )


def _members(
    who: Identity,
    processes: Mapping[tuple[str, int], NcclProcess],
    groups: Sequence[Group],
    world: tuple[str, int] | None,
) -> None:
    """Which rank of the job each member of each communicator is: by its process, else by a process group that fits."""
    sizes: dict[str, int] = {}
    for (host, pid), process in sorted(processes.items()):
        rank = who.rank_of(host, pid)
        for comm in process.comms:
            ident = comm.comm_id or ""
            sizes[ident] = comm.size
            if rank is not None:
                who.members.setdefault(ident, {})[comm.rank] = rank
    for ident, size in sizes.items():
        known = who.members.setdefault(ident, {})
        if world is not None and size == world[1] == who.world_size and all(a == b for a, b in known.items()):
            who.members[ident] = {rank: rank for rank in range(size)}
            continue
        if len(known) == size or not known:
            continue
        fitting = {
            group.members
            for group in groups
            if group.members is not None
            and len(group.members) == size
            and all(group.members[inner] == outer for inner, outer in known.items() if inner < size)
        }
        if len(fitting) == 1:
            who.members[ident] = dict(enumerate(fitting.pop()))


def _name_nodes(
    who: Identity,
    texts: Sequence[TextFile],
    processes: Mapping[tuple[str, int], NcclProcess],
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
                say(rank, host_in_path(who, parts), None)
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
