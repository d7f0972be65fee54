"""The stacks of a Ray cluster's processes as lines: drivers first, then actors and tasks; who waits says for what."""

from __future__ import annotations

from collections.abc import Iterator

from hangscope.model.ray_cluster import RayCluster, RayProcess, RayThread
from hangscope.report.safe_text import safe
from hangscope.text import is_own_code

MOST_PROCESSES = 200
MOST_FRAMES = 40


def actor_stacks(ray: RayCluster, *, all_threads: bool = False) -> Iterator[str]:
    """Of each process the threads that run the user's code or wait for tasks, as they were at the last look."""
    ordered = sorted(ray.processes, key=lambda each: (not each.driver, each.node, each.pid))
    for process in ordered[:MOST_PROCESSES]:
        yield safe(f"{_who(ray, process)} (pid {process.pid} on {process.node}): {process.title}")
        threads = process.samples[-1] if process.samples else ()
        if not threads:
            yield safe(f"  no stack: {process.no_stack or 'none was taken'}")
        shown = [thread for thread in threads if all_threads or _matters(thread)]
        for thread in shown:
            yield from _thread(ray, thread)
        if threads and not shown:
            yield "  in no line of the user's code"
    if len(ordered) > MOST_PROCESSES:
        yield f"and {len(ordered) - MOST_PROCESSES} more"


def _who(ray: RayCluster, process: RayProcess) -> str:
    rank = f", rank {process.rank}" if process.rank is not None else ""
    if process.driver:
        return f"driver{rank}"
    places = (actor for actor in ray.actors.values() if (actor.node, actor.pid) == (process.node, process.pid))
    actor = next(places, None)
    return f"{actor.label if actor is not None else 'worker'}{rank}"


def _matters(thread: RayThread) -> bool:
    return bool(thread.call) or any(is_own_code(frame.filename) for frame in thread.frames)


def _thread(ray: RayCluster, thread: RayThread) -> Iterator[str]:
    awaited = [ray.tasks[task].name for task in thread.awaited or () if task in ray.tasks]
    waits = f" waits in {thread.call}" if thread.call else ""
    names = f" for {', '.join(awaited[:8])}" if awaited else ""
    yield safe(f"  {thread.name or 'a thread'}{waits}{names}")
    for frame in thread.frames[:MOST_FRAMES]:
        yield safe(f"    {frame.name} ({frame.filename}:{frame.line})")
