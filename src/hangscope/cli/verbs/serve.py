"""`hangscope serve`: the fleet's memory, in one process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib.util import find_spec
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from hangscope.cli.output import note, write
from hangscope.cli.verbs.push import warn_if_readable
from hangscope.errors import SettingsError
from hangscope.safeio.durable_file import durable_file

if TYPE_CHECKING:
    from hangscope.server.store.database import Database

PORT = 8642
FIRST_TOKEN = "first-token"
NEEDED = ("alembic", "fastapi", "psycopg", "sqlalchemy", "uvicorn")


def _listen(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[str, int]:
    host, _, port = value.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise click.BadParameter("HOST:PORT, for example 127.0.0.1:8642, or :8642 for all addresses of this machine")
    return host.strip("[]") if host != "*" else "", int(port)


def _listen_if_given(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, int] | None:
    return None if value is None else _listen(ctx, param, value)


def _networks(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(ip_network(value, strict=False) for value in values)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


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
    "--listen",
    metavar="HOST:PORT",
    default=f"127.0.0.1:{PORT}",
    show_default=True,
    callback=_listen,
    help="Address; `:8642` is every address of this machine.",
)
@click.option("--url", metavar="URL", help="How people reach it, for links: https://hangscope.example.org.")
@click.option("--digesters", type=click.IntRange(0, 64), default=1, show_default=True, help="Diagnoses at a time.")
@click.option("--tls-cert", type=click.Path(path_type=Path, exists=True), help="Serve HTTPS with this certificate.")
@click.option("--tls-key", type=click.Path(path_type=Path, exists=True), help="Its key.")
@click.option(
    "--private-webhooks/--no-private-webhooks",
    default=False,
    show_default=True,
    help="Whether webhooks may lead to loopback or a private network.",
)
@click.option(
    "--proxy",
    "proxies",
    metavar="ADDRESS",
    multiple=True,
    callback=_networks,
    help="An address or network of proxies that are believed who asks them (X-Forwarded-For, -Proto).",
)
@click.option(
    "--project-gib", type=click.IntRange(1), default=64, show_default=True, help="What one project may store, in GiB."
)
@click.option(
    "--first-token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Holds the first token of a new server, as a secret that is mounted; without it one is made.",
    envvar="HANGSCOPE_FIRST_TOKEN_FILE",
    show_envvar=True,
)
@click.option(
    "--admission",
    metavar="HOST:PORT",
    callback=_listen_if_given,
    help="Be a Kubernetes admission webhook instead, over HTTPS: adds the recorder's settings to training jobs' pods.",
)
@click.option(
    "--admission-kind",
    "admission_kinds",
    multiple=True,
    type=click.Choice(["PyTorchJob", "TrainJob", "JobSet", "RayCluster", "LeaderWorkerSet", "none"]),
    help="For --admission: whose pods, besides labelled ones; may be given more than once.  [default: all of these]",
)
@click.option(
    "--admission-claim",
    metavar="NAME",
    help="For --admission: a volume claim for the evidence.  [default: an emptyDir]",
)
@click.option(
    "--admission-library", metavar="DIR", help="For --admission: a directory of the machines with the black box in it."
)
@click.option("--new-token", metavar="NAME", help="Make a token, print it and end.")
@click.option("--project", default="default", show_default=True, help="For --new-token: its project, made if new.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(["push", "read", "triage", "admin"]),
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
    private_webhooks: bool,
    proxies: tuple[IPv4Network | IPv6Network, ...],
    project_gib: int,
    first_token_file: Path | None,
    admission: tuple[str, int] | None,
    admission_kinds: tuple[str, ...],
    admission_claim: str | None,
    admission_library: str | None,
    new_token: str | None,
    project: str,
    scopes: tuple[str, ...],
) -> int:
    """Keep the incidents of all jobs in one place: pages in the browser, an API, and which machines are suspect.

    Without options it keeps everything in a folder, listens on this machine alone, and shows a first token once.
    Agents send with `hangscope run --server URL`, people with `hangscope push PATH --server URL`.
    """
    if admission is not None:
        return _admit(admission, tls_cert, tls_key, admission_kinds, admission_claim, admission_library)
    check_extra()
    from hangscope.server.serve_process import WAIT_FOR_DATABASE_S, ServeOptions, open_stores, serve
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
        private_webhooks=private_webhooks,
        proxies=proxies,
        project_bytes=project_gib << 30,
    )
    if tls_key is not None:
        warn_if_readable(tls_key, note)
    opened = open_stores(options, wait_s=0.0 if new_token is not None else WAIT_FOR_DATABASE_S)
    if new_token is not None:
        with opened.database.write() as connection:
            token = access_tokens.make(
                connection, access_tokens.project(connection, project), new_token, scopes or ("push",)
            )
        write(f"{token}\n")
        return 0
    _first_token(opened.database, first_token_file, data)
    serve(options, opened, note)
    return 0


def _admit(
    address: tuple[str, int],
    certificate: Path | None,
    key: Path | None,
    kinds: tuple[str, ...],
    claim: str | None,
    library: str | None,
) -> int:
    """Until SIGTERM."""
    from hangscope.admission.https_server import AdmissionServer
    from hangscope.admission.pod_patch import KINDS, PatchOptions

    if certificate is None or key is None:
        raise SettingsError(
            "--admission needs --tls-cert and --tls-key",
            hint="the API server asks over HTTPS alone: docs/kubernetes.md",
        )
    if library is not None and not library.startswith("/"):
        raise SettingsError(f"--admission-library {library}: not an absolute path", hint="a directory of the machines")
    wanted = frozenset(kinds or KINDS) - {"none"}
    server = AdmissionServer(address[0], address[1], certificate, key, PatchOptions(wanted, claim, library))

    def stop(_: int, __: FrameType | None) -> None:
        threading.Thread(target=server.shutdown, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    note(f"answering the API server on {address[0] or '*'}:{server.server_port}")
    server.serve_forever()
    server.server_close()
    return 0


def _first_token(database: Database, given: Path | None, data: Path) -> None:
    """On a server without a token: the one that the operator gives, or a new one, shown on a terminal and else put into
    a file. What goes to stderr of a service is in journals and the logs of pods, which many may read."""
    from hangscope.safeio.safe_files import read_file
    from hangscope.server.store import access_tokens

    if given is not None:
        warn_if_readable(given, note)
        try:
            said = read_file(given, 4096).decode("ascii", "replace").strip()
        except OSError as error:
            raise SettingsError(f"{given}: {error.strerror}") from None
        if access_tokens.first_token(database, said) is not None:
            note(f"the first token is the one in {given}: it may do everything in the project `default`")
        return
    first = access_tokens.first_token(database)
    if first is None:
        return
    if sys.stderr.isatty():
        note(f"the first token, shown this once: {first}")
    else:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with durable_file(data, FIRST_TOKEN) as out:
            out.write(f"{first}\n".encode())
        note(f"the first token is in {data / FIRST_TOKEN}, for this user alone: delete it once you have taken it")
    note("it may do everything in the project `default`; for agents: hangscope serve --new-token agents")
