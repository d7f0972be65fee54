"""`hangscope bundle PATH`: the one file that a support ticket needs."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hangscope.cli.given_paths import newest_of, one_resolved
from hangscope.cli.output import note, progress, write
from hangscope.cli.pasted import STANDARD_INPUT_NAME, with_pasted
from hangscope.cli.progress_bar import bar
from hangscope.cli.size_options import size
from hangscope.errors import InputError, NotFoundError, SettingsError, SeveralJobsError

if TYPE_CHECKING:
    from hangscope.bundle.pack import Bundle, Options, Reports
    from hangscope.bundle.redact.redact_file import Keep
    from hangscope.bundle.shrink import Involved
    from hangscope.diagnosis.verdict import Diagnosis
    from hangscope.model import Job
    from hangscope.safeio.evidence_names import Known


@click.command(epilog="Example: hangscope bundle hangscope/48121/0 -o ticket-4711.tar.gz --max-size 50MB")
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="The bundle.  [default: by PATH]")
@click.option("--no-redact", is_flag=True, help="Do not redact secrets and user names.")
@click.option(
    "--pseudonymise",
    is_flag=True,
    help="Replace hosts, addresses and paths with aliases; the map stays on this machine.",
)
@click.option("--all-lines", is_flag=True, help="Also keep log lines that are not evidence, redacted.")
@click.option("--only-evidence", is_flag=True, help="Keep only log lines that are evidence (the default).")
@click.option("--map", "map_file", metavar="FILE", type=click.Path(path_type=Path), help="Where aliases are kept.")
@click.option("--max-size", callback=size, metavar="SIZE", help="Drop the least useful evidence to fit: 50MB, 1GiB.")
@click.option("--job", metavar="NAME", help="Of several jobs in one folder, this one.")
@click.option("--force", is_flag=True, help="Overwrite a bundle that is there.")
@click.option("--no-verdict", is_flag=True, help="Do not diagnose: no verdict, no page and no ticket in the bundle.")
@click.option("--verify", "only_verify", is_flag=True, help="PATH is a bundle: check every name and checksum in it.")
@click.option("--unpack", metavar="DIR", type=click.Path(path_type=Path), help="PATH is a bundle: unpack it safely.")
def command(
    path: Path,
    output: Path | None,
    no_redact: bool,
    pseudonymise: bool,
    all_lines: bool,
    only_evidence: bool,
    map_file: Path | None,
    max_size: int | None,
    job: str | None,
    force: bool,
    no_verdict: bool,
    only_verify: bool,
    unpack: Path | None,
) -> int:
    """Make one file of an incident, or of any folder of dumps and logs, with the verdict and a ticket in it.

    Of logs it carries the lines that are evidence; secrets, user names and home directories in them are redacted, also
    inside dumps. The name of the bundle goes to stdout, what was replaced and left out to stderr.
    """
    path = one_resolved(path)
    if only_verify or unpack is not None:
        return _open(path, unpack)
    for option, given in (("--pseudonymise", pseudonymise), ("--only-evidence", only_evidence)):
        if no_redact and given:
            raise SettingsError(f"--no-redact and {option} contradict each other", hint="choose one")
    if all_lines and only_evidence:
        raise SettingsError("--all-lines and --only-evidence contradict each other", hint="choose one")
    from hangscope.bundle.pack import Options

    options = Options(redact=not no_redact, pseudonymise=pseudonymise, map_file=map_file, max_bytes=max_size)
    if not (all_lines or no_redact):
        options = replace(options, keep=_keep(()))
    asked = path
    with with_pasted((str(asked),)) as kept:
        # Absolute, so that it can be parted from what is inside, also where it was ".".
        path = _newest_of_run(_of_job(Path(os.path.abspath(kept[0])), job))
        name = path.name if kept[0] == str(asked) else STANDARD_INPUT_NAME
        target = _target(output or Path(f"{_stem(name)}.bundle.tar.gz"), force=force)
        try:
            return _make_of(path, target, options, verdict=not no_verdict)
        except SeveralJobsError as error:
            newest = newest_of(error, [path]) if job is None else None
            if newest is None:
                raise
            target = _target(output or Path(f"{_stem(newest.name)}.bundle.tar.gz"), force=force)
            return _make_of(newest, target, options, verdict=not no_verdict)


def _of_job(path: Path, job: str | None) -> Path:
    """Where the evidence of the job lies that is meant: in a folder of its own."""
    if job is None:
        return path
    from hangscope.reader.load import load
    from hangscope.reader.pick_job import choose

    try:
        with progress(f"looking for {job}"):
            load([path])
    except SeveralJobsError as error:
        files = choose(error.jobs, job, [path]).files
        folder = Path(os.path.commonpath([os.path.dirname(file) for file in files]))
        if folder == path or any(Path(file).is_relative_to(folder) for one in error.jobs for file in one.files - files):
            raise SettingsError(
                f"{path}: the files of {job} lie among those of others", hint="copy them into a folder of their own"
            ) from None
        return folder
    return path


def _newest_of_run(path: Path) -> Path:
    """Of a run with several incidents the newest, as it is diagnosed."""
    from hangscope.incident import inventory

    found = inventory.incidents(path) if inventory.has_later(path) else []
    if found and found[-1].path != path:
        note(f"the newest of {len(found)} incidents of this run: {found[-1].path}")
    return found[-1].path if found else path


def _make_of(path: Path, target: Path, options: Options, *, verdict: bool) -> int:
    """Of a bundle, what is in it; of anything else itself."""
    if not _is_bundle(path):
        return _make(path, target, options, verdict=verdict)
    from hangscope.bundle.unpack import extract

    with tempfile.TemporaryDirectory(prefix="hangscope-") as folder:
        extract(path, Path(folder) / "incident")
        return _make(Path(folder) / "incident", target, options, verdict=verdict)


_PACKED = (".zip", ".tar", ".gz", ".tgz")


def _stem(name: str) -> str:
    """A file's name without what says how it is packed."""
    while name.endswith(_PACKED):
        name = name.rpartition(".")[0]
    return name


