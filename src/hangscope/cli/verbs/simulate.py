"""`hangscope simulate`: dumps of a synthetic job, with their truth."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hangscope.cli.output import note, progress, write
from hangscope.cli.size_options import DURATION
from hangscope.errors import SettingsError
from hangscope.incident.layout import write_atomic, write_json
from hangscope.simulate.fleet.simulated_fleet import FLEET_FAULTS, FleetSpec, simulate_fleet
from hangscope.simulate.spec.job_spec import BACKENDS, FAULTS, FORMS, TORCH

_DIMENSIONS = ("dp", "tp", "pp", "ep")


@click.command(
    epilog="Example: hangscope simulate -o /tmp/job --ranks 16 --layout dp=2,tp=4,pp=2 --fault absent --culprit 5"
)
@click.option("-o", "--output", required=True, metavar="DIR", type=click.Path(file_okay=False), help="Where to write.")
@click.option("--ranks", default=8, show_default=True, metavar="N", help="Ranks in the job.")
@click.option("--layout", default="", metavar="dp=…,tp=…,pp=…,ep=…", help="Parallelism layout; the rest is dp.")
@click.option("--fault", type=click.Choice(list(FAULTS)), default="absent", show_default=True, help="What goes wrong.")
@click.option(
    "--variant", default="", metavar="NAME", help="Variant of the fault, such as skipped or size for mismatch."
)
@click.option(
    "--culprit", "culprits", default="", metavar="RANKS", help="Ranks at fault: 5 or 5,9.  [default: the seed chooses]"
)
@click.option("--entries", default=500, show_default=True, metavar="N", help="Size of every rank's ring.")
@click.option("--steps", default=0, metavar="N", help="Step in which it happens.  [default: when the rings are full]")
@click.option(
    "--torch", type=click.Choice(TORCH), default="2.11", show_default=True, help="Dump format of which release."
)
@click.option(
    "--backend", type=click.Choice(BACKENDS), default="nccl", show_default=True, help="Communication library."
)
@click.option("--form", type=click.Choice(FORMS), default="pickle", show_default=True, help="How dumps are encoded.")
@click.option("--gzip", is_flag=True, help="Compress the dumps.")
@click.option("--no-timing", is_flag=True, help="As without TORCH_NCCL_ENABLE_TIMING: no start times.")
@click.option("--no-stacks", is_flag=True, help="Dumps without Python stacks.")
@click.option("--no-evidence", is_flag=True, help="Dumps alone: no logs and no roster.")
@click.option("--clock-skew-ms", default=0.0, metavar="MS", help="Maximum clock difference of the nodes, either way.")
@click.option("--gpus-per-node", default=8, show_default=True, metavar="N", help="Ranks on one node.")
@click.option(
    "--timeout", "timeout_s", type=DURATION, default="10m", show_default=True, metavar="TIME", help="Of a collective."
)
@click.option(
    "--fleet",
    type=click.Choice(FLEET_FAULTS),
    help="Instead of one job: four weeks of a cluster, in which this is bad, as fleet.jsonl.",
)
@click.option("--seed", default=0, show_default=True, metavar="N", help="Seed for everything that is not given.")
def command(
    output: str,
    layout: str,
    culprits: str,
    no_timing: bool,
    no_stacks: bool,
    no_evidence: bool,
    fleet: str | None,
    **choices: Any,
) -> int:
    """Write dumps of a synthetic job of any size, layout, fault and format, with the truth about it.

    The job is run as a discrete-event simulation: a fault stops a CPU or a GPU, changes what a rank calls or loses the
    messages of a link, and everything else follows. truth.json says what was done and what a diagnosis should say.
    """
    from hangscope.simulate import Spec, simulate

    target = Path(output)
    if target.exists() and any(target.iterdir()):
        raise SettingsError(f"{output} is not empty", hint="give a new directory, so that no old files get mixed in")
    if fleet is not None:
        return _write_fleet(target, fleet, choices["seed"])
    choices.update(_parse_layout(layout))
    spec = Spec(
        culprits=_parse_ranks(culprits),
        timing=not no_timing,
        stacks=not no_stacks,
        evidence=not no_evidence,
        **choices,  # options and dimensions that are fields of Spec by their names
    )
    with progress(f"simulating {spec.ranks} ranks"):
        job = simulate(spec)
        job.write(target)
    note(f"wrote {len(job.dump_ranks)} dumps of {spec.ranks} ranks to {output}")
    write(f"{job.summary}\n")
    return 0


def _write_fleet(target: Path, fault: str, seed: int) -> int:
    """A line of JSON for each job, and what was bad."""
    made = simulate_fleet(FleetSpec(fault=fault, seed=seed))
    lines = [json.dumps({name: value for name, value in asdict(job).items() if name != "caused"}) for job in made.jobs]
    write_atomic(target / "fleet.jsonl", "".join(f"{line}\n" for line in lines))
    write_json(target / "truth.json", {"bad": made.truth, "also_right": sorted(made.also_right)})
    hung = sum(job.hung_at is not None for job in made.jobs)
    note(f"wrote {len(made.jobs):,} jobs, of which {hung} hung, to {target / 'fleet.jsonl'}")
    write(f"{'nothing is bad' if made.truth is None else 'bad: ' + ' '.join(made.truth)}\n")
    return 0


def _parse_layout(text: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.strip().partition("=")
        if name not in _DIMENSIONS or not value.isdecimal() or len(value) > 7:
            raise SettingsError(
                f"--layout {text!r}: {part!r} is not a dimension", hint="write it like dp=2,tp=4,pp=2,ep=2"
            )
        sizes[name] = int(value)
    return sizes


def _parse_ranks(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) < 8 for part in parts):
        raise SettingsError(f"--culprit {text!r} is not a rank", hint="write 5, or 5,9 for two")
    return tuple(int(part) for part in parts)
