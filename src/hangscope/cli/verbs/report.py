"""`hangscope report PATH… -o FILE…`: the diagnosis as files, each in the form that its ending names."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hangscope.cli.given_paths import load_given
from hangscope.cli.loading_notes import note_how_it_was_read
from hangscope.cli.output import PLAIN_WIDTH, note, progress
from hangscope.cli.pasted import as_given, with_pasted
from hangscope.cli.progress_bar import bar
from hangscope.errors import SettingsError
from hangscope.text import size

if TYPE_CHECKING:
    from hangscope.diagnosis.verdict import Diagnosis
    from hangscope.model import Job
    from hangscope.report.op_times import OpTimes

FORMATS = {
    "html": (".html", ".htm"),
    "json": (".json",),
    "txt": (".txt",),
    "md": (".md",),
    "perfetto": (".perfetto-trace", ".pftrace", ".perfetto-trace.gz", ".pftrace.gz"),
}
"""Every form with the endings that name it."""


@click.command(epilog="Example: hangscope report hangs/job-48121 -o hang.html -o hang.perfetto-trace")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o",
    "--output",
    "outputs",
    metavar="FILE",
    multiple=True,
    type=click.Path(),
    help="Output file; ends in .html, .perfetto-trace, .json, .txt or .md. May be given several times.",
)
@click.option("--format", "form", type=click.Choice(list(FORMATS)), help="The format, whatever the ending.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
@click.option("-v", "--verbose", is_flag=True, help="In .txt: the chain of waits, whole stacks, every source and gap.")
@click.option("--job", metavar="NAME", help="Of several jobs in one folder, this one.")
@click.option("--no-redact", is_flag=True, help="In .md: keep secrets and user names, which a ticket does not carry.")
@click.option("--full", is_flag=True, help="Keep all entries of huge ring buffers, as in `diagnose`.")
@click.option("--width", type=click.IntRange(min=40), default=PLAIN_WIDTH, show_default=True, help="In .txt: columns.")
def command(
    paths: tuple[str, ...],
    outputs: tuple[str, ...],
    form: str | None,
    force: bool,
    open_page: bool,
    verbose: bool,
    job: str | None,
    no_redact: bool,
    full: bool,
    width: int,
) -> int:
    """Write the diagnosis to files, each in the form that its ending names.

    .html is the web page, .perfetto-trace a trace for ui.perfetto.dev, .json the verdict for programs, .txt the text of
    `diagnose`, .md a ticket to paste into a support form: secrets, user names and home directories are redacted in it,
    as in a bundle.

    The exit status is that of `diagnose`: 0 no hang, 1 a hang with a named cause, 2 unusable input, 3 a hang whose
    cause the evidence does not name.
    """
    targets = _targets(outputs, form, force=force, open_page=open_page)
    from hangscope.diagnosis import diagnose

    with with_pasted(paths) as given, bar(f"reading {', '.join(paths)}") as update:
        loaded = load_given(given, full=full, progress=update, job=job)
    note_how_it_was_read(loaded)
    with progress(f"diagnosing {len(loaded.ranks):,} ranks, {len(loaded.ops):,} operations"):
        verdict = diagnose(loaded)
    there = tuple(Path(os.path.abspath(path)) for path in given if os.path.exists(path))  # what came by a pipe is gone
    redact = None if no_redact else there
    maker = _Maker(verdict, loaded, verbose, width, lambda text: as_given(text, given, paths), redact)
    for target, kind in targets:
        with progress(f"writing {target}"):
            data = maker.make(kind)
            _write(target, data)
        note(f"wrote {target} ({size(len(data))})")
    for text in maker.notes:
        note(text)
    if open_page:
        _open(next(target for target, kind in targets if kind == "html"))
    return verdict.exit_status


# ---- where to --------------------------------------------------------------------------------------------------------


def _targets(outputs: tuple[str, ...], form: str | None, *, force: bool, open_page: bool) -> list[tuple[Path, str]]:
    """Every file with its form. All are checked before anything is read: a large job takes minutes."""
    targets: list[tuple[Path, str]] = []
    for output in outputs:
        target = Path(output)
        kind = form or _form(target)
        if target in (known for known, _ in targets):
            raise SettingsError(f"{output} is given twice", hint="two formats of one job need two files")
        if target.is_dir():
            raise SettingsError(f"{output} is a directory", hint=f"name the file: {target / 'hang.html'}")
        if target.exists() and not force:
            raise SettingsError(f"{output} already exists", hint="--force overwrites it")
        targets.append((target, kind))
    if open_page and not any(kind == "html" for _, kind in targets):
        import tempfile

        targets.append((Path(tempfile.mkdtemp(prefix="hangscope-")) / "hang.html", "html"))
    if not targets:
        raise SettingsError("nothing to write", hint="-o hang.html writes the page, --open opens it")
    return targets


def _form(target: Path) -> str:
    name = target.name.lower()
    for form, endings in FORMATS.items():
        if name.endswith(endings):
            return form
    known = ", ".join(ending for endings in FORMATS.values() for ending in endings[:1])
    raise SettingsError(
        f"{target}: no report ends in {target.suffix!r}", hint=f"known are {known}; --format chooses one of them"
    )


def _write(target: Path, data: bytes) -> None:
    from hangscope.incident.layout import write_atomic

    try:
        write_atomic(target, data)
    except OSError as error:
        raise SettingsError(f"{target} cannot be written: {error.strerror}") from error


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        note(f"no browser could be opened: open {page} yourself")


# ---- what ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Maker:
    """Makes each form of one verdict; what two of them need is computed once."""

    verdict: Diagnosis
    job: Job
    verbose: bool
    width: int
    as_given: Callable[[str], str]
    """A text with files named as the user named them."""
    redact: tuple[Path, ...] | None = ()
    """The evidence whose users a ticket does not name; None: nothing is redacted."""
    notes: list[str] = field(default_factory=list)
    _times: OpTimes | None = None

    def make(self, form: str) -> bytes:
        if form == "perfetto":
            return self._perfetto()
        return self.as_given(self._text(form)).encode("utf-8", "backslashreplace")

    def _text(self, form: str) -> str:
        if form == "html":
            from hangscope.report.page.render_page import render_page

            return render_page(self.verdict, self.job, self.times())
        if form == "json":
            from hangscope.report.export import to_json

            return to_json(self.verdict)
        if form == "md":
            from hangscope.report.ticket import render_ticket

            verdict, job = self._redacted(self.redact) if self.redact is not None else (self.verdict, self.job)
            return render_ticket(verdict, job)
        from hangscope.report.terminal import render_text

        return render_text(self.verdict, width=self.width, verbose=self.verbose, job=self.job)

    def _redacted(self, evidence: tuple[Path, ...]) -> tuple[Diagnosis, Job]:
        """The verdict and its job for strangers, as a bundle has them."""
        from hangscope.bundle.pack import cleaner_for
        from hangscope.reader.evidence_lines import keep_evidence, lines_of_evidence
        from hangscope.report.redacted_verdict import redacted

        clean = cleaner_for(evidence, lambda name, stream, out: keep_evidence(stream, out, (), name))
        self.notes.append("secrets and user names are redacted in the ticket; --no-redact keeps them")
        return redacted(
            self.verdict,
            self.job,
            lambda said: clean(lines_of_evidence(said)[0] if "\n" in said else said),
            clean.host,
        )

    def _perfetto(self) -> bytes:
        from hangscope.report.perfetto import render_perfetto

        trace = render_perfetto(self.verdict, self.job, self.times())
        if trace.left_out:
            self.notes.append(f"the trace holds the last {trace.slices:,} operations; {trace.left_out:,} are left out")
        return trace.data

    def times(self) -> OpTimes:
        from hangscope.report.op_times import op_times

        if self._times is None:
            self._times = op_times(self.job)
        return self._times
