"""`hangscope push PATH…`: incidents, as redacted bundles, to a `hangscope serve`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hangscope.cli.given_paths import one_resolved
from hangscope.cli.output import note, write
from hangscope.errors import InputError, NotFoundError, SettingsError

if TYPE_CHECKING:
    from hangscope.incident.manifest import Manifest
    from hangscope.push.send_spooled import Sent

_LATER_HANG = re.compile(r"(?:^|\.)((?:hang|snapshot)-\d+)$")
NOT_SENT = 1


def token(token_file: Path | None, environ: Mapping[str, str]) -> str:
    """The token from its file or variable: on a command line every user of the machine could read it."""
    from hangscope.safeio.safe_files import read_file

    given = token_file or (Path(environ["HANGSCOPE_TOKEN_FILE"]) if environ.get("HANGSCOPE_TOKEN_FILE") else None)
    if given is not None:
        warn_if_readable(given, note)
        try:
            return read_file(given, 4096).decode("ascii", "replace").strip()
        except OSError as error:
            raise SettingsError(f"{given}: {error.strerror}") from None
    if environ.get("HANGSCOPE_TOKEN"):
        return environ["HANGSCOPE_TOKEN"].strip()
    raise SettingsError("no token", hint="HANGSCOPE_TOKEN, or --token-file FILE")


def warn_if_readable(file: Path, say: Callable[[str], None]) -> None:
    """Say where every user of the machine can read a secret. It is used all the same."""
    try:
        mode = file.stat().st_mode
    except OSError:
        return
    if mode & 0o004 and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        say(f"warning: {file} can be read by every user of this machine: chmod 600 {file}")


@click.command(epilog="Example: HANGSCOPE_TOKEN=hs_… hangscope push hangscope/48121/0 --server http://127.0.0.1:8642")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--server", metavar="URL", help="Where to.", envvar="HANGSCOPE_SERVER", show_envvar=True)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Holds the token.  [env var: HANGSCOPE_TOKEN_FILE; or the token itself in HANGSCOPE_TOKEN]",
)
@click.option("--cluster", default="", help="The cluster's name.", envvar="HANGSCOPE_CLUSTER", show_envvar=True)
@click.option(
    "--spool",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where it waits until the server has it.  [default: ~/.local/state/hangscope/spool/HOST]",
    envvar="HANGSCOPE_SPOOL",
    show_envvar=True,
)
@click.option("--job", default="", help="The job's name or number, where the evidence does not say it.")
@click.option("--source", default="", help="Which node's part it is: a later part of the same node replaces it.")
@click.option(
    "--moved-from",
    metavar="URL",
    multiple=True,
    help="An address that the server had before: what waits for it is sent here.",
)
def command(
    paths: tuple[Path, ...],
    server: str | None,
    token_file: Path | None,
    cluster: str,
    spool: Path | None,
    job: str,
    source: str,
    moved_from: tuple[str, ...],
) -> int:
    """Send incidents, or any folder of dumps and logs, to a `hangscope serve`, as redacted bundles.

    What the server does not take now stays in the spool, and the next push sends it; without a PATH only that is sent.
    Exit status 0: the server has everything; 1: something still waits, or was refused.
    """
    if not server:
        raise SettingsError("no server", hint="--server URL, or HANGSCOPE_SERVER")
    from hangscope.push.send_spooled import send_all
    from hangscope.push.server_client import ServerClient
    from hangscope.push.spool import INCIDENT, Spool, default_spool

    client = ServerClient(server, token(token_file, os.environ))
    kept = Spool(spool or default_spool(os.environ))
    for path in map(one_resolved, paths):
        with tempfile.TemporaryDirectory(prefix="hangscope-") as folder:
            made = Path(folder) / "bundle.tar.gz"
            manifest = _bundle(path, made)
            value = describe(path, manifest, cluster=cluster, source=source, job=job)
            kept.add(INCIDENT, value, made, server=client.url)
    sent = send_all(client, kept, note, moved_from)
    client.close()
    return _report(sent, server)


def _report(sent: Sent, server: str) -> int:
    for number in sent.incidents:
        write(f"{server.rstrip('/')}/incidents/{number}\n")
    if sent.left:
        note(f"{sent.left} still to be sent: {sent.problem}; `hangscope push` without a path tries again")
    if sent.others_left:
        note(f"not sent: what waits for {', '.join(sent.others_left)}; where that has moved here, --moved-from URL")
    return NOT_SENT if sent.left or sent.refused else 0


def _bundle(path: Path, target: Path) -> Manifest:
    """The redacted bundle of a folder, incident or file; a bundle goes through redaction once more."""
    from hangscope.bundle.pack import Options, write_bundle
    from hangscope.bundle.unpack import extract
    from hangscope.reader.evidence_lines import keep_evidence

    if not path.exists():
        raise NotFoundError(f"{path}: no such file or directory")
    source = Path(os.path.abspath(path))
    options = Options(keep=lambda name, stream, out: keep_evidence(stream, out, (), name))
    if source.is_file() and source.name.endswith((".tar.gz", ".tgz")):
        with tempfile.TemporaryDirectory(prefix="hangscope-") as folder:
            try:
                extract(source, Path(folder) / "incident")
            except InputError:
                return write_bundle(source, target, options).manifest  # an archive that is no bundle of ours
            return write_bundle(Path(folder) / "incident", target, options).manifest
    return write_bundle(source, target, options).manifest


def _content(manifest: Manifest) -> str:
    """What is in a bundle, as one checksum: the same folder bundled twice is the same evidence, whenever that was."""
    files = sorted((name, str(entry.get("sha256"))) for name, entry in manifest.files.items())
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def describe(path: Path, manifest: Manifest, *, cluster: str, source: str, job: str = "") -> dict[str, Any]:
    """What a server is to know of a bundle before it looks into it."""
    later = _LATER_HANG.search(os.path.basename(os.path.abspath(path)))
    said: dict[str, Any] = {"cluster": cluster, "source": source, "hang": later[1] if later else "hang-1"}
    if manifest.job or job:
        said |= {"job": manifest.job or job, "attempt": manifest.attempt or "0"}
    else:
        said |= {"evidence": _content(manifest)}
    if manifest.captured_at:
        try:
            said["captured_at"] = datetime.fromisoformat(manifest.captured_at.replace("Z", "+00:00")).timestamp()
        except ValueError:
            pass
    return said
