"""`hangscope collect`: every node's evidence in one incident."""

from __future__ import annotations

import shlex
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hangscope.cli.output import note, write
from hangscope.cli.progress_bar import bar
from hangscope.cli.size_options import DURATION
from hangscope.errors import SettingsError

if TYPE_CHECKING:
    from hangscope.incident.collect import Collected, Source
    from hangscope.incident.manifest import Missing

_NODES_SHOWN = 20
_GAPS_SHOWN = 10
INCOMPLETE = 1
RAY_HERE = "auto"


@click.command(
    epilog="Examples: hangscope collect -o hang --hosts gpu-a[017-020] --path '/logs/48121/*'; "
    "hangscope collect -o hang --from /mnt/gpu-a017 --from s3://bucket/hangs/48121; hangscope collect -o hang --ray"
)
@click.option("-o", "--output", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The incident.")
@click.option("--from", "places", multiple=True, metavar="DIR|URL", help="A directory, or a URL that fsspec knows.")
@click.option("--hosts", default="", metavar="LIST", help="Over ssh: a,b or gpu-a[017-020].")
@click.option("--hostfile", metavar="FILE", type=click.Path(path_type=Path), help="Over ssh: one host a line.")
@click.option("--ssh", default="ssh", show_default=True, metavar="COMMAND", help="The ssh command, with options.")
@click.option("--slurm", metavar="JOBID", help="Over srun: the nodes of a job that still runs.")
@click.option(
    "--ray",
    metavar="[ADDRESS]",
    is_flag=False,
    flag_value=RAY_HERE,
    help="By Ray tasks: the session's logs and dumps of every host.  [default: the cluster of this machine]",
)
@click.option("--kubernetes", metavar="SELECTOR|NAME", help="Over kubectl: the pods with these labels, or of this job.")
@click.option("--namespace", metavar="NAME", help="Kubernetes: the namespace.  [default: that of kubectl]")
@click.option("--container", metavar="NAME", help="Kubernetes: this container.  [default: the first that runs]")
@click.option("--path", "patterns", multiple=True, metavar="GLOB", help="Also these files or folders on each node.")
@click.option(
    "--no-defaults", is_flag=True, help="Only --path, not the places where PyTorch and hangscope leave evidence."
)
@click.option("--job", help="Of several incidents, this job's.  [default: the newest]")
@click.option("--attempt", help="Of several attempts, this one.  [default: the newest]")
@click.option(
    "--deadline", type=DURATION, default="120s", show_default=True, metavar="TIME", help="Time limit per node."
)
@click.option("--retries", type=click.IntRange(min=0), default=2, show_default=True, help="Retries per node.")
@click.option(
    "--parallel", type=click.IntRange(min=1), default=16, show_default=True, help="Nodes to fetch from in parallel."
)
@click.option(
    "--stale-after",
    type=DURATION,
    default="2h",
    show_default=True,
    metavar="TIME",
    help="A dump this much older than the newest is from an earlier run and is not fetched.",
)
def command(
    output: Path,
    places: tuple[str, ...],
    hosts: str,
    hostfile: Path | None,
    ssh: str,
    slurm: str | None,
    ray: str | None,
    kubernetes: str | None,
    namespace: str | None,
    container: str | None,
    patterns: tuple[str, ...],
    no_defaults: bool,
    job: str | None,
    attempt: str | None,
    deadline: float,
    retries: int,
    parallel: int,
    stale_after: float,
) -> int:
    """Gather every node's evidence into one incident. Running it again fetches only what is missing.

    Nodes need sh and tar, nothing else, and nothing is deleted there. What could not be fetched is listed with the
    reason, here and in the incident.

    Exit status: 0 everything was fetched, 1 something is missing, 2 nothing could be fetched.
    """
    from hangscope.incident.collect import collect, job_nodes, pods
    from hangscope.incident.collect.gather import CollectOptions

    sources: list[Source] = [_place(place) for place in places]
    gone: list[Missing] = []
    known = {"patterns": patterns, "defaults": not no_defaults}
    names = [*job_nodes.hosts_of(hosts), *(job_nodes.hosts_in(hostfile) if hostfile else ())]
    if names:
        sources += job_nodes.ssh(dict.fromkeys(names), command=shlex.split(ssh), **known)  # type: ignore[arg-type]
    if slurm:
        sources += job_nodes.slurm(slurm, **known)  # type: ignore[arg-type]
    if kubernetes:
        where = {"namespace": namespace, "container": container, "any_job": job is not None}
        found_pods, gone = pods.kubernetes(kubernetes, **where, **known)  # type: ignore[arg-type]
        sources += found_pods
    options = CollectOptions(deadline_s=deadline, retries=retries, parallel=parallel, stale_after_s=stale_after)
    with ExitStack() as kept:
        if ray:
            of_ray, lost = _ray_hosts(ray, kept, **known)  # type: ignore[arg-type]
            sources += of_ray
            gone += lost
        if not sources:
            hint = "--from, --hosts, --hostfile, --slurm, --ray or --kubernetes"
            raise SettingsError("nothing to collect from", hint=hint)
        update = kept.enter_context(bar("collecting"))
        found = collect(output, sources, options=options, job=job, attempt=attempt, gone=gone, progress=update)
    _report(found)
    write(f"{output}\n")
    return 0 if found.complete and not gone else INCOMPLETE


def _ray_hosts(
    address: str, kept: ExitStack, *, patterns: tuple[str, ...], defaults: bool
) -> tuple[list[Source], list[Missing]]:
    """The hosts of a cluster, and what Ray knows of itself, as sources; connected as long as `kept` lasts."""
    from hangscope.cluster import ray_fetch
    from hangscope.cluster.ray_connection import connected
    from hangscope.incident.collect.directories import Directory

    folder = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="hangscope-")))
    hosts, lost = ray_fetch.hosts(kept.enter_context(connected(address)), folder, patterns=patterns, defaults=defaults)
    return [*hosts, Directory(folder)], lost


def _place(place: str) -> Source:
    from hangscope.incident.collect.directories import Directory
    from hangscope.incident.collect.object_stores import Store

    return Store(place) if "://" in place else Directory(Path(place))


def _report(found: Collected) -> None:
    from hangscope.text import plural, size

    shown = sorted(found.nodes, key=lambda node: (not node.problem, node.name))
    for node in shown[:_NODES_SHOWN]:
        kept = f", {node.kept} already here" if node.kept else ""
        problem = f"; {node.problem}" if node.problem else ""
        note(f"{node.name}: {plural(node.fetched, 'file')} ({size(node.bytes)}){kept}{problem}")
    if len(shown) > _NODES_SHOWN:
        note(f"and {len(shown) - _NODES_SHOWN} more")
    gaps = [gap for gap in found.manifest.gaps if gap.why]
    for gap in gaps[:_GAPS_SHOWN]:
        note(f"missing: {gap.what}: {gap.why}")
    if len(gaps) > _GAPS_SHOWN:
        note(f"and {len(gaps) - _GAPS_SHOWN} more missing, all in {found.path / 'incident.json'}")
    for other in found.others[:_GAPS_SHOWN]:
        note(f"left where it is: another incident, {other}")
