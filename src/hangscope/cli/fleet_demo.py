"""A server filled with the weeks of a simulated fleet: `hangscope demo --fleet`."""

from __future__ import annotations

import time
from pathlib import Path

from hangscope.cli.output import note, progress
from hangscope.server.demo_data import DemoJob, fill
from hangscope.server.history.fleet_history import History
from hangscope.server.history.summary import make
from hangscope.server.serve_process import ServeOptions, open_stores, serve
from hangscope.server.store import access_tokens
from hangscope.simulate.fleet.simulated_fleet import DAY_S, Fleet, FleetJob, FleetSpec, leaf_of, simulate_fleet

DAYS = 21
SEED = 5
_PROGRAMS = ("pretrain", "finetune", "vision", "speech", "ranking", "video", "evaluate", "distill")
_STEPS = ("next_batch", "save_checkpoint", "compile_step")


def serve_simulated_fleet(folder: Path, *, port: int = 0) -> int:
    """Fill a new server below `folder`, say what to look for, and answer until a signal ends it."""
    fleet = simulated(SEED, time.time())
    options = ServeOptions(data=folder, port=port)
    opened = open_stores(options)
    with progress(f"filling a server with {len(fleet.jobs)} jobs"):
        fill(opened.database, access_tokens.FIRST_PROJECT, demo_jobs(fleet))
        make(opened.database, 1, "", time.time())
    token = access_tokens.first_token(opened.database)
    note(f"{DAYS} days of {fleet.spec.nodes} simulated nodes; {_found(fleet, History(opened.database))}")
    note(f"log in with {token}")
    serve(options, opened, note)
    return 0


def simulated(seed: int, now: float) -> Fleet:
    """The demo's fleet, which ends now: one node goes bad on the way."""
    spec = FleetSpec(nodes=120, jobs_per_day=30, days=DAYS, teams=8, fault="node", seed=seed)
    return simulate_fleet(spec, now - DAYS * DAY_S)


def demo_jobs(fleet: Fleet) -> list[DemoJob]:
    return [_demo_job(job, fleet) for job in fleet.jobs]


def _found(fleet: Fleet, history: History) -> str:
    """What was made bad, and whether the suspects' page says so: no more is promised than is there to see."""
    bad = fleet.truth[1] if fleet.truth else "nothing"
    said = f"{bad} went bad on the way"
    proposed = {(each["kind"], each["name"]) for each in history.suspects(1)["suspects"] if each["proposed"]}
    if fleet.truth in proposed:
        return f"{said}: see who is suspect"
    return f"{said}, and what was seen of it does not decide that"


def _demo_job(job: FleetJob, fleet: Fleet) -> DemoJob:
    return DemoJob(
        name=f"{_program(job.commit)}-{job.name}",
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
    if not team.removeprefix("team").isdigit() or not step.isdigit():
        return simulated
    return f"{_program(team)}.{_STEPS[int(step) % len(_STEPS)]}"


def _program(team: str) -> str:
    """Of ``team3`` or one of its commits: each team has a program of its own, which its jobs are named after."""
    number = team.partition("-")[0].removeprefix("team")
    return _PROGRAMS[int(number) % len(_PROGRAMS)] if number.isdigit() else "train"
