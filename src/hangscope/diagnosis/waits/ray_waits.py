"""The waits on a Ray cluster: driver → task → task, by the refs that each `ray.get` was given.

Where a process's memory did not show them, the tasks that it started and that have not ended are taken instead, and
the step is marked as a guess. A task that waits in nothing of Ray's is an end of the graph: it is blocked, works, or is
stopped; or it has not begun, since no node has what it asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

from hangscope.diagnosis.evidence.code_lines import user_frame
from hangscope.model import Frame
from hangscope.model.ray_cluster import RayActor, RayCluster, RayProcess, RayTask, RayThread, TaskState
from hangscope.text import is_own_code

YOUNG_S = 5.0
"""A task that began so short a time ago is moving, wherever it is."""
_STANDARD_LIBRARY = re.compile(
    r"^<|/lib(64)?/python3\.\d+t?/(?!(site|dist)-packages/)|(^|/)threading\.py$|/ray/_private/"
)
_QUEUE = "_QueueActor."
_OFTEN = 20
"""Times that a thread goes to sleep between two looks, some two seconds apart, where it is not in one wait."""
_CREATION = "f" * 16
"""What the id of the task that creates an actor begins with, before the actor's own."""
_CONTROLLERS = ("TrainController",)
_TRAIN_WORKERS = ("RayTrainWorker", "_RayTrainWorker", "RayTrainWorker_")
"""Ray Train: the controller asks its workers again and again how they are; they train in a thread of their own."""


class End(Enum):
    """Why somebody waits for no one."""

    BLOCKED = auto()
    """It is at one line, twice, and uses nothing."""
    WORKS = auto()
    FROZEN = auto()
    """The kernel has stopped it."""
    AWAITS = auto()
    """A coroutine that is suspended, or a wait for something that nobody knows: it may wait for others."""
    NO_RESOURCES = auto()
    NO_ACTOR = auto()
    """Its actor is being made or restarted, and why that takes long is not known."""
    NO_OBJECTS = auto()
    """Its arguments are fetched, or there is no room for them."""
    NOT_SEEN = auto()
    """Its process was not looked at."""


@dataclass(frozen=True, slots=True)
class Place:
    """A task, or an actor that trains in a thread of its own, with the process that it runs in."""

    key: str
    task: RayTask | None
    actor: RayActor | None
    process: RayProcess | None
    driver: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One place waits for another. `how` is said between them; `exact` where memory or Ray's tables say so."""

    to: str
    how: str
    exact: bool


