"""`load`: any mix of directories, files and archives becomes one `Job`.

Content says what a file is. What is known about a rank from several places is merged; what contradicts itself, is
damaged, is too large or belongs to another attempt becomes a gap. The result does not depend on the order of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from hangscope.errors import DamagedError, HangscopeError, InputError, NotFoundError, contained
from hangscope.model import (
    Dump,
    Facts,
    Failure,
    Gap,
    Job,
    KernelMessage,
    LastWord,
    NodePrograms,
    Process,
    PythonError,
    RasReport,
    Source,
    ThreadStack,
    WatchdogReport,
)
from hangscope.model.statements import Statement
from hangscope.model.times import LogTimes
from hangscope.reader.join import log_scopes, pod_failures, resolve_failures, resolve_nccl, resolve_ranks
from hangscope.reader.join.assemble import Assembled, assemble
from hangscope.reader.join.assign_errors import assign_ranks
from hangscope.reader.join.earlier_attempts import newest_failures, newest_processes, newest_reports
from hangscope.reader.join.merge_processes import merge_processes
from hangscope.reader.join.nccl_processes import merge_nccl
from hangscope.reader.join.who_is_who import Identity, identify
from hangscope.reader.logs.last_words import named_rank, quoted
from hangscope.reader.logs.log_file import TextFile
from hangscope.reader.logs.nccl_logs import NcclProcess
from hangscope.reader.raw_evidence import Evidence
from hangscope.reader.read_files import Engine, gather
from hangscope.reader.reading_progress import Progress
from hangscope.reader.sources import live_status
from hangscope.reader.sources.incident_files import Manifest
from hangscope.safeio.evidence_names import Known
from hangscope.safeio.held import held_trees
from hangscope.sources import slices
from hangscope.sources.nccl_ras.read import Answer as RasAnswer
from hangscope.sources.report import SourceFile, SourceReport, together

T = TypeVar("T")


class _OfALine(Protocol):
    """A fact that was read from one line."""

    @property
    def source(self) -> Source | None: ...


def load(
    paths: Sequence[str | Path] | str | Path,
    *,
    full: bool = False,
    progress: Progress | None = None,
    engine: Engine | None = None,
    known: Known | None = None,
    job: str | None = None,
) -> Job:
    """Read everything under the paths that hangscope knows, and say what it means for one job.

    Of huge rings only what the rules need is kept, unless it is asked for in `full`. `progress` gets the bytes read so
    far, of all there are, and the file that was read.

    `engine` reads the files elsewhere, as `hangscope.cluster` does on Ray; without one they are read here. `known`
    is for whoever packs the same files afterwards (`write_bundle`). `job` says which one is meant where evidence of
    several jobs lies side by side.

    Raises `SeveralJobsError` where it does, and nobody said which; `NotFoundError` where a path does not exist or
    neither evidence nor a line of text lies under any of them; `DamagedError` where all that was there was refused.
    """
    given = [paths] if isinstance(paths, (str, Path)) else paths
    if not isinstance(given, (list, tuple)) or not all(isinstance(path, (str, Path)) for path in given):
        raise InputError(f"load() was given {type(paths).__name__}", hint="give it a path, or a list of paths")
    with held_trees(given if engine is None else ()):
        evidence = gather(given, full=full, progress=progress, engine=engine, known=known, job=job)
    if not evidence.useful and evidence.refusals:
        raise DamagedError(f"no file in {', '.join(map(str, given))} could be used: {_reasons(evidence)}")
    if not evidence.useful and not any(lines for _, lines in evidence.unknown_texts):
        raise NotFoundError(
            f"nothing usable in {', '.join(str(path) for path in given) or 'no paths at all'}{_looked_at(evidence)}",
            hint="looked for flight recorder dumps, training and NCCL logs, launchers' messages, RAS answers, rosters, "
            "stacks, kernel messages and black boxes, in files and in .tar, .gz and .zip archives; sources and "
            "documents (.py, .md, .html) are read only where they are named themselves",
        )
    inputs = tuple(str(path) for path in given)
    try:
        return _job(evidence, inputs)
    except Exception as error:
        why = contained(error)
    with held_trees(given if engine is None else ()):  # what was read before is used up
        return _job_without(gather(given, full=full, engine=engine, job=job), inputs, why)


_APART = (
    *("texts", "source_files", "errors", "statuses"),
    *("stacks", "statements", "nodes", "dumps"),
)
"""Kinds of evidence, in the order in which they are left out where what was read cannot be put together."""


def _job_without(evidence: Evidence, inputs: tuple[str, ...], why: str) -> Job:
    """The job without the file that cannot be put together with the others, or without several of its kind, as a gap.

    Raises DamagedError where it is not one kind of evidence alone.
    """
    for kind in filter(partial(getattr, evidence), _APART):
        every = list(getattr(evidence, kind))
        if _try_without(evidence, kind, every, inputs) is None:
            continue
        suspects = every
        while len(suspects) > 1:
            half = len(suspects) // 2
            halves = (suspects[:half], suspects[half:])
            alone = next((part for part in halves if _try_without(evidence, kind, part, inputs) is not None), None)
            if alone is None:
                break
            suspects = alone
        job = _try_without(evidence, kind, suspects, inputs)
        if job is not None:
            files = sorted({_file_of(part) for part in suspects})
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            gap = Gap(f"file {files[0]}{more}", f"left out: {why}", source=Source(files[0]))
            return replace(job, gaps=(*job.gaps, gap))
    raise DamagedError(f"what was read cannot be put together: {why}")


def _try_without(evidence: Evidence, kind: str, parts: Sequence[Any], inputs: tuple[str, ...]) -> Job | None:
    without = set(map(id, parts))
    rest = replace(evidence, gaps=list(evidence.gaps))
    setattr(rest, kind, [part for part in getattr(evidence, kind) if id(part) not in without])
    try:
        return _job(rest, inputs, consume=False)
    except (MemoryError, HangscopeError):
        raise
    except Exception:
        return None


def _file_of(part: Any) -> str:
    """The file that one part of the evidence was read from."""
    if isinstance(part, tuple):  # beside its path
        return "/".join(part[-1]) if isinstance(part[-1], tuple) else _file_of(part[-1])
    reports = getattr(part, "reports", ())
    source = getattr(reports[0] if reports else part, "source", None)
    return str(getattr(part, "file", None) or getattr(source, "file", None) or "of unknown name")


_REASONS = 4


def _reasons(evidence: Evidence) -> str:
    """Why files were refused, in a few words each."""
    reasons = [f"{gap.source or gap.what}: {gap.why}" for gap in evidence.refusals]
    more = f"; and {len(reasons) - _REASONS} more" if len(reasons) > _REASONS else ""
    return "; ".join(sorted(reasons)[:_REASONS]) + more


def _looked_at(evidence: Evidence) -> str:
    """Which files were opened in vain, in a few words."""
    seen = sorted(evidence.looked_at)
    if not seen:
        return ""
    more = f" and {len(seen) - 4} more" if len(seen) > 4 else ""
    return f": looked at {', '.join(seen[:4])}{more}"


def _job(evidence: Evidence, inputs: tuple[str, ...], *, consume: bool = True) -> Job:
    """What all files together say. The dumps' columns are used up, unless they are not to `consume`."""
    statements = [*evidence.statements, *(said for node in evidence.nodes for said in node.statements)]
    manifest = _manifest(evidence)
    world_size = (manifest.world_size if manifest else None) or _announced_size(evidence)
    assembled = assemble(evidence.dumps, expected_ranks=_expected_ranks(statements, world_size), consume=consume)
    listed = ((said.process.node, said.process.pid) for said in statements)
    processes, start_ns, old = newest_processes(merge_nccl(evidence.texts), listed)
    evidence.gaps.extend(old)
    who = _identify(evidence, statements, processes, assembled, world_size)
    reports, foreign = resolve_nccl.ras_reports(evidence.reported_by(RasAnswer), who)
    evidence.gaps.extend(foreign)
    who.statements.extend(resolve_ranks.network_statements(who, processes))
    merged, said_of_ranks, conflicts = merge_processes(who)
    pod_failures.place_missing(evidence.pods, who)
    facts, unresolved = _facts(evidence, who, processes, reports, said_of_ranks, merged, assembled, start_ns)
    gaps = [*evidence.gaps, *assembled.gaps, *who.gaps, *conflicts, *_gaps_in_files(evidence), *unresolved]
    ranks = tuple(sorted(who.ranks | _ranks_named(facts, who) | evidence.refused | set(assembled.ranks)))
    gaps.extend(missing_dumps(ranks, assembled, merged, facts, who.nodes, evidence.refused))
    return Job(
        ops=assembled.ops,
        groups=tuple(assembled.groups),
        ranks=ranks,
        dumps=_dumps_with_nodes(assembled, who),
        status=assembled.status,
        nodes=dict(sorted(who.nodes.items())),
        processes=merged,
        facts=replace(facts, machines=_machines(evidence)),
        gaps=_once(gaps),
        inputs=inputs,
        job_id=_first([m.job for m in evidence.manifests], [n.job for n in evidence.nodes]),
        attempt=_first([m.attempt for m in evidence.manifests], [n.attempt for n in evidence.nodes]),
        reason=manifest.reason if manifest else evidence.reason_without_manifest,
        recovered_s=manifest.recovered_s if manifest else None,
        first_kept=assembled.first_kept,
        captured_at_ns=_captured_at_ns(evidence, manifest),
    )


