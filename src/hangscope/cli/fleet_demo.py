"""A server filled with the weeks of a simulated fleet: `hangscope demo --fleet`."""

from __future__ import annotations

import time
from pathlib import Path

from hangscope.cli.output import note, progress
from hangscope.server.demo_data import DemoJob, fill
from hangscope.server.serve_process import ServeOptions, open_stores, serve
from hangscope.server.store import access_tokens
from hangscope.simulate.fleet.simulated_fleet import DAY_S, Fleet, FleetJob, FleetSpec, leaf_of, simulate_fleet

DAYS = 21
_PROGRAMS = ("pretrain", "finetune", "vision", "speech", "ranking", "video", "evaluate", "distill")
_STEPS = ("next_batch", "save_checkpoint", "compile_step")


def serve_simulated_fleet(folder: Path, *, port: int = 0) -> int:
    """Fill a new server below `folder`, say what to look for, and answer until a signal ends it."""
    spec = FleetSpec(nodes=120, jobs_per_day=30, days=DAYS, teams=8, fault="node", seed=5)
    fleet = simulate_fleet(spec, time.time() - DAYS * DAY_S)
    options = ServeOptions(data=folder, port=port)
    opened = open_stores(options)
    with progress(f"filling a server with {len(fleet.jobs)} jobs"):
        fill(opened.database, access_tokens.FIRST_PROJECT, [_demo_job(job, fleet) for job in fleet.jobs])
    token = access_tokens.first_token(opened.database)
    bad = fleet.truth[1] if fleet.truth else "nothing"
    note(f"{DAYS} days of {spec.nodes} simulated nodes, of which {bad} went bad on the way: see who is suspect")
    note(f"log in with {token}")
    serve(options, opened, note)
    return 0


def _demo_job(job: FleetJob, fleet: Fleet) -> DemoJob:
    return DemoJob(
        name=f"train-{job.name}",
        started_at=job.started_at,
        ended_at=min(job.ended_at, time.time()),
        nodes={node: leaf_of(node, fleet.spec) for node in job.nodes},
        commit=job.commit,
        image=job.image,
        hung_at=job.hung_at,
        accused=tuple((kind, name) for kind, name in job.accused if kind == "node"),
        function=_function(job.function),
    )


def _function(simulated: str) -> str:
    """``team3.step_1`` as a function of somebody's program: numbers alone do not tell hangs apart."""
    team, _, step = simulated.partition(".step_")
    number = team.removeprefix("team")
    if not number.isdigit() or not step.isdigit():
        return simulated
    return f"{_PROGRAMS[int(number) % len(_PROGRAMS)]}.{_STEPS[int(step) % len(_STEPS)]}"
