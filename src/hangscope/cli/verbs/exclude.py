"""`hangscope exclude PATH`: the nodes that the next start should avoid, in the scheduler's own words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hangscope.cli.given_paths import load_given, resolved
from hangscope.cli.output import note, progress, write
from hangscope.report.safe_text import safe
from hangscope.verdict_words import RetryAnswer

if TYPE_CHECKING:
    from hangscope.diagnosis.verdict import Diagnosis

_RETRY_STATUS = {RetryAnswer.SAME: 0, RetryAnswer.ELSEWHERE: 0, RetryAnswer.NO: 1, RetryAnswer.UNKNOWN: 3}
_AFFINITY = "kubernetes.io/hostname"


@click.command(epilog="Example: sbatch $(hangscope exclude /shared/hangs/48121) train.sh")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--format",
    "form",
    type=click.Choice(("slurm", "kubernetes", "names")),
    default="slurm",
    show_default=True,
    help="slurm: --exclude=NODES; kubernetes: a node affinity as JSON; names: one node a line.",
)
@click.option("--job", metavar="NAME", help="Of several jobs in one folder, this one.")
@click.option(
    "--retry",
    is_flag=True,
    help="Print whether the job is worth starting again instead: same, elsewhere, no or unknown. Exit status 0 for same"
    " and elsewhere, 1 for no, 3 for unknown.",
)
def command(paths: tuple[str, ...], form: str, job: str | None, retry: bool) -> int:
    """Print the nodes to avoid in the next start, where the cause of the hang or crash is the node itself.

    A node is named where the verdict is about it and something shows that the machine failed: the scheduler's word, an
    agent that went silent with its machine, a GPU that fell off the bus, a hardware Xid. A rank that hangs in its
    own code would hang on any node: then nothing is printed, and stderr says so. Nothing is drained or changed.

    Exit status: 0, also where there is no node to avoid; 2 unusable input. With --retry see there.
    """
    from hangscope.diagnosis import diagnose
    from hangscope.diagnosis.hardware.broken_nodes import broken_nodes

    with progress("diagnosing"):
        loaded = load_given(resolved(paths), job=job)
        verdict = diagnose(loaded)
    if retry:
        return _retry(verdict)
    found = broken_nodes(loaded, verdict)
    for broken in found:
        note(f"{safe(broken.node)}: {safe(broken.why)}")
    if not found:
        note(f"no node to exclude: {safe(verdict.headline or verdict.summary)}")
        return 0
    write(_as(form, [broken.node for broken in found]))
    return 0


def _retry(verdict: Diagnosis) -> int:
    """The answer alone on stdout; a job that goes on or ended well needs none, and has the word `ok`."""
    if verdict.retry is None:
        note(f"nothing to start again: {safe(verdict.headline or verdict.summary)}")
        write("ok\n")
        return 0
    without = f", without {safe(', '.join(verdict.retry.nodes))}" if verdict.retry.nodes else ""
    note(f"{verdict.retry.answer}{without}: {safe(verdict.retry.why)}")
    write(f"{verdict.retry.answer}\n")
    return _RETRY_STATUS[verdict.retry.answer]


def _as(form: str, nodes: Sequence[str]) -> str:
    if form == "names":
        return "".join(f"{safe(node)}\n" for node in nodes)
    if form == "slurm":
        return f"--exclude={safe(','.join(nodes))}\n"
    expression = {"key": _AFFINITY, "operator": "NotIn", "values": list(nodes)}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return json.dumps({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}, indent=1) + "\n"
