"""`hangscope diagnose PATH…`: what hung the job."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hangscope.cli.given_paths import load_given
from hangscope.cli.loading_notes import note_how_it_was_read
from hangscope.cli.output import progress, width, write, write_lines
from hangscope.cli.pasted import as_given, with_pasted
from hangscope.cli.progress_bar import bar

if TYPE_CHECKING:
    from hangscope.push.server_client import ServerClient


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON (schema hangscope.diagnosis/1).")
@click.option("-v", "--verbose", is_flag=True, help="Add the chain of waits, whole stacks, every source and gap.")
@click.option("--job", metavar="NAME", help="Of several jobs in one folder, this one.")
@click.option(
    "--full",
    is_flag=True,
    help="Keep all entries of huge ring buffers, which takes memory.  [default: their end and what is unfinished]",
)
@click.option(
    "--engine",
    type=click.Choice(("local", "ray")),
    default="local",
    help="Where to read: on this machine, or on a Ray cluster.",
)
@click.option(
    "--ray-address", metavar="ADDRESS", help="The Ray cluster.  [default: RAY_ADDRESS, else one running here]"
)
@click.option(
    "--server",
    metavar="URL",
    help="Ask a `hangscope serve` what other jobs say about this hang.  [default: nobody is asked]",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Holds its token, of scope read.  [env var: HANGSCOPE_TOKEN_FILE; or the token itself in HANGSCOPE_TOKEN]",
)
@click.option(
    "--width", "asked_width", type=click.IntRange(min=40), help="Columns to use.  [default: COLUMNS, else 80]"
)
def command(
    paths: tuple[str, ...],
    as_json: bool,
    verbose: bool,
    job: str | None,
    full: bool,
    engine: str,
    ray_address: str | None,
    server: str | None,
    token_file: Path | None,
    asked_width: int | None,
) -> int:
    """Name the rank, node, operation, code line and link that hung a job.

    PATH is anything: an incident, a bundle, a folder tree of dumps and logs, single files; `-`, /dev/stdin and <(…)
    are logs that come through a pipe. Files are recognised by what is in them, and nothing is written beside them.
    With --engine ray it may also be NODE:/path, of a node of the cluster, or a URL of an object store.

    Exit status: 0 no hang, 1 a hang with a named cause, 2 unusable input, 3 a hang whose cause the evidence does not
    name.
    """
    from hangscope.diagnosis import diagnose

    client = _client(server, token_file)
    readers = None
    if engine == "ray":
        from hangscope.cluster.ray_engine import RayEngine

        with progress("connecting to Ray"):
            readers = RayEngine(ray_address)
    with with_pasted(paths) as given, bar(f"reading {', '.join(paths)}") as update:
        loaded = load_given(given, full=full, progress=update, engine=readers, job=job)
    note_how_it_was_read(loaded)
    with progress("diagnosing"):
        verdict = diagnose(loaded)
    if client is not None:
        from hangscope.cli.ask_history import with_history

        with progress(f"asking {server}"):
            verdict = with_history(verdict, loaded, client)
    if as_json:
        from hangscope.report.export import to_json

        write(as_given(to_json(replace(verdict, inputs=paths)), given, paths))
    else:
        from hangscope.report.terminal import render

        write_lines(render(verdict, width=width(asked_width), verbose=verbose, job=loaded))
    return verdict.exit_status


def _client(server: str | None, token_file: Path | None) -> ServerClient | None:
    """The server to ask. A wrong address and a missing token are said before anything is read. HANGSCOPE_SERVER is not
    looked at: a diagnosis talks to nobody unless --server says so."""
    if server is None:
        return None
    from hangscope.cli.ask_history import DEADLINE_S
    from hangscope.cli.verbs.push import token
    from hangscope.push.server_client import ServerClient

    return ServerClient(server, token(token_file, os.environ), timeout_s=DEADLINE_S)
