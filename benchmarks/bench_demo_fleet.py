"""What `hangscope demo --fleet` says for many seeds: the bad node, nothing, or an innocent.

    python benchmarks/bench_demo_fleet.py --seeds 50

For each seed a server's database is filled as the demo fills it, and asked as its pages ask it: who is proposed, and
what history says of each incident. Wrong is a proposal that is not the bad node, an answer that blames a machine where
the verdict names none that is bad, and one that blames code for a hang of the bad node. Exit status 1 where anything
was wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from sqlalchemy import select

from hangscope.cli.fleet_demo import demo_jobs, simulated
from hangscope.server.demo_data import fill
from hangscope.server.history import summary
from hangscope.server.history.decide import MACHINES, NOT_DECIDED
from hangscope.server.history.fleet_history import History
from hangscope.server.store.database import Database
from hangscope.server.store.tables import INCIDENTS, JOBS
from hangscope.server.store.upgrade import upgrade


def play(seed: int, folder: Path) -> tuple[str, Counter[str]]:
    """What is said of one demo: right, not decided or wrong; and of its incidents."""
    fleet = simulated(seed, time.time())
    database = Database(f"sqlite:///{folder / f'{seed}.db'}")
    upgrade(database)
    fill(database, "default", demo_jobs(fleet))
    summary.make(database, 1, "", time.time())
    history = History(database)
    proposed = {(each["kind"], each["name"]) for each in history.suspects(1)["suspects"] if each["proposed"]}
    jobs = {job.name: job for job in fleet.jobs}
    with database.read() as connection:
        asked = select(INCIDENTS.c.id, JOBS.c.name).join(JOBS, JOBS.c.id == INCIDENTS.c.job_id)
        rows = connection.execute(asked).all()
    answers: Counter[str] = Counter()
    for row in rows:
        made = history.of_incident(1, row.id)
        answer = made.decision.answer if made is not None else NOT_DECIDED
        job = jobs[row.name.rpartition("-")[2]]
        innocent = answer in MACHINES and not fleet.also_right.intersection(job.accused)
        wrong = innocent or (answer == "code" and job.caused)
        answers["wrong" if wrong else NOT_DECIDED if answer == NOT_DECIDED else "right"] += 1
    database.close()
    said = NOT_DECIDED if not proposed else "right" if proposed == {fleet.truth} else "wrong"
    return said, answers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=50)
    given = parser.parse_args()
    fleets: Counter[str] = Counter()
    incidents: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="hangscope-bench-") as folder:
        for seed in range(given.first, given.first + given.seeds):
            said, answers = play(seed, Path(folder))
            fleets[said] += 1
            incidents += answers
            print(f"seed {seed}: {said}; incidents {dict(answers)}", flush=True)
    print(f"{given.seeds} fleets: {dict(fleets)}; their {incidents.total()} incidents: {dict(incidents)}")
    return 1 if fleets["wrong"] or incidents["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
