"""Our manifests, rights and `collect --kubernetes` against a real Kubernetes API server, by hand.

    HANGSCOPE_KUBE_BIN=DIR python tests/record/kube_trial.py [--keep DIR]

`etcd` is a Debian package (etcd-server), kubectl anybody's. kube-apiserver is in no package; Debian 12's source package
`kubernetes` (1.20.2, `apt-get source kubernetes`) builds with its golang-1.19 and without a network: in a GOPATH of
its own (GO111MODULE=off), first vendor/k8s.io/kube-openapi/cmd/openapi-gen, with which pkg/generated/openapi is
generated, then `go build ./cmd/kube-apiserver`. 13 minutes on a busy machine of two cores.

A pod's status can be written through the API, so pods are here in every state without a node. Prints a line for each
thing that was tried, and what came of it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from kits import kube_server
from kits.kube_server import REPOSITORY, TOKEN, KubeServer, Report

MANIFESTS = REPOSITORY / "docs" / "manifests"
COLLECTOR = "system:serviceaccount:ml:hangscope-collect"
NEEDED = (("get", "pods"), ("list", "pods"), ("get", "pods/log"), ("create", "pods/exec"), ("list", "events"))
"""What `hangscope collect --kubernetes` does: kubectl get, logs and exec."""
NOT_GRANTED = (
    *(("create", each) for each in ("pods", "pods/attach", "pods/portforward", "pods/eviction", "events", "secrets")),
    *((verb, "pods") for verb in ("watch", "update", "patch", "delete", "deletecollection")),
    *((verb, each) for verb in ("get", "list") for each in ("secrets", "configmaps", "nodes", "serviceaccounts")),
    *(("get", each) for each in ("pods/exec", "jobs.batch", "events")),
)
NEWER = {
    ("Job", "completionMode"): "1.21",
    ("Job", "podFailurePolicy"): "1.25",
    ("Container", "restartPolicy"): "1.28",
}
"""Fields that a server of 1.20 does not know, with the version that does: they are checked by a schema instead."""


# ---- manifests -------------------------------------------------------------------------------------------------------


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(MANIFESTS.glob("*.yaml")):
        for value in yaml.safe_load_all(file.read_text()):
            yield file.name, value


def pods_in(value: Any) -> Iterator[dict[str, Any]]:
    """Every pod's description inside a manifest, whatever wraps it."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for each in value.values():
            yield from pods_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from pods_in(each)


