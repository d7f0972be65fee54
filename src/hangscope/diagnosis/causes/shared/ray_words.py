"""Actors, tasks and drivers of a Ray cluster as people say them, and where each is."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from hangscope.diagnosis.evidence.code_lines import function_line, shown, user_frame
from hangscope.diagnosis.verdict import ActorCulprit, Finding, SeenIn
from hangscope.diagnosis.verdict import Place as CodePlace
from hangscope.diagnosis.waits.ray_waits import End, Place, RayWaits, Step
from hangscope.model import Source
from hangscope.model.ray_cluster import ActorEnd, RayActor, RayCluster
from hangscope.text import duration, plural

_FRAMES = 3
_DEATHS = {
    ActorEnd.MEMORY: "killed by Ray's memory monitor, since its node ran out of memory",
    ActorEnd.CONSTRUCTOR: "its constructor raised",
    ActorEnd.ENVIRONMENT: "its runtime environment could not be set up",
    ActorEnd.UNSCHEDULABLE: "no node can run it",
    ActorEnd.NODE: "its node was lost",
    ActorEnd.SILENT: "its process ended without a word, as by SIGKILL or a crash",
}


def who(place: Place) -> str:
    """``actor Learner 'learner-2' (rank 2)``, ``task preprocess``, ``the driver``."""
    rank = f" (rank {place.process.rank})" if place.process is not None and place.process.rank is not None else ""
    if place.driver:
        return f"the driver{rank}"
    if place.actor is not None:
        return f"{place.actor.label}{rank}"
    return f"task {place.task.name}{rank}" if place.task is not None else f"a worker{rank}"


def on_node(place: Place) -> str:
    return f" (pid {place.process.pid} on {place.process.node})" if place.process is not None else ""


def is_in(waits: RayWaits, place: Place) -> str:
    """``is in step (train.py:8)``; where no line is seen, what Ray calls what it runs."""
    frame = waits.frame(place)
    if frame is not None:
        return f"is in {function_line(frame)}"
    if place.task is not None and not place.driver:
        end = waits.end(place)
        awaits = ", suspended in an await that no stack shows" if end is End.AWAITS else ""
        return f"runs {place.task.name}{awaits}"
    return "is in no line of the user's code"


def is_stopped(place: Place) -> str:
    return f"is stopped (state {place.process.state})" if place.process is not None else "is stopped"


def code_step(waits: RayWaits, place: Place) -> str:
    frame = waits.frame(place)
    where = f" at {frame.filename}:{frame.line}" if frame is not None else ""
    return f"code: find out what {who(place)} waits for{where}"


def wake_step(place: Place) -> str:
    if place.process is None:
        return "find out who stopped it"
    return f"node {place.process.node}: who stopped pid {place.process.pid}? `kill -CONT {place.process.pid}`"


def seconds(value: float) -> str:
    return duration(value)


def culprit(waits: RayWaits, place: Place) -> ActorCulprit:
    process = place.process
    thread = waits.thread(place)
    frame = waits.frame(place)
    where = None
    if frame is not None and thread is not None and process is not None:
        code = process.code.get((frame.filename, frame.line))
        where = CodePlace(frame.filename, frame.line, frame.name, SeenIn.STACK, code, thread.frames)
    actor = place.actor
    return ActorCulprit(
        label=who(place),
        class_name=actor.class_name if actor is not None else None,
        name=actor.name or None if actor is not None else None,
        actor_id=actor.id if actor is not None else None,
        task=place.task.name if place.task is not None and not place.driver else None,
        node=process.node if process is not None else None,
        pid=process.pid if process is not None else None,
        rank=process.rank if process is not None else None,
        why=is_in(waits, place),
        where=where,
    )


def dead_culprit(actor: RayActor) -> ActorCulprit:
    return ActorCulprit(
        label=actor.label,
        class_name=actor.class_name,
        name=actor.name or None,
        actor_id=actor.id,
        task=None,
        node=actor.node,
        pid=actor.pid,
        rank=None,
        why=f"died: {death(actor)}",
        where=None,
    )


# ---- findings --------------------------------------------------------------------------------------------------------


def way_findings(waits: RayWaits, start: Place, way: Sequence[Step]) -> Iterator[Finding]:
    """One finding for each step: who waits at which line for what."""
    at = start
    for step in way:
        yield _step_finding(waits, at, step)
        at = waits.place(step.to)


def steps_of(waits: RayWaits, place: Place, among: Collection[Place]) -> Iterator[Finding]:
    keys = {each.key for each in among}
    for step in waits.steps(place):
        if step.to in keys and step.exact:
            yield _step_finding(waits, place, step)


def _step_finding(waits: RayWaits, place: Place, step: Step) -> Finding:
    to = waits.place(step.to)
    what = who(to)
    if to.task is not None and to.actor is not None:
        what = f"{to.task.name} of {who(to)}"
    running = (
        f", which runs {place.task.name}," if place.task is not None and not place.driver and place.process else ""
    )
    if place.task is not None and not place.task.state.is_running:
        running = f": {place.task.name}"
    guess = "" if step.exact else " (one of the tasks that it started and that have not ended)"
    thread = waits.thread(place) if place.task is not None and place.task.state.is_running else None
    detail = shown(thread.frames, _FRAMES) if thread is not None and user_frame(thread.frames) else ()
    return Finding(f"{who(place)}{on_node(place)}{running} {step.how} {what}{guess}", _sources(waits, place), detail)


def end_finding(waits: RayWaits, place: Place) -> Finding:
    """What the end of the waits does."""
    thread = waits.thread(place)
    detail = shown(thread.frames, _FRAMES) if thread is not None and user_frame(thread.frames) else ()
    process = place.process
    task = f" in {place.task.name}" if place.task is not None and not place.driver else ""
    age = waits.age_s(place)
    since = f" for {duration(age)}" if age is not None else ""
    end = waits.end(place)
    if end is End.NO_RESOURCES:
        text = f"{who(place)} has waited{since} for a node with {amounts(place.task.resources) if place.task else '?'}"
    elif process is None:
        text = f"{who(place)} has waited{since}, and no process of it was seen"
    elif end is End.FROZEN:
        text = f"{who(place)}{on_node(place)} is stopped by a signal (state {process.state}){task}{since}"
    else:
        share = f", using {process.cpu_share:.0%} of a core" if process.cpu_share is not None else ""
        queue = thread is not None and waits.waits_for_queue(thread)
        idle = "waits for Ray's queue" if queue else "waits for nothing of Ray's and does not move"
        does = {End.WORKS: "works", End.BLOCKED: idle}.get(end, "is")
        text = f"{who(place)}{on_node(place)} {does}{task}{since}{share}"
        if process.no_stack and not process.samples:
            text += f"; no stack: {process.no_stack}"
    return Finding(text, _sources(waits, place), detail)


def _sources(waits: RayWaits, place: Place) -> tuple[Source, ...]:
    if place.process is not None:
        return (place.process.source,)
    return (waits.ray.source,) if waits.ray.source is not None else ()


# ---- resources -------------------------------------------------------------------------------------------------------


def amounts(resources: Mapping[str, float]) -> str:
    """``2 CPU, 1 GPU``."""
    named = [f"{value:g} {name}" for name, value in sorted(resources.items()) if value]
    return ", ".join(named) or "its resources"


def wanted(place: Place, ray: RayCluster) -> str:
    resources = place.task.resources if place.task is not None else {}
    if not resources and place.actor is not None:
        resources = place.actor.resources
    if not resources and ray.pending_groups:
        resources = ray.pending_groups[0]
    return amounts(resources)


def fits_anywhere(place: Place, ray: RayCluster) -> bool:
    """Whether some node could give it if it were empty."""
    resources = (place.task.resources if place.task is not None else {}) or (
        place.actor.resources if place.actor else {}
    )
    alive = [node for node in ray.nodes if node.alive]
    return any(all(node.total.get(name, 0.0) >= value for name, value in resources.items()) for node in alive)


def resource_findings(ray: RayCluster) -> Iterator[Finding]:
    source = (ray.source,) if ray.source is not None else ()
    shown_kinds = ("CPU", "GPU")
    for node in ray.nodes[:8]:
        if node.alive:
            parts = [
                f"{node.free.get(kind, 0.0):g} of {node.total[kind]:g} {kind}"
                for kind in shown_kinds
                if kind in node.total
            ]
            yield Finding(f"node {node.name} has {', '.join(parts) or 'no CPU'} free", source)
    holders: dict[str, int] = {}
    for actor in ray.actors.values():
        if actor.state == "ALIVE" and actor.resources:
            holders[actor.class_name] = holders.get(actor.class_name, 0) + 1
    held = ", ".join(f"{plural(count, 'actor')} {name}" for name, count in sorted(holders.items())[:6])
    if held:
        yield Finding(f"resources are held by {held}", source)


# ---- deaths ----------------------------------------------------------------------------------------------------------


def death(actor: RayActor) -> str:
    """Why an actor died, in a few words."""
    if actor.ended_by in _DEATHS:
        return _DEATHS[actor.ended_by]
    return f"its process ended with exit code {actor.exit_code}" if actor.exit_code is not None else "its process ended"


def death_lines(actor: RayActor) -> tuple[str, ...]:
    lines = [line.strip() for line in actor.death.splitlines() if line.strip()]
    return tuple(line[:300] for line in lines[:3])


def death_steps(actor: RayActor) -> list[str]:
    where = f"node {actor.node}: " if actor.node else ""
    if actor.ended_by is ActorEnd.MEMORY:
        return [f"{where}give its tasks more memory, or run fewer at a time (`num_cpus`, `memory` of the actor)"]
    logs = f"read worker-*-{actor.pid}.err in the session's logs" if actor.pid else "read the session's logs"
    return [f"{where}{logs}, and the kernel's messages for an out-of-memory kill"]
