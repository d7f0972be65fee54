"""`hangscope snapshot --slurm JOBID`: all nodes of a Slurm job captured at once, whether or not it runs under `run`.

A step of srun beside the job's own (`--overlap`) starts one process a node. It finds the job's ranks there by
SLURM_JOB_ID in their environment and saves them into one directory, which the nodes must share with this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangscope.errors import NotFoundError, SettingsError
from hangscope.incident import manifest
from hangscope.incident.collect import job_nodes
from hangscope.incident.collect.job_nodes import SlurmPart
from hangscope.incident.layout import safe_name
from hangscope.incident.manifest import Missing
from hangscope.incident.node_dir import NodeDir
from hangscope.processes import linux_process
from hangscope.processes.isolated_python import hangscope_command
from hangscope.recorder.capture.capture_node import NodeCapture
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.capture.snapshot_job import started_at, watched
from hangscope.recorder.capture.snapshot_target import is_folder, may_follow
from hangscope.recorder.live import find_ranks
from hangscope.recorder.rundir import peer_files, run_directory
from hangscope.recorder.rundir.job_identity import JobIdentity, identify

STEP_S = 120.0
"""For all nodes together: a capture takes fifteen seconds at most."""
MOST_AT_ONCE = 16
_MOST_ERRORS = 2000
_UNSHARED = "it does not see the directory; give --dir on a file system that all nodes share"


@dataclass(frozen=True, slots=True)
class NodePart:
    """What the process on one node says of what it saved."""

    node: str
    ranks: int
    world_size: int | None
    problem: str = ""


def of_job(job: str, directory: Path | None, say: Callable[[str], None], container: str | None = None) -> Path:
    """Capture a running Slurm job, from anywhere that srun works. Returns the incident with every node's part."""
    jobs = job_nodes.slurm_parts(job)
    names = [name for each in jobs for name in each.nodes]
    place = (directory or Path("hangscope") / f"snapshot-{safe_name(job)}").absolute()
    with ExitStack() as kept:
        session = f"{os.uname().nodename}-{os.getpid()}-{manifest.now()}"
        root, _ = run_directory.claim(place, JobIdentity(job, "0", ""), kept=kept, session=session)
        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:  # components of a heterogeneous job are captured together
            answers = list(pool.map(lambda each: _step(each, root, container), jobs))
        parts = [part for said, _ in answers for part in said]
        errors = [line for _, complaints in answers for line in complaints]
        _note_parts(root, job, names, parts)
    for part in parts:
        if part.problem:
            say(f"{part.node}: {part.problem}")
    if not any(part.ranks for part in parts):
        last = f": {errors[-1]}" if errors else ""
        raise NotFoundError(
            f"no rank of Slurm job {job} was captured{last}",
            hint="ranks are recognised by RANK, or SLURM_PROCID where one task is one rank; a job in a container of"
            " pyxis needs --container NAME",
        )
    return root


def _step(job: SlurmPart, root: Path, container: str | None) -> tuple[list[NodePart], list[str]]:
    """Run one process a node; what each said, and what srun complained about."""
    nodes = len(job.nodes)
    options = [*job.options, f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    options += ["--quiet", "--kill-on-bad-exit=0", "--export=ALL"]
    words = hangscope_command()
    if container is not None:
        options.append(f"--container-name={container}:exec")
        words = ["hangscope"]  # our own Python is not in there
    command = ["srun", *options, *words, "snapshot", "--slurm-node", job.number, "--dir", str(root)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=STEP_S,
            stdin=subprocess.DEVNULL,
            env=job_nodes.step_environment(os.environ),
        )
    except FileNotFoundError:
        raise SettingsError(
            "there is no srun here", hint="run it on a login machine or a node of the cluster"
        ) from None
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else ""
        return _parts(said.splitlines()), [f"srun did not end within {STEP_S:g} s"]
    return _parts(done.stdout.splitlines()), done.stderr[-_MOST_ERRORS:].strip().splitlines()


def _parts(lines: Iterable[str]) -> list[NodePart]:
    found = []
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(value.get("node"), str) and isinstance(value.get("ranks"), int):
            size = value.get("world_size")
            problem = value.get("problem")
            found.append(
                NodePart(
                    value["node"],
                    value["ranks"],
                    size if isinstance(size, int) else None,
                    problem if isinstance(problem, str) else "",
                )
            )
    return found


def _note_parts(root: Path, job: str, names: Sequence[str], parts: Sequence[NodePart]) -> None:
    """The manifest: which nodes the job has, and which of them said nothing."""
    problems = {part.node: part.problem for part in parts}
    gaps = [
        Missing(f"nothing from node {name}", problems.get(name) or "its step of srun did not answer", name)
        for name in names
        if problems.get(name, "?")
    ]
    sizes = [part.world_size for part in parts if part.world_size]
    given = manifest.Manifest(
        job=job,
        reason="snapshot",
        detail="asked for",
        captured_at=manifest.now(),
        nodes_expected=tuple(names),
        world_size=max(sizes, default=None),
        gaps=tuple(gaps),
    )
    manifest.write(root, manifest.build(root, given))


# ---- on each node ----------------------------------------------------------------------------------------------------


def of_node(job: str, root: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Capture this node's ranks of a job into `root`; what there is to say of it, as one line of JSON."""
    identity = identify(environ, job=job)
    said: dict[str, Any] = {"node": identity.node, "ranks": 0, "world_size": None}
    if peer_files.run_file(root, run_directory.RUN) is None:
        return json.dumps({**said, "problem": _UNSHARED})
    processes = find_ranks.ranks_of_slurm_job(job, environ.get("SLURM_STEP_ID", ""))
    if not processes:
        return json.dumps({**said, "problem": "no rank of the job runs here, or none that this user may look at"})
    ranks = watched(_sockets(processes[0].pid), processes)
    node = NodeFacts(identity.node, job, identity.attempt, started_at(processes[0].pid))
    node.look_up()
    node_dir = NodeDir(root, root / "nodes" / safe_name(identity.node))
    taken = NodeCapture(node_dir, node, tuple(ranks), "snapshot", "asked for", threading.Event())
    taken.take()
    taken.complete()
    sizes = [rank.process.world_size for rank in ranks if rank.process.world_size]
    return json.dumps({**said, "ranks": len(ranks), "world_size": max(sizes, default=None)})


def _sockets(pid: int) -> Path:
    """Where the companions of a job under `run` listen; a place that is not there for any other."""
    named = Path(linux_process.environment(pid).get("HANGSCOPE_SOCKETS", "/nonexistent"))
    usable = is_folder(named, lambda _: None) and may_follow(named, pid)
    return named if usable else Path("/nonexistent")