def without_newer(kind: str, value: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A copy that an old server can be asked about, and what was left out of it."""
    copy = json.loads(json.dumps(value))
    left = []
    if kind == "Job":
        left += [name for (of, name) in NEWER if of == "Job" and copy["spec"].pop(name, None) is not None]
    for pod in pods_in(copy):
        for container in pod.get("initContainers", ()):
            if container.pop("restartPolicy", None) is not None:
                left.append("restartPolicy of a container")
    return copy, left


def check_manifests(server: KubeServer, report: Report) -> None:
    for file, value in documents():
        kind = value["kind"]
        group = value["apiVersion"].partition("/")[0]
        if "." in group and not group.endswith("k8s.io"):
            for pod in pods_in(value):  # a resource of a controller that is not here: its pods can be asked about
                spec, left = without_newer("", {"spec": {"restartPolicy": "Never", **pod}})
                each = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "checked", "labels": {}}, **spec}
                _dry_run(server, report, f"{file}: the pods of {kind}", each, left)
        elif group == "jobset.x-k8s.io":
            for pod in pods_in(value):
                each = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "checked"}, "spec": pod}
                _dry_run(server, report, f"{file}: the pods of {kind}", each, [])
        else:
            copy, left = without_newer(kind, value)
            _dry_run(server, report, f"{file}: {kind}", copy, left)


SPOILED: tuple[tuple[str, Callable[[dict[str, Any]], object]], ...] = (
    ("a misspelled field", lambda pod: pod.update(volume=[])),
    ("a container without a name", lambda pod: pod["containers"][0].pop("name")),
    ("a mount of a volume that is not there", lambda pod: pod["volumes"].pop(0)),
    ("a limit that is no amount", lambda pod: pod["containers"][0]["resources"]["limits"].update(memory="much")),
    ("a capability as a number", lambda pod: pod["containers"][0]["securityContext"]["capabilities"].update(add=[7])),
    ("an unknown restartPolicy", lambda pod: pod.update(restartPolicy="Sometimes")),
    (
        "an unknown terminationMessagePolicy",
        lambda pod: pod["containers"][0].update(terminationMessagePolicy="Verdict"),
    ),
)
"""What must be refused: a check that takes everything shows nothing."""


def check_refusals(server: KubeServer, report: Report) -> None:
    for what, spoil in SPOILED:
        job = next(value for file, value in documents() if file == "job.yaml" and value["kind"] == "Job")
        copy, _ = without_newer("Job", job)
        spoil(copy["spec"]["template"]["spec"])
        done = _ask(server, copy)
        report.say(done.returncode != 0, f"job.yaml with {what} is refused", done.stderr.strip()[-160:])


def _ask(server: KubeServer, value: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    words = ("create", "--dry-run=server", "--validate", "-f", "-")
    return server.kubectl(*words, stdin=json.dumps(value), check=False)


def _dry_run(server: KubeServer, report: Report, what: str, value: dict[str, Any], left: list[str]) -> None:
    done = _ask(server, value)
    without = f"without {', '.join(left)}, which 1.20 does not know" if left else ""
    report.say(done.returncode == 0, f"{what} by the API server", done.stderr.strip()[-300:] or without)


# ---- rights ----------------------------------------------------------------------------------------------------------


def check_rights(server: KubeServer, report: Report) -> None:
    server.kubectl("apply", "-f", str(MANIFESTS / "rbac.yaml"))
    for verb, what in NEEDED:
        report.say(_may(server, verb, what), f"hangscope-collect may {verb} {what}")
    for verb, what in NOT_GRANTED:
        report.say(not _may(server, verb, what), f"hangscope-collect may not {verb} {what}")
    elsewhere = server.kubectl("auth", "can-i", "list", "pods", "-n", "default", f"--as={COLLECTOR}", check=False)
    report.say(elsewhere.stdout.strip() == "no", "hangscope-collect may not list pods of another namespace")


def _may(server: KubeServer, verb: str, what: str) -> bool:
    words = ("auth", "can-i", verb, *what.split("/")[:1])
    sub = (f"--subresource={what.split('/')[1]}",) if "/" in what else ()
    return server.kubectl(*words, *sub, f"--as={COLLECTOR}", check=False).stdout.strip() == "yes"


# ---- pods in every state ---------------------------------------------------------------------------------------------


def pod(name: str, machine: str, job: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"job-name": job}},
        "spec": {
            "nodeName": machine,
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "train",
                    "image": "example.org/train:latest",
                    "command": ["hangscope", "run", "--", "torchrun", "train.py", "--token=do-not-keep-this"],
                    "env": [{"name": "WANDB_API_KEY", "value": "do-not-keep-this"}],
                    "resources": {"limits": {"memory": "64Gi"}},
                }
            ],
        },
    }


def container(state: dict[str, Any], last: dict[str, Any] | None = None, restarts: int = 0) -> dict[str, Any]:
    return {
        "containerStatuses": [
            {
                "name": "train",
                "image": "example.org/train:latest",
                "imageID": "",
                "ready": "running" in state,
                "restartCount": restarts,
                "state": state,
                "lastState": last or {},
            }
        ]
    }


def terminated(code: int, reason: str, message: str = "") -> dict[str, Any]:
    times = {"startedAt": "2026-11-15T02:00:00Z", "finishedAt": "2026-11-15T02:30:00Z"}
    return {"terminated": {"exitCode": code, "reason": reason, **times, **({"message": message} if message else {})}}


RUNNING = {"phase": "Running", **container({"running": {"startedAt": "2026-11-15T02:00:00Z"}})}
STATES: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "oom": (
        {"phase": "Failed", **container(terminated(137, "OOMKilled"))},
        ("CRASH", "oom-1", "64Gi"),
        "",
    ),
    "evicted": (
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
        ("CRASH", "the pod evicted-1", "low on resource: memory"),
        "",
    ),
    "lost": (
        {**RUNNING, "reason": "NodeLost", "message": "Node gpu-b which was running pod lost-1 is unresponsive"},
        ("CRASH", "node gpu-b failed"),
        "gpu-b",
    ),
    "hung": (
        {"phase": "Failed", **container(terminated(75, "Error", "hangscope: SIGTERM to rank 1"))},
        ("HANG", "it hung (--on-hang kill)"),
        "",
    ),
    "failed": (
        {"phase": "Failed", **container(terminated(1, "Error", "ValueError: a batch that cannot be read"))},
        ("CRASH", "failed-1", "exit status 1"),
        "",
    ),
    "pending": (
        {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
                }
            ],
        },
        ("CRASH", "pending-1", "Insufficient nvidia.com/gpu"),
        "",
    ),
    "image": (
        {"phase": "Pending", **container({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}})},
        ("CRASH", "image-1", "ImagePullBackOff"),
        "",
    ),
    "again": (
        {"phase": "Running", **container(RUNNING["containerStatuses"][0]["state"], terminated(137, "OOMKilled"), 3)},
        ("CRASH", "again-1", "64Gi"),
        "",
    ),
}
"""Name of a job → its second pod's status, what the verdict must say, and the machine to exclude."""


def check_states(server: KubeServer, report: Report, keep: Path) -> None:
    as_collector = keep / "collector.conf"
    value = json.loads(server.kubeconfig(TOKEN))
    value["users"][0]["user"]["as"] = COLLECTOR
    as_collector.write_text(json.dumps(value))
    for job, (status, words, machine) in STATES.items():
        for index, machine_of in enumerate(("gpu-a", "gpu-b")):
            server.kubectl("create", "-f", "-", stdin=json.dumps(pod(f"{job}-{index}", machine_of, job)))
        server.put_status("pods", f"{job}-0", RUNNING)
        server.put_status("pods", f"{job}-1", status)
        _check_state(server, report, as_collector, keep / job, job, words, machine)


def _check_state(
    server: KubeServer, report: Report, config: Path, out: Path, job: str, words: tuple[str, ...], machine: str
) -> None:
    collected = server.hangscope(config, "collect", "-o", str(out), "--kubernetes", job, "--retries", "0")
    report.say(collected.returncode == 1, f"{job}: collect says that something is missing", str(collected.returncode))
    said = server.hangscope(config, "diagnose", str(out))
    text = " ".join((said.stdout + said.stderr).split())
    report.say(all(word in text for word in words), f"{job}: diagnose", text[:160])
    excluded = server.hangscope(config, "exclude", "--format", "names", str(out)).stdout.strip()
    report.say(excluded == machine, f"{job}: exclude", excluded or "nobody")
    secret = any(b"do-not-keep" in file.read_bytes() for file in out.rglob("*") if file.is_file())
    report.say(not secret, f"{job}: no value of the environment or the command line is kept")


CHECKS: tuple[Callable[[KubeServer, Report], None], ...] = (check_manifests, check_refusals, check_rights)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="leave what was collected there")
    given = parser.parse_args()
    if why := kube_server.missing():
        print(why, file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="kube-trial-"))
    server = KubeServer(folder)
    report = Report()
    try:
        server.up()
        server.kubectl("create", "namespace", "ml")
        for check in CHECKS:
            check(server, report)
        keep = given.keep or folder / "collected"
        keep.mkdir(parents=True, exist_ok=True)
        check_states(server, report, keep)
    finally:
        server.down()
        shutil.rmtree(folder, ignore_errors=True)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
