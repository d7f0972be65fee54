"""`stacks` of a Ray cluster: the driver first, each process by the actor that people know, and what it waits for."""

from __future__ import annotations

from hangscope.model import Frame, Source
from hangscope.model.ray_cluster import RayActor, RayCluster, RayProcess, RayTask, RayThread, TaskState
from hangscope.report.actor_stacks import actor_stacks


def process(pid: int, *threads: RayThread, driver: bool = False, no_stack: str = "") -> RayProcess:
    samples = (threads,) if threads else ()
    return RayProcess(pid, "gpu-1", driver, f"ray::{pid}", Source("x"), samples=samples, no_stack=no_stack)


def test_each_process_is_listed_by_who_it_is() -> None:
    """Ray's own threads are left out, and a process without a stack says why."""
    task = RayTask("t", "Learner.step", "ACTOR_TASK", "1", "a", "", TaskState.RUNNING)
    waits = RayThread("MainThread", (Frame("main", "/job/job.py", 5),), call="ray.get", awaited=("t",))
    own = RayThread("gc", (Frame("run", "/x/lib/python3.11/threading.py", 1),))
    actor = RayActor("a", "Learner", "b\x1b[2J", "1", "ALIVE", "gpu-1", 2)
    ray = RayCluster(
        processes=(process(2, no_stack="not permitted"), process(1, waits, own, driver=True)),
        actors={"a": actor},
        tasks={"t": task},
    )
    lines = list(actor_stacks(ray))
    assert lines[0] == "driver (pid 1 on gpu-1): ray::1"
    assert lines[1] == "  MainThread waits in ray.get for Learner.step"
    assert lines[2] == "    main (/job/job.py:5)"
    assert lines[3].startswith("actor Learner 'b") and "\x1b" not in lines[3]
    assert lines[4] == "  no stack: not permitted"
    assert len(lines) == 5