class RayWaits:
    """The graph of one cluster."""

    def __init__(self, ray: RayCluster) -> None:
        self.ray = ray
        self._process = {(process.node, process.pid): process for process in ray.processes}
        self._by_pid: dict[int, list[RayProcess]] = {}
        for process in ray.processes:
            self._by_pid.setdefault(process.pid, []).append(process)
        self._steps: dict[str, list[Step]] = {}
        self._children: dict[str, list[RayTask]] = {}
        for task in ray.tasks.values():
            self._children.setdefault(task.parent, []).append(task)

    # ---- places ------------------------------------------------------------------------------------------------------

    @cached_property
    def starts(self) -> list[Place]:
        """The drivers; where none is there, every task that runs."""
        drivers = [task for task in self.ray.tasks.values() if task.is_driver and task.job in self.ray.drivers]
        found = [self.place(task.id) for task in drivers]
        seen = [each for each in found if each.process is not None]
        if seen:
            return seen
        return [self.place(task.id) for task in self.ray.tasks.values() if task.state.is_running and not task.is_driver]

    def place(self, key: str) -> Place:
        """A task by its id, or an actor by its own."""
        task = self.ray.tasks.get(key)
        if task is None:
            actor = self.ray.actors.get(key)
            return Place(key, None, actor, self._of_actor(actor))
        if task.is_driver:
            return Place(key, task, None, self._driver_of(task.job), driver=True)
        actor = self.ray.actors.get(task.actor)
        process = self._at(task.node, task.pid) if task.state.is_running else None
        return Place(key, task, actor, process or self._of_actor(actor))

    def _driver_of(self, job: str) -> RayProcess | None:
        pid = self.ray.drivers.get(job)
        return next((each for each in self._by_pid.get(pid or 0, ()) if each.driver), None)

    def _of_actor(self, actor: RayActor | None) -> RayProcess | None:
        return self._at(actor.node, actor.pid) if actor is not None and actor.state == "ALIVE" else None

    def _at(self, node: str | None, pid: int | None) -> RayProcess | None:
        if pid is None:
            return None
        if node is not None:
            return self._process.get((node, pid))
        found = self._by_pid.get(pid, [])
        return found[0] if len(found) == 1 else None

    # ---- steps -------------------------------------------------------------------------------------------------------

    def steps(self, place: Place) -> list[Step]:
        """What a place waits for; nothing where it is an end."""
        if place.key not in self._steps:
            self._steps[place.key] = list(dict.fromkeys(self._find_steps(place)))
        return self._steps[place.key]

    def _find_steps(self, place: Place) -> Iterator[Step]:
        task = place.task
        if task is None or _is_stopped(place.process):
            return
        if not task.state.is_running:
            yield from self._before_running(task)
            return
        thread = self.thread(place)
        if thread is not None and thread.call:
            yield from self._awaited(task, thread)
        elif place.actor is not None and place.actor.class_name in _CONTROLLERS:
            yield from (Step(each.id, "watches", True) for each in self._workers_of(place.actor))
        elif thread is None and place.process is not None and place.process.samples:
            yield from (Step(child.id, "may wait for", False) for child in self._open_children(task))

    def _workers_of(self, controller: RayActor) -> list[RayActor]:
        return [each for each in self.ray.actors.values() if _is_worker_of(each, controller)]

    def _awaited(self, task: RayTask, thread: RayThread) -> Iterator[Step]:
        how = f"waits in {thread.call} for"
        if self.waits_for_queue(thread):
            return
        known = [each for each in thread.awaited or () if each in self.ray.tasks and each != task.id]
        if known:
            yield from (Step(each, how, True) for each in known)
            return
        children = self._open_children(task)
        yield from (Step(child.id, how, False) for child in children)

    def waits_for_queue(self, thread: RayThread) -> bool:
        """Whether it waits for an item of a `ray.util.queue.Queue`, or for room in it: its actor only keeps them, and
        where its calls wait is on no stack."""
        names = [self.ray.tasks[each].name for each in thread.awaited or () if each in self.ray.tasks]
        return bool(names) and all(name.startswith(_QUEUE) for name in names)

    def _open_children(self, task: RayTask) -> list[RayTask]:
        """Of a coroutine Ray only says which actor started them: its creation counts as their parent."""
        of_actor = self._children.get(f"{_CREATION}{task.actor}", []) if task.actor else []
        found = [*self._children.get(task.id, ()), *of_actor]
        return [child for child in found if child.kind != "ACTOR_CREATION_TASK"]

    def _before_running(self, task: RayTask) -> Iterator[Step]:
        """What keeps a task that was submitted from running."""
        if task.state is TaskState.WAITS_FOR_ARGUMENTS:
            before = [each for each in self._children.get(task.parent, ()) if 0 < each.created_ns < task.created_ns]
            ready = [each for each in before if each.state is not TaskState.WAITS_FOR_ARGUMENTS]
            yield from (Step(each.id, "may need the result of", False) for each in ready)
        elif task.kind == "ACTOR_TASK":
            creation = [each for each in self.ray.tasks.values() if _creates(each, task.actor)]
            yield from (Step(each.id, "waits for its actor, made by", True) for each in creation)
            others = [each for each in self.ray.tasks.values() if _runs_at(each, task)]
            yield from (Step(each.id, "is queued behind", True) for each in others)

    # ---- ends --------------------------------------------------------------------------------------------------------

    def end(self, place: Place) -> End:
        """What a place does that waits for no one."""
        task = place.task
        if task is not None and not task.state.is_running:
            not_begun = _not_begun(task, place.actor)
            if not_begun is not None:
                return not_begun
        if _is_stopped(place.process):
            return End.FROZEN
        if place.process is None or not place.process.samples:
            return End.NOT_SEEN
        age_s = self.age_s(place)
        return End.WORKS if age_s is not None and age_s < YOUNG_S else self._seen(place, place.process)

    def _seen(self, place: Place, process: RayProcess) -> End:
        """What two looks at a process say."""
        thread = self.thread(place)
        if thread is None:
            return End.WORKS if process.works or _any_moves(process) else End.AWAITS
        if self._moves(place) or (process.works and not thread.call and not process.driver):
            return End.WORKS
        if place.task is None and self._goes_to_sleep_often(place):
            return End.WORKS  # a loop of short steps is at the same line at every look
        return End.AWAITS if thread.call and not self.waits_for_queue(thread) else End.BLOCKED

    def age_s(self, place: Place) -> float | None:
        """For how long a task has been in its state."""
        task = place.task
        if task is None or place.driver or not task.since_ns or self.ray.at_s is None:
            return None
        return max(0.0, self.ray.at_s - task.since_ns / 1e9)

    def _moves(self, place: Place) -> bool:
        frames = [self._thread_in(place, sample) for sample in (place.process.samples if place.process else ())]
        places = {_own_places(thread) for thread in frames if thread is not None}
        return len(places) > 1

    def _goes_to_sleep_often(self, place: Place) -> bool:
        looks = [self._thread_in(place, sample) for sample in (place.process.samples if place.process else ())]
        counts = [thread.switches for thread in looks if thread is not None and thread.switches is not None]
        return len(counts) > 1 and counts[-1] - counts[0] >= _OFTEN

    # ---- threads -----------------------------------------------------------------------------------------------------

    def thread(self, place: Place) -> RayThread | None:
        """The thread that runs a place's task, as it was seen last; None where no thread has it on its stack."""
        process = place.process
        return self._thread_in(place, process.samples[-1]) if process is not None and process.samples else None

    def _thread_in(self, place: Place, threads: Sequence[RayThread]) -> RayThread | None:
        if place.driver:
            return _drivers_thread(threads)
        running = _running(place, threads)
        if running is not None and (running.call or user_frame(running.frames) is not None):
            return running
        beside = [each for each in threads if user_frame(each.frames) is not None]
        if running is None and place.task is not None and place.task.state.is_running:
            # A task's own function is on no stack: it is a coroutine, or a name that Ray changed.
            return beside[0] if len(beside) == 1 and not self._is_async(threads) else None
        return beside[0] if beside else running

    @staticmethod
    def _is_async(threads: Sequence[RayThread]) -> bool:
        return any(thread.event_loop for thread in threads)

    def frame(self, place: Place) -> Frame | None:
        """The user's line at which a place is."""
        thread = self.thread(place)
        return user_frame(thread.frames) if thread is not None else None

    # ---- walks -------------------------------------------------------------------------------------------------------

    def ends(self) -> list[tuple[Place, tuple[Step, ...], Place]]:
        """(the start, the steps, the place) for every end that a start leads to, each once, by the shortest way."""
        found: dict[str, tuple[Place, tuple[Step, ...], Place]] = {}
        for start in self.starts:
            waiting: list[tuple[str, tuple[Step, ...]]] = [(start.key, ())]
            seen = {start.key}
            while waiting:
                key, way = waiting.pop(0)
                place = self.place(key)
                steps = self.steps(place)
                if not steps:
                    found.setdefault(key, (start, way, place))
                for step in steps:
                    if step.to not in seen:
                        seen.add(step.to)
                        waiting.append((step.to, (*way, step)))
        return list(found.values())

    def cycle(self) -> list[Place]:
        """Places that wait for each other with no way out, by exact steps alone; empty where there are none."""
        for start in self.starts:
            path: list[str] = []
            found = self._cycle_from(start.key, path, set())
            if found:
                return [self.place(key) for key in found]
        return []

    def _cycle_from(self, key: str, path: list[str], done: set[str]) -> list[str]:
        """A cycle below a place, by a walk that keeps its own stack: a stranger's file may hold a long chain."""
        stack: list[tuple[str, Iterator[Step]]] = [(key, iter(self.steps(self.place(key))))]
        path.append(key)
        while stack:
            at, steps = stack[-1]
            step = next(steps, None)
            if step is None:
                done.add(at)
                stack.pop()
                path.pop()
            elif step.exact and step.to in path:
                return path[path.index(step.to) :]
            elif step.exact and step.to not in done:
                path.append(step.to)
                stack.append((step.to, iter(self.steps(self.place(step.to)))))
        return []