def _target(target: Path, *, force: bool) -> Path:
    """Where the bundle goes, checked before anything is read: a large job takes minutes."""
    if target.is_dir():
        raise SettingsError(f"{target} is a directory", hint=f"name the file: {target / 'hang.tar.gz'}")
    if not target.name.endswith((".tar.gz", ".tgz")):
        hint = f"-o {_stem(str(target)) or 'hang'}.tar.gz"
        raise SettingsError(f"{target}: a bundle is a .tar.gz, whatever its name", hint=hint)
    if target.exists() and not force:
        raise SettingsError(f"{target} is there already", hint="--force overwrites it")
    return target


def _make(path: Path, target: Path, options: Options, *, verdict: bool) -> int:
    from hangscope.bundle.pack import write_bundle

    known: Known = {}
    if verdict:
        options = _with_verdict(path, options, known)
    with bar(f"bundling {path.name}") as shown:
        try:
            made = write_bundle(path, target, options, progress=shown, known=known)
        except OSError as error:
            blamed = error.filename if isinstance(error.filename, str) else str(target)
            what = str(target) if ".part" in blamed or error.errno in (errno.ENOSPC, errno.EDQUOT) else blamed
            raise SettingsError(f"{what}: {error.strerror or error}") from None
    _report(made)
    write(f"{made.path}\n")
    return 0


def _with_verdict(path: Path, options: Options, known: Known) -> Options:
    """Verdict, page and ticket, where the evidence allows them; a bundle is worth making without them too."""
    from hangscope.diagnosis import diagnose
    from hangscope.reader.load import load

    try:
        with progress(f"diagnosing {path}"):
            job = load([path], known=known)
            found = diagnose(job)
    except NotFoundError as error:
        if not path.exists():
            raise
        note(f"no verdict in the bundle: {error}")
        return options
    prefix = _prefix(path)
    only_evidence = options.keep is not None
    return replace(
        options,
        reports=lambda clean: _reports(
            found, job, lambda said: clean(_sayable(said, prefix, only_evidence)), clean.host
        ),
        involved=involved(found, job, path),
        keep=_keep(_cited(found, prefix)) if only_evidence else None,
    )


def _reports(found: Diagnosis, job: Job, clean: Callable[[str], str], clean_host: Callable[[str], str]) -> Reports:
    """What is said about the evidence, in words of which every name and sentence went through `clean`, and every name
    of a host through `clean_host`."""
    import json

    from hangscope.bundle.pack import Reports
    from hangscope.report.export import to_dict
    from hangscope.report.page.render_page import render_page
    from hangscope.report.redacted_verdict import redacted
    from hangscope.report.terminal import render_text
    from hangscope.report.ticket import render_ticket

    verdict, shown = redacted(found, job, clean, clean_host)
    return Reports(
        json=json.dumps(to_dict(verdict), indent=1) + "\n",
        text=render_text(verdict),
        page=lambda: render_page(verdict, shown),
        ticket=lambda files: render_ticket(verdict, shown, files=files),
    )


def _sayable(said: str, prefix: str, only_evidence: bool) -> str:
    """A name or a sentence of the verdict with files as the bundle names them, not as they were reached here. Of a text
    of several lines, such as an exception's message, what is evidence."""
    from hangscope.reader.evidence_lines import lines_of_evidence

    said = "." if f"{said}/" == prefix else said.replace(prefix, "")
    return lines_of_evidence(said)[0] if only_evidence and "\n" in said else said