def _announced_size(evidence: Evidence) -> int | None:
    """How many ranks `run` saw coming, where all logs that tell it agree."""
    said = {text.printed.world_size for text in evidence.texts} - {None}
    return said.pop() if len(said) == 1 else None


def _machines(evidence: Evidence) -> dict[str, str]:
    """Pod → its machine, by what `run` in it was given, or by the API server; empty where nobody says."""
    given = {status.node: status.machine for status in evidence.statuses}
    named = {pod: machine for pod, machine in given.items() if pod is not None and machine is not None}
    return {**named, **pod_failures.machines(evidence.pods)}


def _expected_ranks(statements: Sequence[Statement], world_size: int | None) -> list[int] | None:
    expected = {said.rank for said in statements if said.rank is not None}
    return sorted(expected.union(range(world_size or 0))) or None


def _identify(
    evidence: Evidence,
    statements: Sequence[Statement],
    processes: Mapping[tuple[str, int], NcclProcess],
    assembled: Assembled,
    world_size: int | None,
) -> Identity:
    launched = (said for text in evidence.texts for said in resolve_ranks.launcher_statements(text))
    return identify(
        evidence.texts,
        processes,
        [*statements, *_statements_of_sources(evidence), *launched],
        assembled.groups,
        assembled.ranks,
        world_size,
        _named_hosts(evidence),
        {rank: [evidence.paths[dump.file] for dump in of_rank] for rank, of_rank in assembled.dumps.items()},
        [report for answer in evidence.reported_by(RasAnswer) for report in answer.reports],
        [pod.name for pod in evidence.pods],
    )