def _not_begun(task: RayTask, actor: RayActor | None) -> End | None:
    """Why a task has not begun; None where its actor's process tells."""
    if task.state in (TaskState.WAITS_FOR_STORE_MEMORY, TaskState.FETCHES_ARGUMENTS, TaskState.WAITS_FOR_ARGUMENTS):
        return End.NO_OBJECTS
    if task.kind == "ACTOR_TASK":
        return None if actor is not None and actor.state == "ALIVE" else End.NO_ACTOR
    return End.NO_RESOURCES if task.state is TaskState.WAITS_FOR_A_NODE else End.NOT_SEEN


def _is_stopped(process: RayProcess | None) -> bool:
    return process is not None and process.state in ("T", "t")


def _creates(task: RayTask, actor: str) -> bool:
    return task.kind == "ACTOR_CREATION_TASK" and task.actor == actor


def _runs_at(other: RayTask, task: RayTask) -> bool:
    """Whether another task runs at the same actor: a queue waits while it does."""
    return other.actor == task.actor and other.state.is_running and other.kind == "ACTOR_TASK" and other.id != task.id


def _is_worker_of(actor: RayActor, controller: RayActor) -> bool:
    return actor.job == controller.job and actor.state == "ALIVE" and actor.class_name in _TRAIN_WORKERS


def _drivers_thread(threads: Sequence[RayThread]) -> RayThread | None:
    """The main thread, unless it is another one that waits for tasks."""
    main = next((each for each in threads if each.name == "MainThread"), None)
    if main is not None and main.call:
        return main
    return next((each for each in threads if each.call), main)


def _running(place: Place, threads: Sequence[RayThread]) -> RayThread | None:
    """The thread that has the task's own function on its stack."""
    if place.task is None:
        return None
    for thread in threads:
        if any(_is_of(frame, place.task.method) for frame in thread.frames):
            return thread
    return None


def _is_of(frame: Frame, method: str) -> bool:
    """Whether a frame is a task's own function: `run` is also what a thread of the standard library begins with."""
    return frame.name.rpartition(".")[2] == method and _STANDARD_LIBRARY.search(frame.filename) is None


def _any_moves(process: RayProcess) -> bool:
    """Whether any thread was somewhere else at the next look."""
    looks = [{thread.name: thread.frames for thread in sample} for sample in process.samples]
    return any(look != looks[0] for look in looks)


def _own_places(thread: RayThread) -> tuple[tuple[str, int], ...]:
    """The lines of a stack that are the user's, or else all."""
    own = [frame for frame in thread.frames if is_own_code(frame.filename)]
    return tuple((frame.filename, frame.line) for frame in own or thread.frames)
