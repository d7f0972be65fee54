"""`hangscope serve`: the fleet's memory, in one process."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import click

from hangscope.cli.output import note, write
from hangscope.errors import SettingsError

PORT = 8642
NEEDED = ("alembic", "fastapi", "psycopg", "sqlalchemy", "uvicorn")


def _listen(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[str, int]:
    host, _, port = value.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise click.BadParameter("HOST:PORT, for example 0.0.0.0:8642")
    return host.strip("[]") or "127.0.0.1", int(port)


def check_extra() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise SettingsError(f"a server needs {', '.join(missing)}", hint="pip install 'hangscope[serve]'")


def _data() -> Path:
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(home) / "hangscope" / "server"


@click.command(
    epilog="Examples: hangscope serve; hangscope serve --new-token agents --scope push;"
    " hangscope serve --database postgresql://hangscope@db/hangscope --blobs s3://bucket/hangscope --listen :8642"
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=_data,
    show_default="~/.local/share/hangscope/server",
    help="Where the database and the blobs are kept, unless the next two say otherwise.",
    envvar="HANGSCOPE_DATA",
    show_envvar=True,
)
@click.option(
    "--database",
    metavar="URL",
    help="postgresql://user@host/name, which several servers can share; else SQLite in --data.",
    envvar="HANGSCOPE_DATABASE",
    show_envvar=True,
)
@click.option(
    "--blobs",
    metavar="DIR|URL",
    help="Another folder for bundles and pages, or s3://bucket/prefix and the like, by fsspec.",
    envvar="HANGSCOPE_BLOBS",
    show_envvar=True,
)
@click.option(
    "--listen", metavar="HOST:PORT", default=f"127.0.0.1:{PORT}", show_default=True, callback=_listen, help="Address."
)
@click.option("--url", metavar="URL", help="How people reach it, for links: https://hangscope.example.org.")
@click.option("--digesters", type=click.IntRange(0, 64), default=1, show_default=True, help="Diagnoses at a time.")
@click.option("--tls-cert", type=click.Path(path_type=Path, exists=True), help="Serve HTTPS with this certificate.")
@click.option("--tls-key", type=click.Path(path_type=Path, exists=True), help="Its key.")
@click.option("--no-private-webhooks", is_flag=True, help="Webhooks may not lead to loopback or a private network.")
@click.option("--new-token", metavar="NAME", help="Make a token, print it and end.")
@click.option("--project", default="default", show_default=True, help="For --new-token: its project, made if new.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(["push", "read", "admin"]),
    help="For --new-token: what it may do; may be given more than once.  [default: push]",
)
def command(
    data: Path,
    database: str | None,
    blobs: str | None,
    listen: tuple[str, int],
    url: str | None,
    digesters: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    no_private_webhooks: bool,
    new_token: str | None,
    project: str,
    scopes: tuple[str, ...],
) -> int:
    """Keep the incidents of all jobs in one place: pages in the browser, an API, and which machines are suspect.

    Without options it keeps everything in a folder, listens on this machine alone, and prints a first token once.
    Agents send with `hangscope run --server URL`, people with `hangscope push PATH --server URL`.
    """
    check_extra()
    from hangscope.server.serve_process import ServeOptions, open_stores, serve
    from hangscope.server.store import access_tokens

    options = ServeOptions(
        data=data,
        database=database,
        blobs=blobs,
        host=listen[0],
        port=listen[1],
        base_url=url,
        digesters=digesters,
        tls_cert=tls_cert,
        tls_key=tls_key,
        private_webhooks=not no_private_webhooks,
    )
    opened = open_stores(options)
    if new_token is not None:
        with opened.database.write() as connection:
            token = access_tokens.make(
                connection, access_tokens.project(connection, project), new_token, scopes or ("push",)
            )
        write(f"{token}\n")
        return 0
    first = access_tokens.first_token(opened.database)
    if first is not None:
        note(f"the first token, shown this once: {first}")
        note("it may do everything in the project `default`; for agents: hangscope serve --new-token agents")
    serve(options, opened, note)
    return 0
