"""What is added to a pod, as a JSON patch: environment, a volume for evidence, and where it was asked for the view of
the pod's other processes. What the user's own manifest says stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangscope.recorder.setup import blackbox_library
from hangscope.recorder.setup.default_settings import PIPE_NAMES
from hangscope.recorder.setup.settings import plan
from hangscope.recorder.setup.variables import BY_NAME

LABEL = "hangscope"
"""Of a pod or its namespace: ``on`` or ``off``."""
SHARE = "hangscope/share-processes"
"""Of a pod, as an annotation: ``true``."""
PLACE = "/hangscope"
LIBRARY_PLACE = "/hangscope-library"
VOLUME = "hangscope-evidence"
LIBRARY_VOLUME = "hangscope-library"
MOST_CONTAINERS = 64
_OFF = ("off", "0", "no", "false")
_MIRROR = "kubernetes.io/config.mirror"
_SHM = "/dev/shm/"
_LONGEST = 63

KINDS: Mapping[str, tuple[str, ...]] = {
    "PyTorchJob": ("training.kubeflow.org/job-name",),
    "TrainJob": ("trainer.kubeflow.org/trainjob-ancestor-step",),
    "JobSet": ("jobset.sigs.k8s.io/jobset-name",),
    "RayCluster": ("ray.io/cluster",),
    "LeaderWorkerSet": ("leaderworkerset.sigs.k8s.io/name",),
}
"""The kinds of jobs, and the labels that their controllers put on pods."""
_NAMES = (
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "ray.io/cluster",
    "leaderworkerset.sigs.k8s.io/name",
    "batch.kubernetes.io/job-name",
    "job-name",
)
"""Labels that hold the job's name."""
_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"

Operation = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PatchOptions:
    """`claim` is a volume claim that takes the evidence of all pods, a folder each; without it each has an emptyDir.
    `library` is a directory of the machines in which the node agent keeps the black box."""

    kinds: frozenset[str] = frozenset(KINDS)
    claim: str | None = None
    library: str | None = None
    nccl_debug: str = "INFO"


def patch(pod: Mapping[str, Any], options: PatchOptions) -> tuple[list[Operation], list[str]]:
    """The operations, none where the pod is to be left alone, and what its user should know."""
    metadata = _mapping(pod.get("metadata"))
    spec = _mapping(pod.get("spec"))
    if not spec or not is_wanted(metadata, options):
        return [], []
    operations: list[Operation] = []
    warnings: list[str] = []
    job = _job_of(metadata)
    changed = False
    for index, container in enumerate(_containers(spec)):
        if not _may_change(container):
            continue
        changed = True
        added, warning = _environment(container, job, options)
        operations += _appended(f"/spec/containers/{index}/env", container.get("env"), added)
        operations += _appended(
            f"/spec/containers/{index}/volumeMounts", container.get("volumeMounts"), _mounts(container, options)
        )
        warnings += [warning] if warning else []
    if not changed:
        return [], warnings
    operations += _appended("/spec/volumes", spec.get("volumes"), _volumes(spec, options))
    if _wants_shared(metadata) and "shareProcessNamespace" not in spec and not spec.get("hostPID"):
        operations.append({"op": "add", "path": "/spec/shareProcessNamespace", "value": True})
    return operations, warnings


def is_wanted(metadata: Mapping[str, Any], options: PatchOptions) -> bool:
    """By its own label first, then by what kind of job it is part of."""
    labels = _mapping(metadata.get("labels"))
    said = str(labels.get(LABEL, "")).lower()
    if said in _OFF or _MIRROR in _mapping(metadata.get("annotations")):
        return False
    if said in ("on", "1", "yes", "true"):
        return True
    return not options.kinds.isdisjoint(kinds_of(metadata))


def kinds_of(metadata: Mapping[str, Any]) -> set[str]:
    labels = _mapping(metadata.get("labels"))
    found = {kind for kind, names in KINDS.items() if any(name in labels for name in names)}
    owners = metadata.get("ownerReferences")
    for owner in owners if isinstance(owners, list) else []:
        kind = _mapping(owner).get("kind")
        if isinstance(kind, str) and kind in KINDS:
            found.add(kind)
    return found


def _containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = spec.get("containers")
    return [_mapping(each) for each in found[:MOST_CONTAINERS]] if isinstance(found, list) else []


def _may_change(container: Mapping[str, Any]) -> bool:
    """Not where its user says so, where `hangscope run` does it all, nor where the manifest is none that we know."""
    lists = [container.get(name) for name in ("env", "envFrom", "volumeMounts", "command", "args")]
    if not container or any(each is not None and not isinstance(each, list) for each in lists):
        return False
    if _literal(container).get("HANGSCOPE", "").lower() in _OFF:
        return False
    words = [str(word) for name in ("command", "args") for word in container.get(name) or []]
    ours = any(word.rpartition("/")[2] == "hangscope" for word in words)
    return not (ours and "run" in words)