def _ranks_named(facts: Facts, who: Identity) -> set[int]:
    """Every rank that failures, reports, exceptions, stacks or logs name as a member of the job."""
    named = resolve_failures.ranks_named(facts.failures, who.nodes)
    named.update(report.rank for report in facts.watchdog)
    named.update(error.rank for error in facts.errors if error.rank is not None)
    named.update(stack.rank for stack in facts.stacks if stack.rank is not None)
    named.update(rank for scope in facts.logs for rank in scope.ranks)
    named.update(core.rank for core in facts.gpu_cores if core.rank is not None)
    return named


def _dumps_with_nodes(assembled: Assembled, who: Identity) -> dict[int, tuple[Dump, ...]]:
    return {
        rank: tuple(replace(dump, node=dump.node or who.nodes.get(rank)) for dump in of_rank)
        for rank, of_rank in assembled.dumps.items()
    }


def _manifest(evidence: Evidence) -> Manifest | None:
    """Of the whole incident; the newest where there are several."""
    return max(evidence.manifests, key=lambda m: (m.captured_at_ns or 0, m.source.file), default=None)


def _captured_at_ns(evidence: Evidence, manifest: Manifest | None) -> int | None:
    if manifest is not None and manifest.captured_at_ns is not None:
        return manifest.captured_at_ns
    return max((node.captured_at_ns or 0 for node in evidence.nodes), default=0) or None


