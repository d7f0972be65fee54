"""The pods of a job on Kubernetes: their files through `kubectl exec`, their logs, and what the API server says.

A pod that is over cannot be entered, but its log and its status can be had as long as its object is there; so can the
log of a container that was started anew, once. Rights needed: docs/manifests/rbac.yaml.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hangscope.errors import CollectError
from hangscope.incident.collect.fetch_plan import RUN, is_one_of, of_nodes
from hangscope.incident.collect.fetch_sources import Deadline, Entry, Listing, Sink, Source, Unreachable
from hangscope.incident.collect.job_nodes import ask
from hangscope.incident.collect.remote_node import Node
from hangscope.incident.layout import MANIFEST
from hangscope.incident.manifest import Missing
from hangscope.incident.pod_labels import JOB_LABELS
from hangscope.safeio import bounded_json, limits

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_RANK_LABELS = (
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-index",
    "training.kubeflow.org/replica-type",
)
_LOGS = "/container-logs/"
_ATTEMPT = "attempt_"
_POD = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")
_CONTAINER = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_DRAWN = r"[bcdfghjklmnpqrstvwxz2456789]{5}"
"""The end that Kubernetes draws for a name: neither vowels nor what looks like one."""
_BARE = re.compile(r"[a-z0-9][a-z0-9.-]*")
_LOG_BYTES = 64 << 20
_NO_PREVIOUS = "previous terminated container"
_METADATA = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
_SPEC = ("nodeName", "restartPolicy", "terminationGracePeriodSeconds", "priorityClassName", "shareProcessNamespace")
_STATUS = ("phase", "reason", "message", "conditions", "startTime", "containerStatuses", "initContainerStatuses")
_EVENT = ("apiVersion", "kind", "involvedObject", "regarding", "reason", "message", "note", "type", "count", "source")
_EVENT_TIMES = ("firstTimestamp", "lastTimestamp", "eventTime")
_MOST_EVENTS = 5_000


@dataclass(frozen=True, slots=True)
class Kubectl:
    """How kubectl is called: the command, and the namespace where one is given."""

    command: Sequence[str] = ("kubectl",)
    namespace: str | None = None

    def words(self, *verb: str) -> tuple[str, ...]:
        where = ("--namespace", self.namespace) if self.namespace else ()
        return (*self.command, *verb, *where)

    def items(self, *verb: str) -> list[Mapping[str, Any]]:
        """The objects in its answer."""
        try:
            value = bounded_json.loads(ask((*self.words(*verb), "--output", "json")).encode())
            rows = value["items"]
            return [row for row in rows if isinstance(row, Mapping)]
        except (ValueError, KeyError, TypeError) as error:
            raise CollectError(f"kubectl's answer is not a list of pods ({error})") from None


def kubernetes(
    selector: str,
    *,
    namespace: str | None = None,
    container: str | None = None,
    patterns: Sequence[str] = (),
    defaults: bool = True,
    any_job: bool = False,
    kubectl: Sequence[str] = ("kubectl",),
) -> tuple[list[Source], list[Missing]]:
    """The pods of a selector or of a job's name, with what the API server says of them; and what cannot be had. Of a
    disk that jobs share, the incidents of these pods are taken, unless the caller picks a job by its name (`any_job`).
    """
    client = Kubectl(kubectl, namespace)
    rows = _pods(client, selector)
    names = [_name(row) for row in rows]
    odd = [name for name in names if not _POD.fullmatch(name)]
    if odd:
        raise CollectError(f"kubectl answered {odd[0][:80]!r}, which is not a pod's name")
    events, gone = _events(client, rows)
    sources: list[Source] = [Statuses(rows, events)]
    own = None if any_job or not _is_job(rows) else OwnNodes(rows)
    for name, row in zip(names, rows, strict=True):
        found = _containers(row)
        inside = _entered(row, found, container)
        if inside is None:
            gone.append(Missing(f"files of {name}", f"{_why_closed(row)}, and only a running one can be entered", name))
        shell = () if inside is None else (*client.words("exec", "--stdin"), name, *inside, "--", "sh", "-s")
        logs = [each for each in found if container in (None, each.name)]
        sources.append(Pod(name, shell, client, logs, patterns, defaults, own))
    return sources, gone


def _pods(client: Kubectl, selector: str) -> list[Mapping[str, Any]]:
    """By a selector of labels; a bare name that no label has is taken for a job's."""
    asked = [selector]
    if _BARE.fullmatch(selector):
        asked += [f"{label}={selector}" for label in JOB_LABELS]
    for each in asked:
        if rows := client.items("get", "pods", "--selector", each):
            return rows
    raise CollectError(
        f"no pod matches {selector!r}",
        hint="is it the right namespace?  kubectl get pods --show-labels",
    )


