"""What the API server of Kubernetes says of pods: `kubectl get pods -o json`, and the events beside them.

`hangscope collect --kubernetes` saves both, and people paste them. A pod says on which machine it ran, how each of its
containers ended, how often it was started anew, and whether its node threw it out or was lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hangscope.incident.pod_labels import JOB_LABELS
from hangscope.model import AFTER_HANG, Failure, FailureKind, Source
from hangscope.model.process_ends import TEXT_LIMIT, kind_of_end, plain_status
from hangscope.model.times import parse_time
from hangscope.model.values import host_name, text, whole

MOST_PODS = 16_384
_MOST_CONTAINERS = 32
_HANG_STATUS = 75
"""What `hangscope run --on-hang kill` ends with, unless another was asked for."""
_NEVER_STARTED = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
STOPPED = FailureKind.POD_STOPPED
_EVICTIONS = ("Evicted", "Preempting", "Preempted", "TaintManagerEviction")
_LOST = ("NodeLost", "NodeNotReady", "NodeUnreachable")
_GONE_BY = {
    "PreemptionByScheduler": "preempted by the scheduler",
    "DeletionByTaintManager": "deleted because its node was tainted",
    "EvictionByEvictionAPI": "evicted by request, as when a node is drained",
    "TerminationByKubelet": "ended by its node",
}
"""Reasons of the condition DisruptionTarget."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")


@dataclass(frozen=True, slots=True)
class PodEnd:
    """Something that ended a pod or a container in it. `whole`: all of the pod is gone, not one container alone."""

    failure: Failure
    whole: bool = False
    restarted: bool = False
    """Whether that container has been started anew and runs."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod. `machine` is the node that it ran on; in a verdict, the pod itself is the node that ranks name."""

    name: str
    namespace: str
    job: str | None
    machine: str | None
    ends: tuple[PodEnd, ...]
    restarts: int
    source: Source
    last_words: tuple[str, ...] = ()
    """What its containers that ended left in terminationMessagePath, or the end of their logs."""
    well: bool = False
    """Whether it runs and is ready: what an event says of it is past."""


def recognise_object(value: Mapping[str, Any]) -> bool:
    """A pod, or a list in which each is a pod or an event."""
    if value.get("kind") in ("Pod", "Event"):
        return value.get("apiVersion") is not None
    items = value.get("items")
    if value.get("kind") not in ("List", "PodList", "EventList") or not isinstance(items, list) or not items:
        return False
    named = {str(item.get("kind")) if isinstance(item, Mapping) else "" for item in items[:MOST_PODS]}
    return named <= {"Pod", "Event"} or (named == {"None"} and value["kind"] in ("PodList", "EventList"))


@dataclass(frozen=True, slots=True)
class Pods:
    """What one file says of each pod, in the list's order."""

    pods: tuple[Pod, ...]

    @property
    def useful(self) -> bool:
        return any(pod.ends for pod in self.pods)


def logs(report: Pods, data: bytes, file: str) -> Iterator[tuple[str, bytes]]:
    """The last words of containers, which are the end of a log."""
    del data
    for pod in report.pods:
        for words in pod.last_words:
            yield f"{file} {pod.source.place} {pod.name}".strip(), words.encode("utf-8", "replace")


def read_object(value: Mapping[str, Any], file: str) -> Pods:
    listed = value.get("items")
    rows = listed[:MOST_PODS] if isinstance(listed, list) else [value]
    kind = str(value.get("kind")).removesuffix("List")
    found = []
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            continue
        place = f"items[{index}]" if isinstance(listed, list) else ""
        event = (row.get("kind") or kind) == "Event"
        pod = _event(row, Source(file, place)) if event else _pod(row, Source(file, place))
        if pod is not None:
            found.append(pod)
    return Pods(tuple(found))