def _gaps_in_files(evidence: Evidence) -> Iterator[Gap]:
    """What manifests, nodes' files and RAS answers say is missing."""
    for manifest in evidence.manifests:
        yield from manifest.gaps
    for node in evidence.nodes:
        yield from node.gaps
    for answer in evidence.reported_by(RasAnswer):
        yield from answer.gaps


def _first(*sources: Sequence[T | None]) -> T | None:
    return next((value for values in sources for value in values if value is not None), None)


def _named_hosts(evidence: Evidence) -> set[str]:
    hosts = {node.node for node in evidence.nodes if node.node}
    hosts.update(host for text in evidence.texts for host in text.kernel.hosts)
    return hosts | evidence.hosts


@dataclass
class _Reported:
    """What ranks and launchers say went wrong, and what of it cannot be used."""

    watchdog: list[WatchdogReport] = field(default_factory=list)
    errors: list[PythonError] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


def _facts(
    evidence: Evidence,
    who: Identity,
    processes: Mapping[tuple[str, int], NcclProcess],
    reports: list[RasReport],
    statements: list[Process],
    merged: Mapping[int, Process],
    assembled: Assembled,
    start_ns: int | None,
) -> tuple[Facts, list[Gap]]:
    texts = evidence.texts
    times = LogTimes(_full_dates(evidence, processes, assembled))
    reported = _with_pods(_of_newest_attempt(_reported(evidence, who, times), start_ns), evidence, who, assembled)
    _give_errors_ranks(reported, merged, assembled)
    comms = resolve_nccl.communicators(who, processes)
    said = _said_by_sources(evidence, who)
    events = resolve_nccl.transport_events(who, processes, texts, comms, times)
    kernel = [*resolve_ranks.kernel_messages(texts, who), *_counted_kills(evidence)]
    kernel += said.kernel
    other_failures = [*resolve_failures.of_transport(events), *resolve_failures.of_kernel(kernel, who)]
    reported = _resolved(reported, [*other_failures, *said.failures, *_failures_in_files(evidence)], merged, assembled)
    watchdog = reported.watchdog
    errors = reported.errors
    stacks = [*_stacks(texts, who, errors), *evidence.stacks]
    progress = log_scopes.log_progress(texts)
    printed = [verdict for text in texts for verdict in text.printed.found]
    quoted = _sources(watchdog, reported.failures, events, kernel, statements, progress, printed)
    facts = Facts(
        processes=tuple(statements),
        watchdog=tuple(watchdog),
        errors=tuple(resolve_ranks.without_echoes(errors)),
        transport=tuple(events),
        communicators=tuple(comms),
        ras=tuple(reports),
        stacks=tuple(stacks),
        sites=said.sites,
        calls=said.calls,
        claimed_groups=assembled.claimed,
        code=said.code,
        kernel=tuple(kernel),
        counters=said.counters,
        ports=tuple(resolve_nccl.network_ports(who, processes, said.ports)),
        recorder_off=_recorder_off(texts, assembled),
        clean_exits=tuple(_clean_exits(texts)),
        versions=_versions(evidence, assembled),
        log_ranks=tuple(sorted({(rank, text.file) for text in texts if text.is_rank_log for rank in _ranks_of(text)})),
        failures=tuple(reported.failures),
        logs=tuple(log_scopes.log_scopes(texts, times, _ranks_in_files(watchdog), incident=bool(evidence.manifests))),
        signs_of_life=log_scopes.signs_of_life(texts, watchdog, stacks, assembled.dumps),
        blackboxes=said.blackboxes,
        gpu_cores=said.gpu_cores,
        progress=tuple(progress),
        unknown_texts=() if evidence.useful else tuple(evidence.unknown_texts),
        printed_verdicts=tuple(printed),
        last_words=tuple(_last_words(texts)),
        others=tuple(other for node in evidence.nodes for other in node.others),
        quotes=_quotes(texts, quoted),
        programs=_newest_of_node(evidence.reported_by(NodePrograms)),
        ray=next(iter(said.ray), None),
    )
    return facts, [*reported.gaps, *said.gaps]