def _literal(container: Mapping[str, Any]) -> dict[str, str]:
    """The variables whose values the manifest itself gives."""
    found = {}
    for each in container.get("env") or []:
        row = _mapping(each)
        if isinstance(row.get("name"), str) and isinstance(row.get("value"), str):
            found[row["name"]] = row["value"]
    return found


def _environment(container: Mapping[str, Any], job: str, options: PatchOptions) -> tuple[list[Any], str]:
    """What is added to a container's environment, and what its user should know."""
    rows = [_mapping(each) for each in container.get("env") or []]
    there = {row["name"] for row in rows if isinstance(row.get("name"), str)}
    known = {variable.alias_of or variable.name for variable in BY_NAME.values() if variable.name in there}
    added: list[dict[str, Any]] = [
        {"name": "HANGSCOPE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "HANGSCOPE_MACHINE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    added += [{"name": "HANGSCOPE_JOB", "value": job}] if job else []
    warning = ""
    if container.get("envFrom"):
        # A variable of a list wins over one of a config map, which cannot be seen from here.
        name = str(container.get("name"))[:_LONGEST]
        warning = f"hangscope: container {name} has envFrom: the recorder's settings are left out"
    else:
        for name, value in settings(_literal(container), job, options).items():
            variable = BY_NAME.get(name)
            if variable is None or (variable.alias_of or variable.name) not in known:
                added.append({"name": name, "value": value.replace("$(", "$$(")})
    return [each for each in added if each["name"] not in there], warning


def settings(environ: Mapping[str, str], job: str, options: PatchOptions) -> dict[str, str]:
    """The recorder's variables for a container, with every file in the volume itself: nobody makes folders there."""
    library = Path(LIBRARY_PLACE, blackbox_library.LIBRARY.name) if options.library is not None else None
    made = plan(
        torch_version=None,
        backend=None,
        directory=Path(PLACE),
        job=job or "job",
        attempt="0",
        host="pod",
        environ=environ,
        look_at_files=False,
        own_directory=True,
        plugin=library,
        nccl_debug=options.nccl_debug,
    )
    found = {name: value for name, value in made.variables.items() if name not in PIPE_NAMES}
    if blackbox_library.FOLDER in found:
        found[blackbox_library.FOLDER] = _SHM
    for folder in ("dumps", "logs"):
        found = {name: value.replace(f"{PLACE}/{folder}/", f"{PLACE}/") for name, value in found.items()}
    return found


def _mounts(container: Mapping[str, Any], options: PatchOptions) -> list[Any]:
    paths = [_mapping(each).get("mountPath") for each in container.get("volumeMounts") or []]
    mounted = {path for path in paths if isinstance(path, str)}
    evidence: dict[str, Any] = {"name": VOLUME, "mountPath": PLACE}
    if options.claim is not None:
        evidence["subPathExpr"] = "$(HANGSCOPE_NODE)"
    wanted = [evidence]
    if options.library is not None:
        wanted.append({"name": LIBRARY_VOLUME, "mountPath": LIBRARY_PLACE, "readOnly": True})
    return [each for each in wanted if each["mountPath"] not in mounted]


def _volumes(spec: Mapping[str, Any], options: PatchOptions) -> list[Any]:
    found = spec.get("volumes")
    named = [_mapping(each).get("name") for each in found] if isinstance(found, list) else []
    there = {name for name in named if isinstance(name, str)}
    kept: dict[str, Any] = {"emptyDir": {}}
    if options.claim is not None:
        kept = {"persistentVolumeClaim": {"claimName": options.claim}}
    wanted = [{"name": VOLUME, **kept}]
    if options.library is not None:
        wanted.append({"name": LIBRARY_VOLUME, "hostPath": {"path": options.library, "type": "DirectoryOrCreate"}})
    return [each for each in wanted if each["name"] not in there]


def _wants_shared(metadata: Mapping[str, Any]) -> bool:
    return str(_mapping(metadata.get("annotations")).get(SHARE, "")).lower() == "true"


def _job_of(metadata: Mapping[str, Any]) -> str:
    labels = _mapping(metadata.get("labels"))
    named = next((labels[name] for name in _NAMES if isinstance(labels.get(name), str) and labels[name]), "")
    return str(named)[:_LONGEST]


def _appended(path: str, there: object, added: list[Any]) -> Iterator[Operation]:
    """To a list that may not be there yet."""
    if not isinstance(there, list):
        if added:
            yield {"op": "add", "path": path, "value": added}
        return
    for each in added:
        yield {"op": "add", "path": f"{path}/-", "value": each}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
