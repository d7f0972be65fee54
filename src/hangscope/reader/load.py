"""`load`: any mix of directories, files and archives becomes one `Job`.

Files are told apart by content. What is known about a rank from several places is merged; what contradicts itself, is
damaged, is too large or belongs to another attempt becomes a gap. The result does not depend on the order of files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from hangscope.errors import DamagedError, NotFoundError
from hangscope.model import Facts, Gap, Job, KernelMessage, Process, PythonError, RasReport, Source, WatchdogReport
from hangscope.reader import counters, dumps, facts, files, nccl_logs, ras, rosters
from hangscope.reader.files import Found
from hangscope.reader.identity import Identity, identify, merge_nccl, merge_processes
from hangscope.reader.rosters import Manifest, NodeFile, Note
from hangscope.reader.texts import TextFile

try:
    from hangscope.reader import archives
except ImportError:  # being written
    archives = None  # type: ignore[assignment]

T = TypeVar("T")

JSON_LIMIT = 64 << 20
SAME_INCIDENT_NS = 3_600_000_000_000
"""Manifests of one attempt captured within this time are parts of one incident."""


@dataclass
class Evidence:
    """Everything that was recognised, before anyone is identified."""

    dumps: list[dumps.RawDump] = field(default_factory=list)
    texts: list[TextFile] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    nodes: list[NodeFile] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)
    answers: list[ras.Answer] = field(default_factory=list)
    errors: list[tuple[rosters.ErrorFile, str, str | None]] = field(default_factory=list)
    snapshots: list[counters.Snapshot] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Shown name of a file → its path, for the directories it lies in."""

    @property
    def useful(self) -> bool:
        return bool(
            self.dumps
            or any(text.useful for text in self.texts)
            or self.notes
            or self.nodes
            or self.answers
            or self.errors
            or self.snapshots
        )