def _by_source(evidence: Evidence) -> Iterator[tuple[ModuleType, list[SourceFile]]]:
    """The sources that left files here, with these, whatever order they were read in."""
    for module in slices.found("read", "__name__"):
        files = [each for each in evidence.source_files if each.source == slices.name_of(module)]
        if files:
            yield module, files


def _statements_of_sources(evidence: Evidence) -> Iterator[Statement]:
    """Who the processes are, as sources say it."""
    for module, files in _by_source(evidence):
        if hasattr(module, "statements"):
            yield from module.statements(files)


def _said_by_sources(evidence: Evidence, who: Identity) -> SourceReport:
    """What the files of each source say together, now that it is known who is who. Gaps of one file were added as it
    was read."""
    said = []
    for module, files in _by_source(evidence):
        if hasattr(module, "join"):
            said.append(module.join(files, who))
        else:
            reports = (each.report for each in files if isinstance(each.report, SourceReport))
            said.append(replace(together(reports), gaps=()))
    return together(said)


def _newest_of_node(programs: Iterable[NodePrograms]) -> tuple[NodePrograms, ...]:
    """Of a node's files the last one by name: a copy of another time must not be joined with it."""
    return tuple({each.node: each for each in sorted(programs, key=lambda each: each.source.file)}.values())


def _resolved(
    reported: _Reported, failures: Iterable[Failure], merged: Mapping[int, Process], assembled: Assembled
) -> _Reported:
    """With these failures; each report once, and without what only follows from the job's end."""
    every = [*reported.failures, *failures]
    errors = reported.errors
    if not assembled.dumps:
        errors = resolve_ranks.without_cut_off(errors, merged, [*reported.watchdog, *every])
    errors = resolve_failures.explained(errors, every)
    watchdog, set_too_short = resolve_failures.without_short_timeouts(resolve_ranks.distinct(reported.watchdog))
    every += set_too_short
    every = resolve_failures.distinct(every, watchdog, errors)
    stopped = resolve_failures.Stopped(watchdog, every)
    asked = resolve_failures.CoresAsked(watchdog, every)
    return replace(
        reported,
        watchdog=asked.reports(stopped.reports(watchdog)),
        errors=asked.errors(errors),
        failures=asked.failures(stopped.failures(every)),
    )


def _with_pods(reported: _Reported, evidence: Evidence, who: Identity, assembled: Assembled) -> _Reported:
    """And what Kubernetes says of pods. The last poll of a rank that is gone does not show that it was there then."""
    dumped = {rank for rank, dumps in assembled.dumps.items() if any(dump.role != "poll" for dump in dumps)}
    at_ns = _captured_at_ns(evidence, _manifest(evidence))
    failures, history = pod_failures.of_pods(evidence.pods, who, dumped, at_ns)
    return replace(reported, failures=[*reported.failures, *failures], gaps=[*reported.gaps, *history])


def _failures_in_files(evidence: Evidence) -> Iterator[Failure]:
    """What counters of the fabric and manifests say failed."""
    yield from resolve_failures.of_fabric(evidence.texts)
    yield from resolve_failures.of_hang_detector(evidence.texts)
    for manifest in evidence.manifests:
        yield from manifest.failures
    if not evidence.manifests and not evidence.dumps:
        yield from live_status.ended_by_signal(evidence.statuses)


def _stacks(texts: Iterable[TextFile], who: Identity, errors: Sequence[PythonError]) -> list[ThreadStack]:
    stacks = [stack for text in texts for stack in resolve_ranks.thread_stacks(text, who)]
    return [*stacks, *resolve_ranks.interrupted(errors, stacks)]


def _sources(*facts_of_lines: Iterable[_OfALine]) -> list[Source | None]:
    """Every line that something was read from, and those beside it that explain it."""
    found: list[Source | None] = []
    for fact in chain.from_iterable(facts_of_lines):
        found.append(fact.source)
        if isinstance(fact, Failure):
            found.extend(fact.beside)
    return found


