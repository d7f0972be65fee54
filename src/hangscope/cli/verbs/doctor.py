"""`hangscope doctor`: what would happen here if a collective hung now."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path

import click

from hangscope.bundle.redact import scan
from hangscope.cli.output import width, write
from hangscope.cli.verbs.env import torch_here
from hangscope.errors import SettingsError
from hangscope.reader.dumps import decoder
from hangscope.recorder.doctor.examine import Examination, examine
from hangscope.recorder.doctor.finding import NOTE, OK, DoctorFinding
from hangscope.recorder.setup.torch_version import release_of
from hangscope.report.safe_text import safe


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON (docs/doctor.md).")
@click.option(
    "--world-size", type=click.IntRange(1, 10_000_000), help="Ranks in the job.  [default: from the environment]"
)
@click.option("--torch", "torch_version", metavar="VERSION", help="Assume this PyTorch version.  [default: found here]")
@click.option("--python", metavar="PROGRAM", help="Look for PyTorch where this interpreter does.  [default: python]")
@click.option("--backend", help="nccl, nccl2, nccl-legacy, gloo, …  [default: what this PyTorch may use]")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Also check the directory for incidents.")
def command(
    as_json: bool,
    world_size: int | None,
    torch_version: str | None,
    python: str | None,
    backend: str | None,
    directory: Path | None,
) -> int:
    """Check what would happen here if a collective hung now, and how to fix it.

    Run it where the job runs: same node, same container, same variables. Nothing is changed. Exit status: 0 if there is
    nothing worse than a note, 1 if there is a warning or a problem, 2 for options that cannot be used.
    """
    if torch_version is not None and release_of(torch_version) is None:
        raise SettingsError(f"{torch_version} is not a version of torch", hint="write it like 2.8 or 2.8.0+cu128")
    found = examine(
        environ=os.environ,
        torch=torch_here(python),
        torch_version=torch_version,
        backend=backend,
        directory=directory,
        world_size=world_size,
        more=[decoder_finding(), scanner_finding()],
    )
    if as_json:
        printed = json.dumps(found.as_json(), indent=1, ensure_ascii=False)
        # What a variable holds may turn the direction of writing, also on the terminal of who only looks at the JSON.
        write("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in printed) + "\n")
    else:
        write(text(found, width()))
    return 0 if found.worst in (NOTE, OK) else 1


def decoder_finding() -> DoctorFinding:
    """Which decoder a diagnosis here would read dumps with."""
    if decoder.in_use():
        return DoctorFinding("decoder", OK, "dumps are read here by the C decoder")
    if decoder.built():
        what = f"dumps are read here by Python: {decoder.VARIABLE}=python"
        return DoctorFinding("decoder", NOTE, what, "about twenty times slower", f"unset {decoder.VARIABLE}")
    return DoctorFinding(
        "decoder",
        NOTE,
        "dumps are read here by Python: the C decoder was not built",
        "about twenty times slower; it matters for a diagnosis of hundreds of ranks, and nothing else",
        "install a wheel, or a C compiler and Python's headers, then reinstall hangscope",
    )


def scanner_finding() -> DoctorFinding:
    """Which scanner a bundle here would look through logs with."""
    if scan.in_use():
        return DoctorFinding("scanner", OK, "logs are scanned for secrets here by the C scanner")
    why = "bundles of large logs take several times as long; they are the same to the byte"
    if scan.built():
        what = f"logs are scanned for secrets here by Python: {scan.VARIABLE}=python"
        return DoctorFinding("scanner", NOTE, what, why, f"unset {scan.VARIABLE}")
    what = "logs are scanned for secrets here by Python: the C scanner was not built"
    return DoctorFinding(
        "scanner", NOTE, what, why, "install a wheel, or a C compiler and Python's headers, then reinstall hangscope"
    )


def text(found: Examination, columns: int) -> str:
    """Readable without colour: each finding starts with its severity, and its reason and cure stand below."""
    lines = [*textwrap.wrap(safe(found.summary), columns), ""]
    for finding in found.findings:
        lines += _wrapped(f"{finding.severity:<8} ", finding.what, columns)
        if finding.why:
            lines += _wrapped(" " * 9, finding.why, columns)
        if finding.cure:
            lines += _wrapped(" " * 9 + "fix: ", finding.cure, columns)
    return "\n".join(lines) + "\n"


def _wrapped(start: str, body: str, columns: int) -> list[str]:
    return textwrap.wrap(
        safe(body),
        max(columns, 40),
        initial_indent=start,
        subsequent_indent=" " * 9,
        break_long_words=False,
        break_on_hyphens=False,
    )