def _pod(row: Mapping[str, Any], source: Source) -> Pod | None:
    metadata = _part(row, "metadata")
    name = text(metadata.get("name"))
    if name is None or not _NAME.fullmatch(name):
        return None
    status = _part(row, "status")
    containers = list(_containers(row))
    return Pod(
        name,
        text(metadata.get("namespace")) or "",
        _job(_part(metadata, "labels")),
        host_name(text(_part(row, "spec").get("nodeName"))),
        tuple(_of_pod(name, metadata, status, source)) + tuple(_of_containers(name, metadata, containers, source)),
        max((whole(state.get("restartCount")) or 0 for state, _ in containers), default=0),
        source,
        last_words=tuple(_last_words(containers)),
        well=_condition(status, "Ready") is not None and metadata.get("deletionTimestamp") is None,
    )


def _job(labels: Mapping[str, Any]) -> str | None:
    return next((found for label in JOB_LABELS if (found := text(labels.get(label)))), None)


# ---- the pod as a whole ----------------------------------------------------------------------------------------------


def _of_pod(name: str, metadata: Mapping[str, Any], status: Mapping[str, Any], source: Source) -> Iterator[PodEnd]:
    """Thrown out by its node, lost with it, or never started."""
    reason = text(status.get("reason")) or ""
    message = text(status.get("message")) or ""
    at_ns = parse_time(text(metadata.get("deletionTimestamp")) or "")
    if reason in _LOST or status.get("phase") == "Unknown":
        said = f"pod {name}: {reason or 'phase Unknown'}{_more(message)}"
        yield PodEnd(_failure(FailureKind.NODE_FAILED, said, source, name, at_ns), whole=True)
        return
    disrupted = _condition(status, "DisruptionTarget")
    if reason in _EVICTIONS or disrupted is not None:
        detail = message or _disruption(disrupted)
        said = f"pod {name}: {reason or 'DisruptionTarget'}{_more(detail)}"
        yield PodEnd(_failure(FailureKind.EVICTED, said, source, name, at_ns, detail=detail), whole=True)
        return
    unscheduled = _condition(status, "PodScheduled", "False")
    if unscheduled is not None and status.get("phase") == "Pending":
        detail = text(unscheduled.get("message")) or text(unscheduled.get("reason")) or "not scheduled"
        said = f"pod {name} is Pending: {detail}"
        yield PodEnd(_failure(FailureKind.POD_PENDING, said, source, name, None, detail=detail), whole=True)


def _disruption(condition: Mapping[str, Any] | None) -> str:
    found = condition or {}
    reason = text(found.get("reason")) or "no reason given"
    return _GONE_BY.get(reason) or text(found.get("message")) or reason


def _condition(status: Mapping[str, Any], kind: str, value: str = "True") -> Mapping[str, Any] | None:
    listed = status.get("conditions")
    for condition in listed[:_MOST_CONTAINERS] if isinstance(listed, list) else ():
        if isinstance(condition, Mapping) and (condition.get("type"), condition.get("status")) == (kind, value):
            return condition
    return None


# ---- its containers --------------------------------------------------------------------------------------------------


