"""The scripts that Slurm runs on a node, without Slurm: an agent ends with the last job, whatever comes in between."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from hangscope.recorder.setup import slurm_files

ENV = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_UID": "0"}


def test_a_job_that_ends_while_its_agent_begins_leaves_none(tmp_path: Path) -> None:
    """Its Epilog finds no agent to end yet: the agent ends by itself, and nobody watches a node without jobs."""
    agent = tmp_path / "hangscope"
    agent.write_text("#!/bin/sh\nexec sleep 60\n")
    agent.chmod(0o755)
    state = tmp_path / "state"
    (state / "jobs").mkdir(parents=True)
    (state / "jobs" / "7").touch()
    os.mkfifo(state / "agent.part")  # the Prolog waits here, its agent begun and not yet known
    cluster = slurm_files.Cluster(2000, "WARN", agent, state=str(state), log=str(tmp_path / "log"))
    slurm_files.write(tmp_path / "files", cluster)
    prolog = subprocess.Popen(["sh", tmp_path / "files/prolog.sh", "supervise"], env=ENV, start_new_session=True)
    try:
        begun = time.monotonic()
        while not (tmp_path / "log").exists() and time.monotonic() < begun + 30:
            time.sleep(0.02)
        assert (tmp_path / "log").exists()
        subprocess.run(["sh", tmp_path / "files/epilog.sh"], env=ENV, check=True)
        assert not (state / "jobs" / "7").exists()
        (state / "agent.part").read_text()
        prolog.wait(timeout=30)
    finally:
        if prolog.poll() is None:
            os.killpg(prolog.pid, 9)
            prolog.wait()