def load(paths: Sequence[str | Path] | str | Path) -> Job:
    """Read everything under the paths that hangscope knows, and say what it means for one job.

    Raises `NotFoundError` where a path does not exist or nothing usable lies under any of them.
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    evidence = Evidence()
    found = files.find(given, evidence.gaps)
    found = files.newest_attempt(_unpack(found, evidence), evidence.gaps)
    found = _newest_incident(found, evidence)
    hosts = _host_directories(found, evidence)
    for item in found:
        _read(item, hosts, evidence)
    if not evidence.useful:
        raise NotFoundError(
            f"nothing usable in {', '.join(str(path) for path in given)}",
            hint="looked for flight recorder dumps, training and NCCL logs, RAS answers, rosters, stacks and kernel "
            "messages, in files and in .tar and .gz archives",
        )
    return _job(evidence, tuple(str(path) for path in given))


# ---- reading --------------------------------------------------------------------------------------------------------


def _unpack(found: list[Found], evidence: Evidence) -> list[Found]:
    """Archives replaced by their members."""
    out: list[Found] = []
    if archives is None:
        return found
    for item in found:
        if not archives.recognise(item.head()):
            out.append(item)
            continue
        try:
            for name, data in archives.members(item.read(), file=item.file):
                parts = (*item.parts, *(part for part in name.split("/") if part not in {"", ".", ".."}))
                if files.wanted(parts[-1]):
                    out.append(files.from_bytes(f"{item.file}!{name}" if name else item.file, parts, data))
        except DamagedError as error:
            evidence.gaps.append(Gap(f"archive {item.file}", str(error), source=Source(item.file)))
    return out


def _newest_incident(found: list[Found], evidence: Evidence) -> list[Found]:
    """Where manifests of several incidents lie side by side, the newest alone."""
    manifests: list[tuple[tuple[str, ...], Manifest]] = []
    for item in found:
        if item.size > JSON_LIMIT or b"hangscope.incident/" not in item.head():
            continue
        value = _json(item)
        if isinstance(value, Mapping) and str(value.get("schema", "")).startswith("hangscope.incident/"):
            manifests.append((item.parts[:-1], rosters.read_manifest(value, item.file)))
    if not manifests:
        return found
    newest = max(manifests, key=lambda m: (m[1].captured_at_ns or 0, m[1].attempt or "", m[0]))[1]
    evidence.manifests = [m for _, m in manifests if _same_incident(m, newest)]
    others = [where for where, m in manifests if not _same_incident(m, newest)]
    ours = [where for where, m in manifests if _same_incident(m, newest)]
    kept = [item for item in found if not _below(item.parts, others) or _below(item.parts, ours, others)]
    for where in sorted(others):
        name = "/".join(where)
        evidence.gaps.append(
            Gap(f"incident {name}", "another attempt or job; the newest one is used", source=Source(name))
        )
    return kept


def _same_incident(one: Manifest, newest: Manifest) -> bool:
    if (one.job, one.attempt) != (newest.job, newest.attempt):
        return False
    if one.captured_at_ns is None or newest.captured_at_ns is None:
        return True
    return newest.captured_at_ns - one.captured_at_ns <= SAME_INCIDENT_NS


def _below(parts: tuple[str, ...], tops: list[tuple[str, ...]], unless: Sequence[tuple[str, ...]] = ()) -> bool:
    """Whether a path lies under one of the directories, and no deeper under one of the others."""
    depth = max((len(top) for top in tops if parts[: len(top)] == top), default=-1)
    return depth > max((len(top) for top in unless if parts[: len(top)] == top), default=-1)


def _host_directories(found: list[Found], evidence: Evidence) -> dict[tuple[str, ...], str]:
    """Directories that stand for a host because a node.json in them says so, or because they are ``nodes/<host>``."""
    hosts: dict[tuple[str, ...], str] = {}
    for item in found:
        for index, part in enumerate(item.parts[:-2]):
            if part == "nodes" and evidence.manifests:
                hosts.setdefault(item.parts[: index + 2], item.parts[index + 1])
        if item.size <= JSON_LIMIT and b"hangscope.node/" in item.head()[:4096]:
            value = _json(item)
            if isinstance(value, Mapping) and isinstance(value.get("node"), str):
                hosts[item.parts[:-1]] = value["node"]
    return hosts


def _directory_host(parts: tuple[str, ...], hosts: Mapping[tuple[str, ...], str]) -> str | None:
    for end in range(len(parts) - 1, 0, -1):
        if parts[:end] in hosts:
            return hosts[parts[:end]]
    return None


def _read(item: Found, hosts: Mapping[tuple[str, ...], str], evidence: Evidence) -> None:
    """Recognise one file and put what it says into the evidence."""
    head = item.head()
    node = _directory_host(item.parts, hosts)
    try:
        if ras.recognise(head):
            evidence.answers.append(ras.read(item.read(), item.file))
        elif dumps.recognise(head):
            _read_dump(item, node, evidence)
        elif head.lstrip()[:1] in (b"{", b"[") and item.size <= JSON_LIMIT and _read_json(item, node, evidence):
            pass
        elif files.looks_like_text(head):
            text = TextFile(item.file, item.parts, node)
            with item.opener() as stream:
                text.read(stream, item.size)
            evidence.gaps.extend(text.gaps)
            if text.useful or text.is_rank_log:
                evidence.texts.append(text)
    except OSError as error:
        evidence.gaps.append(Gap(f"file {item.file}", f"cannot be read: {error}", source=Source(item.file)))


def _read_dump(item: Found, node: str | None, evidence: Evidence) -> None:
    evidence.paths[item.file] = item.parts
    role = "poll" if item.name.startswith("last_rank_") else "dump"
    try:
        evidence.dumps.append(dumps.read(item.read(), file=item.file, hint_rank=None, node=node, role=role))
    except DamagedError as error:
        evidence.gaps.append(Gap(f"dump {item.file}", str(error), node=node, source=Source(item.file)))


def _json(item: Found) -> Any:
    try:
        return json.loads(item.read())
    except (ValueError, RecursionError, UnicodeDecodeError):
        return None


def _read_json(item: Found, node: str | None, evidence: Evidence) -> bool:
    """Whether it was JSON of a known kind, or JSON that must not be read as anything."""
    value = _json(item)
    if value is None:
        return False
    if isinstance(value, Mapping):
        schema = str(value.get("schema", ""))
        if {"culprits", "case"} <= value.keys() or schema.startswith("hangscope.diagnosis/") or "culprits" in value:
            return True  # a truth or an earlier verdict is no evidence
        if schema.startswith("hangscope.incident/"):
            return True
        if schema.startswith("hangscope.node/"):
            evidence.nodes.append(rosters.read_node(value, item.file))
            return True
        if counters.is_snapshot(value):
            evidence.snapshots.append(counters.read(value, item.file, node))
            return True
        if rosters.is_error_file(value):
            evidence.errors.append((rosters.read_error_file(value, item.file), item.file, node))
            return True
    if rosters.is_roster(value):
        evidence.notes.extend(rosters.read_roster(value, item.file))
        return True
    return isinstance(value, Mapping) and not item.name.endswith((".log", ".txt", ".out", ".err"))


# ---- putting together -----------------------------------------------------------------------------------------------


def _job(evidence: Evidence, inputs: tuple[str, ...]) -> Job:
    notes = [*evidence.notes, *(note for node in evidence.nodes for note in node.notes)]
    manifest = max(evidence.manifests, key=lambda m: (m.captured_at_ns or 0, m.source.file), default=None)
    world_size = manifest.world_size if manifest else None
    expected = {note.rank for note in notes if note.rank is not None} | set(range(world_size or 0))
    assembled = dumps.assemble(evidence.dumps, expected_ranks=sorted(expected) or None)
    processes = merge_nccl(evidence.texts)
    for text in evidence.texts:
        notes.extend(facts.launcher_notes(text))
    who = identify(
        evidence.texts,
        processes,
        notes,
        assembled.groups,
        assembled.ranks,
        world_size,
        _named_hosts(evidence),
        {rank: [evidence.paths[dump.file] for dump in of_rank] for rank, of_rank in assembled.dumps.items()},
        [report for answer in evidence.answers for report in answer.reports],
    )
    reports = facts.ras_reports(evidence.answers, who)
    who.notes.extend(facts.network_notes(who, processes))
    merged, statements, conflicts = merge_processes(who)
    made = _facts(evidence, who, processes, reports, statements, assembled)
    gaps = [*evidence.gaps, *assembled.gaps, *who.gaps, *conflicts]
    gaps.extend(gap for manifest in evidence.manifests for gap in manifest.gaps)
    gaps.extend(gap for node in evidence.nodes for gap in node.gaps)
    gaps.extend(gap for answer in evidence.answers for gap in answer.gaps)
    gaps.extend(made[1])
    ranks = tuple(sorted(who.ranks | set(assembled.ranks)))
    gaps.extend(missing_dumps(ranks, assembled, merged, made[0], who.nodes))
    return Job(
        ops=assembled.ops,
        groups=tuple(assembled.groups),
        ranks=ranks,
        dumps={
            rank: tuple(replace(dump, node=dump.node or who.nodes.get(rank)) for dump in of_rank)
            for rank, of_rank in assembled.dumps.items()
        },
        status=assembled.status,
        nodes=dict(sorted(who.nodes.items())),
        processes=merged,
        facts=made[0],
        gaps=_once(gaps),
        inputs=inputs,
        job_id=_first([m.job for m in evidence.manifests], [n.job for n in evidence.nodes]),
        attempt=_first([m.attempt for m in evidence.manifests], [n.attempt for n in evidence.nodes]),
        reason=manifest.reason if manifest else None,
        first_kept=assembled.first_kept,
        captured_at_ns=_first(
            [manifest.captured_at_ns] if manifest else [],
            [max((n.captured_at_ns or 0 for n in evidence.nodes), default=0) or None],
        ),
    )


def _first(*sources: Sequence[T | None]) -> T | None:
    return next((value for values in sources for value in values if value is not None), None)


def _named_hosts(evidence: Evidence) -> set[str]:
    hosts = {node.node for node in evidence.nodes if node.node}
    hosts.update(host for text in evidence.texts for host in text.kernel.hosts)
    hosts.update(text.node for text in evidence.texts if text.node)
    return hosts


def _facts(
    evidence: Evidence,
    who: Identity,
    processes: Mapping[tuple[str, int], nccl_logs.Process],
    reports: list[RasReport],
    statements: list[Process],
    assembled: dumps.Assembled,
) -> tuple[Facts, list[Gap]]:
    texts = evidence.texts
    times = facts.Times(_full_dates(evidence, processes, assembled))
    gaps: list[Gap] = []
    watchdog: list[WatchdogReport] = []
    errors: list[PythonError] = []
    for text in texts:
        found, lost = facts.watchdog_reports(text, times, who)
        watchdog.extend(found)
        errors.extend(facts.python_errors(text, times, who))
        if lost:
            gaps.append(
                Gap(f"ranks of {lost} watchdog lines", "the lines name no global rank", source=Source(text.file))
            )
    errors.extend(facts.error_file(error, file, node, who) for error, file, node in evidence.errors)
    comms = facts.communicators(who, processes)
    kernel = [message for text in texts for message in facts.kernel_messages(text, who)]
    for node in evidence.nodes:
        kernel.extend(
            KernelMessage(
                "oom",
                f"the control group of pid {pid} counted {kills} out-of-memory kills",
                node.source,
                node.node,
                pid=pid,
            )
            for pid, kills in node.oom_kills
        )
    return Facts(
        processes=tuple(statements),
        watchdog=tuple(watchdog),
        errors=tuple(facts.without_echoes(errors)),
        transport=tuple(facts.transport_events(who, processes, texts, comms, times)),
        communicators=tuple(comms),
        ras=tuple(reports),
        stacks=tuple(stack for text in texts for stack in facts.thread_stacks(text, who)),
        kernel=tuple(kernel),
        counters=tuple(counters.changes(evidence.snapshots)),
        recorder_off=_recorder_off(texts, assembled),
        clean_exits=tuple(
            sorted(
                (rank, text.torch.source(note.number))
                for text in texts
                for note in text.torch.clean_exits
                if (rank := text.writers.rank_of(note.tag, note.stream, text.rank)) is not None
            )
        ),
        versions=_versions(evidence, assembled),
        log_ranks=tuple(sorted({(rank, text.file) for text in texts if text.is_rank_log for rank in _ranks_of(text)})),
    ), gaps


def _recorder_off(texts: Sequence[TextFile], assembled: dumps.Assembled) -> tuple[Source, ...]:
    """Lines that say the recorder is off. PyTorch prints the same words where looking up a stack took too long, so they
    count only where nothing shows that the recorder did record."""
    if len(assembled.ops) or any(draft.frames for text in texts for draft in text.torch.reports):
        return ()
    return tuple(text.torch.source(note.number) for text in texts for note in text.torch.recorder_off)


def _ranks_of(text: TextFile) -> set[int]:
    return set(text.writers.tags) if text.writers.tags else {text.rank} if text.rank is not None else set()


def _full_dates(
    evidence: Evidence, processes: Mapping[tuple[str, int], nccl_logs.Process], assembled: dumps.Assembled
) -> Iterator[int]:
    """Moments of this job with their year, for log lines that have none."""
    if len(assembled.ops):
        yield int(assembled.ops.column("created_ns").max())
    for process in processes.values():
        yield from (w.at_ns for w in process.warnings if w.at_ns is not None)
        yield from (c.started_at_ns for c in process.comms if c.started_at_ns is not None)
    yield from (int(n.ended_at_s * 1e9) for n in evidence.notes if n.ended_at_s is not None)
    yield from (m.captured_at_ns for m in evidence.manifests if m.captured_at_ns is not None)
    yield from (n.captured_at_ns for n in evidence.nodes if n.captured_at_ns is not None)


def _versions(evidence: Evidence, assembled: dumps.Assembled) -> dict[str, str]:
    """The best source wins: a manifest, then the dumps, then NCCL's log and RAS, then a guess from line numbers."""
    found: dict[str, str] = {}
    for said in [*(node.versions for node in evidence.nodes), *(m.versions for m in evidence.manifests)]:
        for key, value in said.items():
            found.setdefault(key, value)
    libraries = sorted(
        {d.library_version for of_rank in assembled.dumps.values() for d in of_rank if d.library_version}
    )
    logs = [text.nccl.nccl_version for text in evidence.texts] + [answer.nccl_version for answer in evidence.answers]
    quoted = [text.torch.nccl_version for text in evidence.texts]
    for version in (*libraries, *logs, *quoted):
        if version:
            found.setdefault("nccl", version)
    for text in evidence.texts:
        if text.nccl.cuda_version:
            found.setdefault("cuda", text.nccl.cuda_version)
    guesses = {version for text in evidence.texts for version in text.torch.torch_versions}
    if len(guesses) == 1:
        found.setdefault("torch", f"{guesses.pop()} (by log fingerprint)")
    return found