def _containers(row: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(what is said of a container, what was asked for it), init containers among them."""
    spec = _part(row, "spec")
    status = _part(row, "status")
    for states, asked in (("initContainerStatuses", "initContainers"), ("containerStatuses", "containers")):
        wanted = {text(each.get("name")): each for each in _objects(spec.get(asked))}
        for state in _objects(status.get(states)):
            yield state, wanted.get(text(state.get("name")), {})


def _of_containers(
    name: str,
    metadata: Mapping[str, Any],
    containers: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    source: Source,
) -> Iterator[PodEnd]:
    deleted = metadata.get("deletionTimestamp") is not None
    for state, asked in containers:
        now = _part(state, "state")
        ended = _part(now, "terminated") or _part(_part(state, "lastState"), "terminated")
        runs = "running" in now
        if ended:
            end = _ended(name, text(state.get("name")) or "?", ended, asked, source, stopped=deleted)
            if end is not None:
                yield PodEnd(end, restarted=runs)
            continue
        waiting = _part(now, "waiting")
        reason = text(waiting.get("reason")) or ""
        if reason in _NEVER_STARTED:
            detail = f"{reason}{_more(text(waiting.get('message')))}"
            said = f"pod {name}, container {text(state.get('name'))}: {detail}"
            yield PodEnd(_failure(FailureKind.POD_PENDING, said, source, name, None, detail=detail))


def _last_words(containers: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Iterator[str]:
    """Of containers that have not been started anew: what is said of an earlier one is another attempt's."""
    for state, _ in containers:
        message = text(_part(_part(state, "state"), "terminated").get("message"))
        if message is not None:
            yield message


def _ended(
    name: str, container: str, ended: Mapping[str, Any], asked: Mapping[str, Any], source: Source, *, stopped: bool
) -> Failure | None:
    """How a container ended; None where that was well."""
    status = plain_status(whole(ended.get("exitCode")) or 0)
    reason = text(ended.get("reason")) or ""
    at_ns = parse_time(text(ended.get("finishedAt")) or "")
    last_words = _more(_last_line(text(ended.get("message"))))
    where = f"pod {name}, container {container}"
    if reason == "OOMKilled":
        limit = text(_part(_part(asked, "resources"), "limits").get("memory"))
        over = f", over its memory limit of {limit}" if limit else ""
        said = f"{where}: OOMKilled{over}{last_words}"
        detail = f"OOMKilled, memory limit {limit}" if limit else "OOMKilled"
        return _failure(FailureKind.HOST_OOM, said, source, name, at_ns, code=-9, detail=detail)
    if status == 0:
        return None
    said = f"{where}: ended with exit code {whole(ended.get('exitCode'))}{f' ({reason})' if reason else ''}{last_words}"
    if status == _HANG_STATUS and _runs_hangscope(asked):
        return _failure(FailureKind.CANCELLED, said, source, name, at_ns, code=status, detail=AFTER_HANG, effect=True)
    # SIGTERM is somebody's order; so is what a pod that is being deleted ends with
    effect = stopped or status == -15
    return _failure(kind_of_end(status), said, source, name, at_ns, code=status, effect=effect)


def _last_line(message: str | None) -> str | None:
    """Of a message that is the end of a log, which is read as one besides, the last line says most."""
    lines = [line.strip() for line in (message or "").splitlines() if re.search(r"\w", line)]
    return lines[-1] if lines else None


def _runs_hangscope(asked: Mapping[str, Any]) -> bool:
    words = asked.get("command")
    return isinstance(words, list) and any("hangscope" in str(word) for word in words[:4])


# ---- events ----------------------------------------------------------------------------------------------------------


def _event(row: Mapping[str, Any], source: Source) -> Pod | None:
    """An event of a pod that tells of its end: the pod itself may be gone from the list by then."""
    about = _part(row, "involvedObject") or _part(row, "regarding")
    name = text(about.get("name"))
    reason = text(row.get("reason")) or ""
    if about.get("kind") != "Pod" or name is None or not _NAME.fullmatch(name):
        return None
    message = text(row.get("message")) or text(row.get("note")) or reason
    kind = _kind_of_event(reason, message)
    if kind is None:
        return None
    at_ns = parse_time(text(row.get("lastTimestamp")) or text(row.get("eventTime")) or "")
    machine = host_name(text(_part(row, "source").get("host"))) if kind == FailureKind.EVICTED else None
    end = PodEnd(_failure(kind, f"pod {name}: {reason}: {message}", source, name, at_ns, detail=message), whole=True)
    return Pod(name, text(about.get("namespace")) or "", None, machine, (end,), 0, source)


def _kind_of_event(reason: str, message: str) -> FailureKind | None:
    if reason in _LOST:
        return FailureKind.NODE_FAILED
    if reason == "Killing" and message.startswith("Stopping container"):
        return STOPPED  # not for a failed probe, or a container beside it that ended
    return FailureKind.EVICTED if reason in _EVICTIONS else None


# ---- small parts -----------------------------------------------------------------------------------------------------


def _failure(kind: FailureKind, said: str, source: Source, pod: str, at_ns: int | None, **values: Any) -> Failure:
    line = " ".join(said.split())[:TEXT_LIMIT]
    detail = values.pop("detail", None)
    return Failure(kind, line, source, None, pod, at_ns=at_ns, detail=detail[:TEXT_LIMIT] if detail else None, **values)


def _more(message: str | None) -> str:
    return f": {message}" if message else ""


def _part(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    rows = value[:_MOST_CONTAINERS] if isinstance(value, list) else []
    return [row for row in rows if isinstance(row, Mapping)]