def _quotes(texts: Iterable[TextFile], cited: Iterable[Source | None]) -> dict[Source, str]:
    """The lines that facts were read from."""
    by_name = {text.file: text.quotes for text in texts}
    found: dict[Source, str] = {}
    for source in filter(None, cited):
        quote = by_name[source.file].line(source.line) if source.file in by_name else None
        if quote is not None:
            found[source] = quote
    return found


def _reported(evidence: Evidence, who: Identity, times: LogTimes) -> _Reported:
    """What all logs and error files say, in ranks of the job."""
    reported = _Reported()
    torchrun = any(text.launcher.elastic for text in evidence.texts)
    for text in evidence.texts:
        found, lost = resolve_ranks.watchdog_reports(text, times, who)
        reported.watchdog.extend(found)
        reported.errors.extend(resolve_ranks.python_errors(text, times, who))
        reported.failures.extend(resolve_failures.in_logs(text, who, times, torchrun=torchrun))
        reported.failures.extend(resolve_failures.of_reports(lost, text, times))
        if lost:
            what = f"ranks of {len(lost)} watchdog lines"
            reported.gaps.append(Gap(what, "the lines name no global rank", source=Source(text.file)))
    reported.errors.extend(resolve_ranks.error_file(*found, who) for found in evidence.errors)
    return reported


def _of_newest_attempt(reported: _Reported, start_ns: int | None) -> _Reported:
    watchdog, errors, old = newest_reports(reported.watchdog, reported.errors, start_ns)
    return _Reported(watchdog, errors, newest_failures(reported.failures, old), [*reported.gaps, *old])


def _give_errors_ranks(reported: _Reported, processes: Mapping[int, Process], assembled: Assembled) -> None:
    """Finds the ranks of exceptions that name none; those of them that lost a peer become reports."""
    nameless = {error.source for error in reported.errors if error.rank is None}
    reported.errors = assign_ranks(reported.errors, processes)
    if any(dump.role != "poll" for of_rank in assembled.dumps.values() for dump in of_rank):
        found = (error for error in reported.errors if error.source in nameless)
        reported.watchdog.extend(resolve_ranks.lost_peers(found))
    # Else, without a word of those that were lost, it stays the failure that it is.


def _clean_exits(texts: Sequence[TextFile]) -> Iterator[tuple[int, Source]]:
    for text in texts:
        for note in text.torch.clean_exits:
            rank = text.writers.rank_of(note.tag, note.stream, text.rank)
            if rank is not None:
                yield rank, text.torch.source(note.number)


def _counted_kills(evidence: Evidence) -> list[KernelMessage]:
    """Out-of-memory kills that a node's file counted, in the place of the kernel's own words."""
    return [
        KernelMessage(
            "oom",
            f"the control group of pid {pid} counted {kills} out-of-memory kills",
            node.source,
            node.node,
            pid=pid,
        )
        for node in evidence.nodes
        for pid, kills in node.oom_kills
    ]


def _ranks_in_files(watchdog: Sequence[WatchdogReport]) -> dict[str, set[int]]:
    """File → ranks whose reports stand in it, for files that tag no line."""
    found: dict[str, set[int]] = {}
    for report in watchdog:
        found.setdefault(report.source.file, set()).add(report.rank)
    return found


def _recorder_off(texts: Sequence[TextFile], assembled: Assembled) -> tuple[Source, ...]:
    """Lines that say the recorder is off. PyTorch prints the same words where looking up a stack took too long, so they
    count only where nothing shows that the recorder did record."""
    if len(assembled.ops) or any(reading.report.frames for text in texts for reading in text.torch.reports):
        return ()
    return tuple(text.torch.source(note.number) for text in texts for note in text.torch.recorder_off)


def _last_words(texts: Sequence[TextFile]) -> Iterator[LastWord]:
    for text in texts:
        found = text.words.found
        newest = text.words.newest if not found else None
        for line in (newest,) if newest is not None else found:
            rank = text.writers.rank_of(line.tag, line.stream, text.rank)
            where = Source(text.file, f"line {line.number}")
            yield LastWord(rank, quoted(line.text), where, named_rank(line.text), of_trouble=bool(found))


