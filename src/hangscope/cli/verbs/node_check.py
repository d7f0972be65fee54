"""`hangscope node-check`: whether history suspects this node, as health checks of schedulers want to know it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import click

from hangscope.cli.output import note, write
from hangscope.cli.verbs.push import token
from hangscope.errors import HangscopeError, SettingsError

HEALTHY = 0
PROBLEM = 1
UNKNOWN = 2
TIMEOUT_S = 10.0
"""Slurm ends a HealthCheckProgram after 60 s."""


@click.command(epilog="Example: HANGSCOPE_TOKEN=hs_… hangscope node-check --server https://hangscope.example.org")
@click.option("--server", metavar="URL", help="The server to ask.", envvar="HANGSCOPE_SERVER", show_envvar=True)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Holds the token, of scope read.  [env var: HANGSCOPE_TOKEN_FILE; or the token itself in HANGSCOPE_TOKEN]",
)
@click.option("--node", help="Its name.  [default: Slurm's or Kubernetes's, else the host name]")
@click.option(
    "--write",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the problem into this file, and empty it where there is none: NVRx's segment_health_check.JOB.TASK.",
)
def command(server: str | None, token_file: Path | None, node: str | None, file: Path | None) -> int:
    """Say by exit status whether a `hangscope serve` proposes to take this node out.

    0: it does not. 1: it does; the reason goes to stdout. 2: not known, because the server does not answer. That is
    what node-problem-detector's plugins and Slurm's HealthCheckProgram expect; nothing is drained by this.
    """
    name = node or os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME") or socket.gethostname()
    try:
        if not server:
            raise SettingsError("no server", hint="--server URL, or HANGSCOPE_SERVER")
        found = _against(server, token(token_file, os.environ), name)
    except HangscopeError as error:
        note(f"not known: {error}")
        return UNKNOWN
    said = "" if found is None else f"hangscope: {found.get('says') or 'suspect'}"
    if file is not None:
        from hangscope.incident.layout import write_atomic

        write_atomic(file, f"{said}\n" if said else "")
    write(f"{said or f'hangscope: nothing against {name}'}\n")
    return PROBLEM if said else HEALTHY


def _against(server: str, given: str, node: str) -> dict[str, Any] | None:
    """The suspect for which this node would be taken out."""
    from hangscope.push.server_client import ServerClient

    client = ServerClient(server, given, timeout_s=TIMEOUT_S)
    suspects = client.suspects()
    client.close()
    return next((each for each in suspects if each.get("proposed") is True and each.get("node") == node), None)
