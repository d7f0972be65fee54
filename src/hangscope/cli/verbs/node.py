"""`hangscope node`: what people and schedulers know of a node, said to a `hangscope serve`."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hangscope.cli.output import write
from hangscope.cli.verbs.node_check import cluster_of
from hangscope.cli.verbs.push import token
from hangscope.errors import HangscopeError, InputError, SettingsError
from hangscope.report.safe_text import safe
from hangscope.safeio import bounded_json
from hangscope.text import plural

if TYPE_CHECKING:
    from hangscope.push.server_client import ServerClient

ASK_S = 60.0
IN_SERVICE = ("IDLE", "ALLOCATED", "MIXED", "COMPLETING")
"""States of Slurm in which jobs run on a node, or may. One that went down and came back was not repaired by that: a
drain is what somebody does."""


@click.group(epilog="Example: HANGSCOPE_TOKEN=hs_… hangscope node repaired gpu-a017 --note 'GPU 6 replaced'")
def command() -> None:
    """Tell a `hangscope serve` what was done about a node. It needs a token of scope triage."""


def _of_server(verb: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--cluster", help="Its cluster.  [default: HANGSCOPE_CLUSTER, or Slurm's]"),
        click.option(
            "--token-file",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Holds the token.  [env var: HANGSCOPE_TOKEN_FILE; or the token itself in HANGSCOPE_TOKEN]",
        ),
        click.option("--server", metavar="URL", help="The server.", envvar="HANGSCOPE_SERVER", show_envvar=True),
    ):
        verb = option(verb)
    return verb


@contextmanager
def _asking(server: str | None, token_file: Path | None) -> Iterator[ServerClient]:
    from hangscope.push.server_client import ServerClient

    if not server:
        raise SettingsError("no server", hint="--server URL, or HANGSCOPE_SERVER")
    client = ServerClient(server, token(token_file, os.environ))
    try:
        yield client
    finally:
        client.close()


def _mark(
    name: str, action: str, value: dict[str, Any], server: str | None, token_file: Path | None, cluster: str | None
) -> str:
    with _asking(server, token_file) as client:
        done = client.mark_node(name, cluster_of(cluster, os.environ), action, value)
    of = done.get("cluster")
    return f"{safe(name)}{f' in cluster {safe(str(of))}' if of else ''}"


@command.command(epilog="Example: hangscope node repaired gpu-a017 --note 'GPU 6 replaced' --ago 2")
@click.argument("name")
@click.option("--note", default="", help="What was done.")
@click.option("--ago", type=click.FloatRange(0, 24 * 366), default=0.0, metavar="HOURS", help="So long ago.")
@_of_server
def repaired(name: str, note: str, ago: float, server: str | None, token_file: Path | None, cluster: str | None) -> int:
    """NAME was repaired: what it did before does not count against it any more."""
    value: dict[str, Any] = {"note": note}
    if ago:
        value["at"] = time.time() - ago * 3600
    where = _mark(name, "repaired", value, server, token_file, cluster)
    write(f"{where} counts as another machine from then on\n")
    return 0


@command.command(epilog="Example: hangscope node dismiss gpu-a017 --note 'it was the switch'")
@click.argument("name")
@click.option("--note", default="", help="Why.")
@_of_server
def dismiss(name: str, note: str, server: str | None, token_file: Path | None, cluster: str | None) -> int:
    """NAME is not to be suspected: the verdicts until now were wrong about it. Later ones count."""
    where = _mark(name, "dismiss", {"note": note}, server, token_file, cluster)
    write(f"{where}: what verdicts said of it until now does not count\n")
    return 0


@command.command(epilog="Example: hangscope node note gpu-a017 'waits for a new PSU, ticket 4711'")
@click.argument("name")
@click.argument("text")
@_of_server
def note(name: str, text: str, server: str | None, token_file: Path | None, cluster: str | None) -> int:
    """Write TEXT into the file of NAME. It changes nothing else."""
    where = _mark(name, "note", {"note": text}, server, token_file, cluster)
    write(f"noted for {where}\n")
    return 0


@command.command(epilog="Example: hangscope node show gpu-a017")
@click.argument("name")
@_of_server
def show(name: str, server: str | None, token_file: Path | None, cluster: str | None) -> int:
    """What is known of NAME: its jobs, the incidents that name it, and what was noted."""
    with _asking(server, token_file) as client:
        found = client.node_file(name, cluster_of(cluster, os.environ))
    lines = [
        f"{found.get('name')}{' in cluster ' + str(found['cluster']) if found.get('cluster') else ''}: "
        f"{plural(int(found.get('jobs_total') or 0), 'job')}, "
        f"named by {plural(int(found.get('incidents_total') or 0), 'incident')}"
    ]
    suspect = found.get("suspect")
    if isinstance(suspect, dict):
        said = "proposed" if suspect.get("proposed") else "watched" if suspect.get("watched") else "not suspect"
        lines.append(f"{said}: {suspect.get('says')}")
    for each in found.get("marks") or ():
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(float(each.get("at") or 0)))
        lines.append(f"{at}  {each.get('what')}  {each.get('detail') or ''}  ({each.get('who')})")
    write("".join(f"{safe(line)}\n" for line in lines))
    return 0


@command.command(epilog="Example, every five minutes by cron: hangscope node sync --from slurm")
@click.option(
    "--from",
    "source",
    type=click.Choice(("slurm", "kubernetes")),
    required=True,
    help="What to ask: `scontrol show nodes` or `kubectl get nodes`.",
)
@click.option(
    "--input",
    "file",
    type=click.File("rb"),
    help="Read the answer of `scontrol show nodes --oneliner` or `kubectl get nodes -o json` from a file, - is stdin.",
)
@_of_server
def sync(source: str, file: Any, server: str | None, token_file: Path | None, cluster: str | None) -> int:
    """Pass on which nodes the scheduler has taken out. One that was out and is back counts as repaired."""
    said = file.read(64 << 20) if file is not None else _ask(source)
    states = dict(slurm_states(said.decode("utf-8", "replace")) if source == "slurm" else kubernetes_states(said))
    if not states:
        raise InputError(f"no node in what {source} says")
    nodes = [{"node": name, "taken_out": out} for name, out in sorted(states.items())]
    with _asking(server, token_file) as client:
        value = {"source": source, "cluster": cluster_of(cluster, os.environ), "nodes": nodes}
        back = client.node_states(value)
    write("".join(f"{safe(node)} is back in service: it counts as repaired\n" for node in back))
    return 0


def _ask(source: str) -> bytes:
    words = (
        ("scontrol", "show", "nodes", "--oneliner") if source == "slurm" else ("kubectl", "get", "nodes", "-o", "json")
    )
    if shutil.which(words[0]) is None:
        raise SettingsError(f"there is no {words[0]} here", hint="run it where it is, or give its answer with --input")
    try:
        done = subprocess.run(words, capture_output=True, timeout=ASK_S, check=False)
    except subprocess.TimeoutExpired:
        raise HangscopeError(f"{words[0]} did not answer within {ASK_S:g} s") from None
    if done.returncode != 0:
        raise HangscopeError(f"{' '.join(words)}: {done.stderr.decode(errors='replace').strip()[:300]}")
    return done.stdout


def slurm_states(said: str) -> Iterator[tuple[str, bool]]:
    """Of `scontrol show nodes --oneliner`: each node that is drained or in service, and whether it is drained."""
    for line in said.splitlines():
        words = (word.partition("=") for word in line.split())
        fields = {key: value for key, _, value in words}
        name, state = fields.get("NodeName"), fields.get("State", "").upper()
        if not name or not state:
            continue
        if "DRAIN" in state:
            yield name, True
        elif state in IN_SERVICE:
            yield name, False


def kubernetes_states(said: bytes) -> Iterator[tuple[str, bool]]:
    """Of `kubectl get nodes -o json`: each node that is cordoned or ready, and whether it is cordoned."""
    try:
        value = bounded_json.loads(said)
    except ValueError:
        raise InputError("not JSON", hint="kubectl get nodes -o json") from None
    items = value.get("items") if isinstance(value, dict) else None
    for each in items if isinstance(items, list) else ():
        try:
            name = each["metadata"]["name"]
            cordoned = each.get("spec", {}).get("unschedulable") is True
            ready = {one["type"]: one["status"] for one in each["status"]["conditions"]}.get("Ready")
        except (KeyError, TypeError, AttributeError):
            continue
        if isinstance(name, str) and (cordoned or ready == "True"):
            yield name, cordoned