def _ranks_of(text: TextFile) -> set[int]:
    return set(text.writers.tags) if text.writers.tags else {text.rank} if text.rank is not None else set()


def _full_dates(
    evidence: Evidence, processes: Mapping[tuple[str, int], NcclProcess], assembled: Assembled
) -> Iterator[int]:
    """Moments of this job with their year, for log lines that have none."""
    if len(assembled.ops):
        yield int(assembled.ops.column("created_ns").max())
    for process in processes.values():
        yield from (w.at_ns for w in process.warnings if w.at_ns is not None)
        yield from (c.started_at_ns for c in process.comms if c.started_at_ns is not None)
    ends = (said.process.ended_at_s for said in evidence.statements)
    yield from (int(ended_at_s * 1e9) for ended_at_s in ends if ended_at_s is not None)
    yield from (m.captured_at_ns for m in evidence.manifests if m.captured_at_ns is not None)
    yield from (n.captured_at_ns for n in evidence.nodes if n.captured_at_ns is not None)


def _versions(evidence: Evidence, assembled: Assembled) -> dict[str, str]:
    """The best source wins: a manifest, then the dumps, then NCCL's log and RAS, then a guess from line numbers."""
    found: dict[str, str] = {}
    for said in [*(node.versions for node in evidence.nodes), *(m.versions for m in evidence.manifests)]:
        for key, value in said.items():
            found.setdefault(key, value)
    for version in filter(None, _nccl_versions(evidence, assembled)):
        found.setdefault("nccl", version)
    for text in evidence.texts:
        if text.nccl.cuda_version:
            found.setdefault("cuda", text.nccl.cuda_version)
    guesses = {version for text in evidence.texts for version in text.torch.torch_versions}
    if len(guesses) == 1:
        found.setdefault("torch", f"{guesses.pop()} (by log fingerprint)")
    return found


def _nccl_versions(evidence: Evidence, assembled: Assembled) -> Iterator[str | None]:
    """The best source first: the dumps, NCCL's own log, RAS, what PyTorch's log quotes."""
    dumps = (dump for of_rank in assembled.dumps.values() for dump in of_rank)
    yield from sorted({dump.library_version for dump in dumps if dump.library_version})
    yield from (text.nccl.nccl_version for text in evidence.texts)
    yield from (answer.nccl_version for answer in evidence.reported_by(RasAnswer))
    yield from (text.torch.nccl_version for text in evidence.texts)


def missing_dumps(
    ranks: Sequence[int],
    assembled: Assembled,
    processes: Mapping[int, Process],
    made: Facts,
    nodes: Mapping[int, str],
    refused: Set[int] = frozenset(),
) -> list[Gap]:
    """One gap for every rank without a dump, with the reason where something tells it."""
    missing = [rank for rank in ranks if rank not in assembled.dumps]
    raised = {e.rank: e for e in reversed(made.errors) if not e.consequence}
    if not assembled.dumps and not refused:
        why = "the log says the flight recorder is off" if made.recorder_off else ""
        return [Gap("flight recorder dumps", why or "none from any rank")]
    said = {gap.rank for gap in assembled.gaps if gap.rank is not None} | refused
    return [
        Gap(f"no dump of rank {rank}", _why_missing(processes.get(rank), raised.get(rank)), rank, nodes.get(rank))
        for rank in missing
        if rank not in said
    ]


def _why_missing(process: Process | None, error: PythonError | None) -> str:
    if process is not None and process.exit_status is not None and process.exit_status < 0:
        return f"its process was killed by signal {-process.exit_status}"
    if error is not None:
        return f"it ended with {error.type}"
    if process is not None and process.exit_status is not None:
        return f"its process ended with status {process.exit_status}"
    if process is not None and process.alive_at_end:
        return "its process was still running and wrote none"
    return ""


def _once(gaps: Sequence[Gap]) -> tuple[Gap, ...]:
    return tuple(dict.fromkeys(gaps))
