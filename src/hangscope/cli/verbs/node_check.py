"""`hangscope node-check`: whether history suspects this node, as health checks of schedulers want to know it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
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
    "--cluster",
    help="Its cluster, where several have a node of that name.  [default: HANGSCOPE_CLUSTER, or Slurm's]",
)
@click.option(
    "--write",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the problem into this file, and empty it where there is none: NVRx's segment_health_check.JOB.TASK.",
)
@click.option(
    "--prolog",
    is_flag=True,
    help="Exit with 0 also where nothing is known: any other status of a Prolog drains the node.",
)
def command(
    server: str | None, token_file: Path | None, node: str | None, cluster: str | None, file: Path | None, prolog: bool
) -> int:
    """Say by exit status whether a `hangscope serve` proposes to take this node out.

    0: it does not. 1: it does; the reason goes to stdout. 2: not known: the server does not answer in time, or knows
    no node of this name. That is what node-problem-detector's plugins expect; nothing is drained by this.
    """
    name = node or os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME") or socket.gethostname()
    try:
        if not server:
            raise SettingsError("no server", hint="--server URL, or HANGSCOPE_SERVER")
        found = _against(server, token(token_file, os.environ), name, cluster_of(cluster, os.environ))
    except HangscopeError as error:
        note(f"not known: {error}{f'; {error.hint}' if error.hint else ''}")
        return HEALTHY if prolog else UNKNOWN
    said = f"hangscope: {found.get('says') or 'suspect'}" if found["proposed"] else ""
    if file is not None:
        from hangscope.incident.layout import write_atomic

        write_atomic(file, f"{said}\n" if said else "")
    write(f"{said or f'hangscope: nothing against {name}'}\n")
    return PROBLEM if said else HEALTHY


def cluster_of(given: str | None, environ: Mapping[str, str]) -> str:
    """The cluster that this machine is of, as `hangscope run` says it."""
    return given or environ.get("HANGSCOPE_CLUSTER") or environ.get("SLURM_CLUSTER_NAME") or ""


def _against(server: str, given: str, node: str, cluster: str) -> dict[str, Any]:
    """What the server says of this node. Raises where it knows no node of that name: that is not a healthy one."""
    from hangscope.push.server_client import ServerClient, Unknown

    client = ServerClient(server, given, timeout_s=TIMEOUT_S)
    try:
        found = client.node(node, cluster)
    except Unknown:  # a server from before it could be asked so
        against = next(
            (each for each in client.suspects() if each.get("proposed") is True and each.get("node") == node), None
        )
        found = {"known": True, "proposed": against is not None, **(against or {})}
    finally:
        client.close()
    if found.get("known") is not True or not isinstance(found.get("proposed"), bool):
        similar = [str(each)[:200] for each in found.get("similar") or () if isinstance(each, str)]
        hint = f"it knows {', '.join(similar)}: --node NAME" if similar else "--node NAME, as jobs report it"
        raise HangscopeError(f"{server} knows no node {node}", hint=hint)
    return found