def _cited(found: Diagnosis, prefix: str) -> Iterator[tuple[str, int]]:
    """(file as the bundle names it, line) of whatever the verdict cites."""
    for source in [source for finding in (*found.why, *found.evidence) for source in finding.sources]:
        if source.place.startswith("line "):
            yield source.file.removeprefix(prefix), int(source.place[5:].partition("-")[0])


def _keep(cited: Iterable[tuple[str, int]]) -> Keep:
    from hangscope.reader.evidence_lines import keep_evidence

    lines: dict[str, set[int]] = {}
    for file, line in cited:
        lines.setdefault(file, set()).add(line)
    return lambda name, source, out: keep_evidence(source, out, lines.get(name, ()), name)


def involved(found: Diagnosis, job: Job, path: Path) -> Involved:
    """Whose evidence the verdict rests on: what a bundle of limited size may not leave out."""
    from hangscope.bundle.shrink import Involved

    ranks = {culprit.rank for culprit in found.culprits}
    nodes = {culprit.node for culprit in found.culprits}
    if found.first_reported is not None:
        ranks.add(found.first_reported.rank)
    if found.link is not None:
        ranks |= {found.link.sender.rank, found.link.receiver.rank}
        nodes |= {found.link.sender.node, found.link.receiver.node}
    cited = {source.file for finding in found.why for source in finding.sources}
    pids = {job.processes[rank].pid for rank in ranks if rank in job.processes}
    prefix = _prefix(path)
    return Involved(
        ranks=frozenset(ranks),
        nodes=frozenset(node for node in nodes if node),
        pids=frozenset(pid for pid in pids if pid is not None),
        files=frozenset(file.removeprefix(prefix) for file in cited.union(_files_of(job, ranks))),
    )


def _files_of(job: Job, ranks: set[int]) -> Iterator[str]:
    """Dumps, logs and stacks of these ranks."""
    yield from (dump.file for rank in ranks for dump in job.dumps.get(rank, ()))
    yield from (file for rank, file in job.facts.log_ranks if rank in ranks)
    yield from (comm.source.file for comm in job.facts.communicators if comm.rank in ranks and comm.source)
    yield from (stack.source.file for stack in job.facts.stacks if stack.rank in ranks)


def _prefix(path: Path) -> str:
    """What stands in front of the names that the bundle will have."""
    return f"{str(path if path.is_dir() else path.parent).rstrip('/')}/"


_MOST_NOTES = 50
"""Lines of one kind on a terminal; a hostile tree may have a hundred thousand things to name."""


def _report(made: Bundle) -> None:
    """What was replaced, left out and kept back, on stderr."""
    from hangscope.text import plural
    from hangscope.text import size as human

    note(f"{plural(len(made.manifest.files), 'file')}, {human(made.size)}")
    if made.replaced:
        note("replaced: " + ", ".join(f"{count} {kind}" for kind, count in made.replaced.items()))
    if made.lines_left_out:
        lines = sum(made.lines_left_out.values())
        logs = plural(len(made.lines_left_out), "log")
        note(f"{lines:,} lines of {logs} are not evidence and stay here; --all-lines includes them")
    for what, count in made.dropped.items():
        note(f"left out to keep the bundle small: {what} ({plural(count, 'file')})")
    for gap in made.left_out[:_MOST_NOTES]:
        note(f"{gap.what}: {gap.why}")
    if len(made.left_out) > _MOST_NOTES:
        note(f"… and {len(made.left_out) - _MOST_NOTES} more, all named in the bundle's incident.json")
    if made.map_file is not None:
        note(f"the aliases are in {made.map_file}: keep it private")


def _open(bundle: Path, target: Path | None) -> int:
    from hangscope.bundle.unpack import extract, verify
    from hangscope.text import plural
    from hangscope.text import size as human

    with bar(f"checking {bundle.name}") as shown:
        try:
            opened = verify(bundle, progress=shown) if target is None else extract(bundle, target, progress=shown)
        except OSError as error:
            raise SettingsError(f"{target or bundle}: {error.strerror or error}") from None
    note(f"{bundle}: {plural(opened.files, 'file')}, {human(opened.bytes)}; all names and checksums match")
    if target is not None:
        write(f"{target}\n")
    return 0


def _is_bundle(path: Path) -> bool:
    """Whether a file is a bundle, so that it is opened and not packed as it is."""
    if not path.is_file():
        return False
    from hangscope.bundle.unpack import members

    try:
        for member, _ in members(path):
            if member.name.count("/") == 1 and member.name.endswith("/incident.json"):
                return True
    except InputError:
        return False
    return False