def _is_job(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether they are the pods of a job; a DaemonSet's are not, which reads what jobs left on its machine."""
    return any(_some(_part(_part(row, "metadata"), "labels"), JOB_LABELS) for row in rows)


class OwnNodes:
    """What `run` in the pods of a job calls its node: the pod, its host name, or with the host's network the machine.
    Pods that were there before them have names of the same make: a controller replaces what it numbers or draws."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        specs = [_part(row, "spec") for row in rows]
        said = [spec.get(key) for spec in specs for key in ("hostname", "nodeName")]
        self._names = {*(_name(row) for row in rows), *(name for name in said if isinstance(name, str))}
        self._makes = {make for row in rows for make in _makes(row)}

    def __contains__(self, node: object) -> bool:
        name = str(node)
        return is_one_of(name, self._names) or any(re.fullmatch(make, name.partition(".")[0]) for make in self._makes)


def _makes(row: Mapping[str, Any]) -> Iterator[str]:
    """A pod's name after its job's, with any number for a number and any end for one that was drawn."""
    name = _name(row)
    for job in _some(_part(_part(row, "metadata"), "labels"), JOB_LABELS).values():
        if not isinstance(job, str) or not name.startswith(f"{job}-"):
            continue
        words = name[len(job) + 1 :].split("-")
        numbered = [r"\d+" if word.isdigit() else re.escape(word) for word in words]
        if re.fullmatch(_DRAWN, words[-1]):
            numbered[-1] = rf"(?:\d+|{_DRAWN})"
        yield "-".join((re.escape(job), *numbered))


def _name(row: Mapping[str, Any]) -> str:
    return str(_part(row, "metadata").get("name"))


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    runs: bool
    restarts: int


def _containers(row: Mapping[str, Any]) -> list[Container]:
    """In the order of the pod's own description, sidecars that are init containers last."""
    found = []
    status = _part(row, "status")
    for key in ("containerStatuses", "initContainerStatuses"):
        for state in _objects(status.get(key)):
            name = str(state.get("name"))
            count = state.get("restartCount")
            restarts = count if isinstance(count, int) else 0
            if _CONTAINER.fullmatch(name):
                found.append(Container(name, "running" in _part(state, "state"), restarts))
    return found


def _entered(row: Mapping[str, Any], containers: Sequence[Container], wanted: str | None) -> tuple[str, ...] | None:
    """The option for the container to enter; None where there is none. Where the pod runs and the API server says
    nothing of containers, kubectl chooses."""
    if _part(row, "status").get("phase") != "Running":
        return None
    running = [each.name for each in containers if each.runs]
    if wanted is not None:
        return ("--container", wanted) if wanted in running or not containers else None
    if not containers:
        return ()
    usual = _part(_part(row, "metadata"), "annotations").get(_DEFAULT_CONTAINER)
    chosen = usual if usual in running else next(iter(running), None)
    return None if chosen is None else ("--container", str(chosen))


def _why_closed(row: Mapping[str, Any]) -> str:
    status = _part(row, "status")
    reason = f" ({status['reason']})" if isinstance(status.get("reason"), str) else ""
    phase = status.get("phase")
    return f"its pod is {phase}{reason}" if phase != "Running" else "its container does not run"


class Pod(Node):
    """A pod's files, where it can be entered, and its containers' logs, where no `run` left its own."""

    def __init__(
        self,
        name: str,
        shell: Sequence[str],
        client: Kubectl,
        containers: Sequence[Container],
        patterns: Sequence[str],
        defaults: bool,
        own: OwnNodes | None = None,
    ) -> None:
        super().__init__(name, shell, patterns, defaults)
        self._client = client
        self._containers = containers
        self._own = own

    def listing(self, deadline: Deadline) -> Listing:
        inside = Listing((), closed=True)
        if self.command:
            try:
                inside = self._of_this_job(super().listing(deadline))
            except Unreachable as error:  # no shell in the image, or no right to enter: the logs are there all the same
                inside = Listing((), ((f"files of {self.name}", str(error)),), closed=True)
        has_run = any(entry.path.rpartition("/")[2] in (MANIFEST, RUN) for entry in inside.entries)
        logs = () if has_run else tuple(_log_entries(self._containers))
        return replace(inside, entries=(*inside.entries, *logs))

    def _of_this_job(self, listed: Listing) -> Listing:
        """Without the incidents of other jobs on the same disk; where that leaves none, it is said."""
        if self._own is None:
            return listed
        ours, others = of_nodes(listed, self._own.__contains__)
        if not others or any(entry.path.rpartition("/")[2] in (MANIFEST, RUN) for entry in ours.entries):
            return ours
        what = f"an incident of this job's pods in {self.name}"
        why = f"those there are of other nodes ({', '.join(others[:3])}); --job NAME takes one of them"
        return replace(ours, notes=(*ours.notes, (what, why)))

    def fetch(self, wanted: Sequence[Entry], sink: Sink, deadline: Deadline) -> None:
        logs = [entry for entry in wanted if entry.path.startswith(_LOGS)]
        files = [entry for entry in wanted if not entry.path.startswith(_LOGS)]
        for entry in logs:
            sink(entry, io.BytesIO(self._log(entry, deadline)), None)
        if files:
            super().fetch(files, sink, deadline)

    def _log(self, entry: Entry, deadline: Deadline) -> bytes:
        container, attempt, _ = entry.path[len(_LOGS) :].split("/")
        now = next((each.restarts for each in self._containers if each.name == container), 0)
        previous = () if attempt == f"{_ATTEMPT}{now}" else ("--previous",)
        limit = ("--container", container, f"--limit-bytes={_LOG_BYTES}", *previous)
        try:
            done = subprocess.run(
                (*self._client.words("logs"), self.name, *limit),
                capture_output=True,
                timeout=deadline.left or 0.1,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise Unreachable(f"no log within {deadline.seconds:g} s") from None
        except OSError as error:
            raise Unreachable(f"{self._client.command[0]}: {error.strerror}") from None
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        if done.returncode and _NO_PREVIOUS not in "".join(words[-1:]):
            raise Unreachable(words[-1][: limits.NODE_STDERR_BYTES] if words else f"status {done.returncode}")
        return done.stdout


def _log_entries(containers: Sequence[Container]) -> Iterator[Entry]:
    """Each container's log, and that of the one before it: as an earlier attempt, which readers leave out."""
    for each in containers:
        yield Entry(f"{_LOGS}{each.name}/{_ATTEMPT}{each.restarts}/{each.name}.log")
        if each.restarts:
            yield Entry(f"{_LOGS}{each.name}/{_ATTEMPT}{each.restarts - 1}/{each.name}.log")


class Statuses:
    """What the API server says of the pods, as files: pods.json and events.json, as kubectl writes them. Environment,
    arguments and annotations are left out, for what they may hold."""

    name = "kubernetes"
    is_node = False

    def __init__(self, pods: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> None:
        self._files = {"pods.json": _document([_kept_pod(pod) for pod in pods])}
        if events:
            self._files["events.json"] = _document([_kept_event(event) for event in events])

    def listing(self, deadline: Deadline) -> Listing:  # noqa: ARG002  # as every source has it
        return Listing(tuple(Entry(name) for name in self._files))

    def fetch(self, wanted: Sequence[Entry], sink: Sink, deadline: Deadline) -> None:  # noqa: ARG002
        for entry in wanted:
            sink(entry, io.BytesIO(self._files[entry.path]), None)

    def stop(self) -> None:
        """Nothing is under way."""


def _document(items: Sequence[Mapping[str, Any]]) -> bytes:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1).encode()


def _kept_pod(row: Mapping[str, Any]) -> dict[str, Any]:
    metadata = _part(row, "metadata")
    spec = _part(row, "spec")
    labels = _part(metadata, "labels")
    asked = {
        key: [_kept_container(each) for each in _objects(spec.get(key))]
        for key in ("initContainers", "containers")
        if key in spec
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**_some(metadata, _METADATA), "labels": _some(labels, (*JOB_LABELS, *_RANK_LABELS))},
        "spec": {**_some(spec, _SPEC), **asked},
        "status": _some(_part(row, "status"), _STATUS),
    }


def _kept_container(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Its name, image and limits; of its command only whether it is hangscope's."""
    words = [str(word) for key in ("command", "args") for word in _list(asked.get(key))]
    ours = any(re.search(r"\bhangscope\s+run\b", word) for word in (*words, " ".join(words)))
    return {**_some(asked, ("name", "image", "resources")), **({"command": ["hangscope", "run"]} if ours else {})}


def _kept_event(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "Event", "apiVersion": "v1", **_some(row, (*_EVENT, *_EVENT_TIMES))}


def _events(client: Kubectl, pods: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Missing]]:
    """Events about these pods, and about earlier ones of their jobs; without the right to see them, a gap."""
    try:
        rows = client.items("get", "events", "--field-selector", "involvedObject.kind=Pod")
    except CollectError as error:
        return [], [Missing("events of the pods", str(error))]
    names = {_name(pod) for pod in pods}
    jobs = {str(name) for pod in pods for name in _some(_part(_part(pod, "metadata"), "labels"), JOB_LABELS).values()}
    about = [(row, str(_part(row, "involvedObject").get("name"))) for row in rows]
    kept = [row for row, name in about if name in names or any(name.startswith(f"{job}-") for job in jobs)]
    return kept[-_MOST_EVENTS:], []


def _some(value: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value[key] for key in keys if key in value}


def _part(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    return (each for each in _list(value) if isinstance(each, Mapping))