def missing_dumps(
    ranks: Sequence[int],
    assembled: dumps.Assembled,
    processes: Mapping[int, Process],
    made: Facts,
    nodes: Mapping[int, str],
) -> list[Gap]:
    """One gap for every rank without a dump, with the reason where something tells it."""
    missing = [rank for rank in ranks if rank not in assembled.dumps]
    if not assembled.dumps:
        why = "the log says that the flight recorder is off" if made.recorder_off else ""
        return [Gap("flight recorder dumps", why or "there is none of any rank")]
    said = {gap.rank for gap in assembled.gaps if gap.rank is not None and "dump" in gap.what}
    return [
        Gap(f"no dump of rank {rank}", _why_missing(rank, processes.get(rank), made), rank, nodes.get(rank))
        for rank in missing
        if rank not in said
    ]


def _why_missing(rank: int, process: Process | None, made: Facts) -> str:
    if process is not None and process.exit_status is not None and process.exit_status < 0:
        return f"its process was ended by signal {-process.exit_status}"
    error = next((e for e in made.errors if e.rank == rank and not e.consequence), None)
    if error is not None:
        return f"it ended with {error.type}"
    if process is not None and process.exit_status is not None:
        return f"its process ended with status {process.exit_status}"
    if process is not None and process.alive_at_end:
        return "its process was still there and wrote none"
    return ""


def _once(gaps: Sequence[Gap]) -> tuple[Gap, ...]:
    return tuple(dict.fromkeys(gaps))
