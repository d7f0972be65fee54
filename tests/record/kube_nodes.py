"""Training jobs on a real Kubernetes cluster of three nodes, and what hangscope says of each, by hand.

    HANGSCOPE_KUBE_BIN=DIR python tests/record/kube_nodes.py [--keep DIR] [--record DIR] [TRIAL…]

Needs root, torch, the Debian packages etcd-server containerd runc containernetworking-plugins busybox-static iproute2,
kubectl, and kube-apiserver, kube-controller-manager, kube-scheduler and kubelet of Debian 12's source package
`kubernetes` (tests/record/kube_trial.py says how it is built). tests/kits/kube_cluster.py makes the nodes.

The pods are those of docs/manifests with another image, without GPUs and of one rank each: three of them, one a node,
train over Gloo, and rank 1 (or its pod, or its machine) goes wrong. `hangscope collect` runs outside of the cluster,
with the token of rbac.yaml's service account. Prints a line for each thing that was tried. `--keep` leaves what was
collected there; `--record` writes what a log and the API server say of each job, for tests/recorded_pods.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from kits import kube_cluster, kube_images
from kits.kube_cluster import KubeCluster
from kits.kube_server import REPOSITORY, Report

MANIFESTS = REPOSITORY / "docs" / "manifests"
TRAIN = REPOSITORY / "tests" / "recorder" / "jobs" / "train.py"
STEPS = ("--steps", "100000", "--pause", "0.1", "--rank", "1", "--at", "20")
SOON = ("--stall-after=6s", "--kill-after=0", "--grace=3s")
PATIENT = ("--stall-after=300s",)
RANKS = 3
WAIT_S = 150
OURS = (Path("/usr"), REPOSITORY, Path(sys.base_prefix))
"""What pods mount of this machine: programs, Python, torch and hangscope."""


@dataclass
class Lab:
    cluster: KubeCluster
    report: Report
    keep: Path
    collector: Path
    """A kubeconfig with the token of rbac.yaml's service account."""

    def said(self, *paths: Path) -> dict[str, Any]:
        """The verdict on folders or files."""
        done = self.cluster.server.hangscope(self.collector, "diagnose", "--json", *(str(path) for path in paths))
        value: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"outcome": "", "summary": done.stderr}
        return value

    def collect(self, selector: str, name: str, *options: str, config: Path | None = None) -> Path:
        """Where it lies. What was said is beside it."""
        out = self.keep / name
        words = ("collect", "-o", str(out), "--kubernetes", selector, "--retries", "0", "--deadline", "20s", *options)
        done = self.cluster.server.hangscope(config or self.collector, *words)
        (self.keep / f"{name}.txt").write_text(f"status {done.returncode}\n{done.stdout}{done.stderr}")
        return out

    def output_of_collect(self, name: str) -> str:
        return (self.keep / f"{name}.txt").read_text()

    def judge(self, what: str, paths: Sequence[Path], outcomes: Sequence[str], pod: str = "", *words: str) -> None:
        """Whether the verdict is that rank 1 in this pod is the culprit, or that nobody is; with these words. Where the
        pod's name ends with a question mark, its rank need not be known."""
        said = self.said(*paths)
        named = [(each["rank"], each["node"]) for each in said.get("culprits", ())]
        expected = [[(1, pod.rstrip("?"))]] if pod else [[]]
        right = said["outcome"] in outcomes and named in (expected if not pod.endswith("?") else [*expected, []])
        right = right and all(word in json.dumps(said) for word in words)
        shown = f"{said['outcome'] or 'nothing'}, {said.get('confidence')}: {said['summary']}"
        self.report.say(right, what, " ".join(shown.split())[:220])

    def excluded(self, what: str, path: Path, machine: str) -> None:
        done = self.cluster.server.hangscope(self.collector, "exclude", "--format", "names", str(path))
        self.report.say(done.stdout.strip() == machine, f"{what}: exclude", done.stdout.strip() or "nobody")

    # ---- jobs --------------------------------------------------------------------------------------------------------

    def start(self, job: str, pods: Sequence[dict[str, Any]], *, steps: int = 19) -> None:
        """Until rank 0 has made so many steps."""
        selector = {"clusterIP": "None", "selector": {"job-name": job}, "publishNotReadyAddresses": True}
        self.cluster.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": job}, "spec": selector})
        self.cluster.create(*pods)
        self.wait_for(job, f"step {steps}\n")

    def wait_for(self, job: str, words: str, pod: int = 0) -> None:
        name = f"{job}-{pod}"

        def said() -> bool:
            return words in self.cluster.log(name, "--container=train")

        self.cluster.until(said, WAIT_S, f"{name}: no {words!r}")

    def until_over(self, job: str) -> None:
        def over() -> bool:
            return all(pod["status"].get("phase") == "Failed" for pod in self.cluster.pods(job).values())

        self.cluster.until(over, WAIT_S, f"{job} is not over")

    def until_over_but(self, job: str, lost: str) -> None:
        def over() -> bool:
            found = self.cluster.pods(job)
            return all(pod["status"].get("phase") == "Failed" for name, pod in found.items() if name != lost)

        self.cluster.until(over, WAIT_S, f"{job} is not over")

    def clear(self, job: str) -> None:
        self.cluster.server.kubectl("delete", "pods", f"--selector=job-name={job}", "--force", "--grace-period=0")


# ---- pods, from the manifests ----------------------------------------------------------------------------------------


def templates(file: str, kind: str = "Job") -> dict[str, Any]:
    for value in yaml.safe_load_all((MANIFESTS / file).read_text()):
        if value["kind"] == kind:
            found: dict[str, Any] = value["spec"]["template"]
            return found
    raise LookupError(f"{file} has no {kind}")


def here(spec: dict[str, Any], memory: str = "2Gi") -> dict[str, Any]:
    """A pod's description with images that are here, without GPUs, with Python and hangscope of this machine."""
    sidecars = spec.pop("initContainers", [])
    for each in sidecars:
        each.pop("restartPolicy", None)  # 1.20 has no sidecars of that kind: a container like others
    spec["containers"] += sidecars
    spec["nodeSelector"] = {}
    for container in spec["containers"]:
        container["imagePullPolicy"] = "IfNotPresent"
        if container["image"] == "busybox":
            continue
        container["image"] = kube_images.TRAIN
        container["resources"] = {"limits": {"memory": memory}}
        container["env"] += [
            {"name": "PATH", "value": f"{Path(sys.prefix, 'bin')}:/usr/bin:/bin"},
            {"name": "PYTHONPATH", "value": str(REPOSITORY / "src")},
            {"name": "OMP_NUM_THREADS", "value": "1"},
        ]
        for number, path in enumerate(OURS):
            container["volumeMounts"].append({"name": f"ours-{number}", "mountPath": str(path), "readOnly": True})
    spec["volumes"] += [{"name": f"ours-{number}", "hostPath": {"path": str(path)}} for number, path in enumerate(OURS)]
    return spec


def pods(
    job: str,
    fault: str = "sleep",
    options: Sequence[str] = SOON,
    *,
    file: str = "job.yaml",
    folder: str = "/hangscope",
    memory: str = "2Gi",
    grace_s: int = 120,
) -> list[dict[str, Any]]:
    """Three pods of one rank each, as the job's controller would make them, on a node each."""
    made = []
    for index in range(RANKS):
        spec = here(templates(file)["spec"], memory)
        spec.update(hostname=f"{job}-{index}", subdomain=job, terminationGracePeriodSeconds=grace_s)
        spec["affinity"] = _apart(job)
        train = _train({"spec": spec})
        ours = [word for word in train["command"] if not word.startswith(("--dir", "--term-grace"))]
        ours = ours[: ours.index("--")]
        ours += [f"--dir={folder}/{job}", f"--term-grace={grace_s}s", *options, "--"]
        launch = ["torchrun", f"--nnodes={RANKS}", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-id={job}"]
        launch += [f"--rdzv-endpoint={job}-0.{job}:29400", f"--node-rank={index}"]
        train["command"] = [*ours, *launch, str(TRAIN), *STEPS, "--fault", fault]
        metadata = {"name": f"{job}-{index}", "labels": {"job-name": job}}
        made.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return made


def _apart(job: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"job-name": job}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _train(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in pod["spec"]["containers"] if each["name"] == "train")
    return found


# ---- trials ----------------------------------------------------------------------------------------------------------


def hung(lab: Lab) -> None:
    """The claim that all pods share, `--on-hang kill`: live, at the end, and when all pods are gone."""
    job = "hung"
    lab.start(job, pods(job, options=("--stall-after=6s", "--kill-after=40s", "--grace=3s")))
    lab.wait_for(job, "will end the job in")
    verdict_in_log = "rank 1 is in stuck_in_loader"
    lab.report.say(verdict_in_log in lab.cluster.log("hung-0"), "hung: noticed live, with a verdict in the log")
    live = lab.collect(job, "hung-live")
    whole = "status 0" in lab.output_of_collect("hung-live") and "missing" not in lab.output_of_collect("hung-live")
    lab.report.say(whole, "hung: collect, live, with the rights of rbac.yaml: nothing is missing")
    lab.judge("hung: live", [live], ["hang"], "hung-1", "stuck_in_loader", "train.py")
    lab.excluded("hung: live", live, "")
    lab.until_over(job)
    ends = [_ended(pod) for pod in lab.cluster.pods(job).values()]
    lab.report.say([end["exitCode"] for end in ends] == [75] * RANKS, "hung: every pod ends with 75")
    described = lab.cluster.server.kubectl("describe", "pod", "hung-2").stdout
    words = " ".join(described.split())
    shown = "Exit Code: 75" in words and verdict_in_log in words
    lab.report.say(shown, "hung: kubectl describe shows status and verdict, also of a pod that gave none")
    after = lab.collect(job, "hung-after")
    lab.judge("hung: logs and statuses afterwards", [after], ["hang"], "hung-1", "stuck_in_loader")
    lab.judge("hung: statuses alone", [after / "files" / "kubernetes"], ["hang"], "hung-1", "stuck_in_loader")
    lab.clear(job)
    lab.judge("hung: the claim, when the pods are gone", [lab.cluster.shared / job], ["hang"], "hung-1")


def _ended(pod: dict[str, Any], container: str = "train") -> dict[str, Any]:
    said = next(each for each in pod["status"]["containerStatuses"] if each["name"] == container)
    found: dict[str, Any] = said["state"].get("terminated") or said["lastState"].get("terminated") or {}
    return found


def neighbour(lab: Lab) -> None:
    """A healthy job beside the hang of another on the same claim; and somebody without the right to enter pods."""
    job = "calm"
    lab.start(job, pods(job, "none"))
    found = lab.collect(job, "calm-live")
    lab.judge("calm: a healthy job beside another's hang on its claim", [found], ["ok", "unknown", ""])
    reader = _account(lab.cluster, "reader", {"pods": ["get", "list"], "pods/log": ["get"]})
    found = lab.collect(job, "calm-reader", config=reader)
    logs = list(found.glob("nodes/calm-*/logs/container-logs/train/attempt_0/train.log"))
    lab.report.say(len(logs) == RANKS, "calm: without the right to enter pods, the logs of all come")
    refused = "forbidden" in lab.output_of_collect("calm-reader")
    lab.report.say(refused, "calm: and it is said what was forbidden")
    lab.clear(job)


def sidecar(lab: Lab) -> None:
    """An emptyDir and a container beside the trainer's, which is started anew in place."""
    job = "side"
    lab.start(job, pods(job, file="sidecar.yaml"))

    def restarted(times: int) -> bool:
        found = [each for pod in lab.cluster.pods(job).values() for each in pod["status"].get("containerStatuses", ())]
        return all(each["restartCount"] >= times for each in found if each["name"] == "train")

    lab.cluster.until(lambda: restarted(1), WAIT_S, "side: not started anew")
    first = lab.collect(job, "side-first")
    lab.judge("side: the hang before the restart, while the trainer runs anew", [first], ["hang"], "side-1")
    lab.cluster.until(lambda: restarted(2), WAIT_S, "side: not started anew twice")
    kept = lab.cluster.server.kubectl(
        "exec", "side-0", "--container=files", "--", "ls", "/hangscope/side"
    ).stdout.split()
    lab.report.say({"incident.json", "run-2"} <= set(kept), "side: the emptyDir keeps both runs", " ".join(kept))
    second = lab.collect(job, "side-second")
    lab.judge("side: the second hang", [second], ["hang"], "side-1")
    lab.clear(job)


def machine_disk(lab: Lab) -> None:
    """hostPath, and the DaemonSet through which it is read when the pods are gone."""
    job = "disk"
    (daemons,) = yaml.safe_load_all((MANIFESTS / "daemonset.yaml").read_text())
    for each in daemons["spec"]["template"]["spec"]["containers"]:
        each["imagePullPolicy"] = "IfNotPresent"
    lab.cluster.create(daemons)
    made = pods(job, options=("--stall-after=6s", "--kill-after=25s", "--grace=3s"))
    for pod in made:
        volume = next(each for each in pod["spec"]["volumes"] if each["name"] == "hangs")
        del volume["persistentVolumeClaim"]
        volume["hostPath"] = daemons["spec"]["template"]["spec"]["volumes"][0]["hostPath"]
    lab.start(job, made)
    lab.wait_for(job, "will end the job in")
    live = lab.collect(job, "disk-live")
    lab.judge("disk: live, each pod with its own", [live], ["hang"], "disk-1", "stuck_in_loader")
    lab.until_over(job)
    lab.clear(job)
    after = lab.collect("app=hangscope-files", "disk-after")
    lab.judge("disk: through the DaemonSet, when the pods are gone", [after], ["hang"], "disk-1")
    expected = "nothing from node hangscope-files" not in json.dumps(lab.said(after))
    lab.report.say(expected, "disk: nothing is expected of the DaemonSet's own pods")
    lab.cluster.server.kubectl("delete", "daemonset", "hangscope-files")


def deleted(lab: Lab) -> None:
    """SIGTERM while a stall is under way that nobody noticed yet: it is saved within half of the grace."""
    job = "deleted"
    grace_s = 40
    lab.start(job, pods(job, options=PATIENT, grace_s=grace_s))
    time.sleep(8)
    begun = time.time()
    lab.cluster.server.kubectl("delete", "pods", f"--selector=job-name={job}", "--wait=false")
    lab.cluster.until(lambda: not lab.cluster.pods(job), 2 * grace_s + 60, "deleted: the pods stay")
    last = [json.loads(file.read_text()) for file in lab.cluster.shared.glob(f"{job}/nodes/*/status.json")]
    took_s = max(status["at"] for status in last) - begun
    ended = len(last) == RANKS and all(status["ended"] is not None for status in last) and took_s < grace_s
    lab.report.say(ended, f"deleted: every run comes to its end within the grace of {grace_s} s", f"{took_s:.0f} s")
    lab.judge("deleted: the claim", [lab.cluster.shared / job], ["hang"], "deleted-1", "stuck_in_loader")


def drained(lab: Lab) -> None:
    """A node of a healthy job is drained: nobody is to blame."""
    job = "drained"
    lab.start(job, pods(job, "none", grace_s=40))
    machine = lab.cluster.pods(job)["drained-1"]["spec"]["nodeName"]
    words = ("--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=100s")
    try:
        lab.cluster.server.kubectl("drain", machine, *words)
    finally:
        lab.cluster.server.kubectl("uncordon", machine)
    lab.until_over(job)
    found = lab.collect(job, "drained")
    lab.judge("drained: logs and statuses", [found], ["crash", "unknown"])
    lab.judge("drained: the claim", [lab.cluster.shared / job], ["crash", "unknown"])
    lab.excluded("drained", found, "")
    lab.clear(job)


BESIDE = """import os, threading, time
kept = []
def fill():
    import torch.distributed as dist
    while not dist.is_initialized():
        time.sleep(0.1)
    time.sleep(2)
    %s
threading.Thread(target=fill, daemon=True).start() if os.environ["RANK"] == "1" else None
"""
"""What rank 1 does beside its training, once that has begun."""
EVICTED = BESIDE % 'open("/scratch/file", "wb").write(bytes(40 << 20))'
STARVED = BESIDE % "while True: kept.append(bytearray(os.urandom(1) * (32 << 20))), time.sleep(0.05)"


def evicted(lab: Lab) -> None:
    """By the kubelet: its emptyDir is larger than it may be."""
    job = "evicted"
    made = pods(job, "none", grace_s=40)
    for pod in made:
        pod["spec"]["volumes"].append({"name": "scratch", "emptyDir": {"sizeLimit": "10Mi"}})
        _train(pod)["volumeMounts"].append({"name": "scratch", "mountPath": "/scratch"})
        _before_training(lab, pod, job, EVICTED)
    lab.start(job, made, steps=1)
    lab.until_over(job)
    found = lab.collect(job, "evicted")
    lab.judge("evicted: logs and statuses", [found], ["crash"], "evicted-1", "was evicted by its node", "10Mi")
    lab.judge("evicted: statuses alone", [found / "files" / "kubernetes"], ["crash"], "evicted-1", "was evicted")
    lab.judge("evicted: the claim, which cannot know why", [lab.cluster.shared / job], ["crash"], "evicted-1")
    lab.excluded("evicted", found, "")
    lab.excluded("evicted: the claim", lab.cluster.shared / job, "")
    lab.clear(job)


def starved(lab: Lab) -> None:
    """Rank 1 is killed for its container's memory limit."""
    job = "starved"
    made = pods(job, "none", memory="900Mi")
    for pod in made:
        _before_training(lab, pod, job, STARVED)
    lab.start(job, made, steps=1)
    lab.until_over(job)
    reason = _ended(lab.cluster.pods(job)["starved-1"])["reason"]
    lab.report.say(reason == "OOMKilled", "starved: the kubelet says OOMKilled", reason)
    found = lab.collect(job, "starved")
    lab.judge("starved: logs and statuses", [found], ["crash"], "starved-1", "out of memory", "900Mi")
    lab.judge("starved: statuses alone", [found / "files" / "kubernetes"], ["crash"], "starved-1", "out of memory")
    claim = [lab.cluster.shared / job]
    lab.judge("starved: the claim, by the control group's count", claim, ["crash"], "starved-1", "out of memory")
    lab.report.say("out of memory" in lab.cluster.log("starved-0"), "starved: and so says the verdict in the log")
    lab.excluded("starved", found, "")
    lab.clear(job)


def _before_training(lab: Lab, pod: dict[str, Any], job: str, code: str) -> None:
    """The training script with these lines in front."""
    script = lab.cluster.shared / f"{job}.py"
    script.write_text(code + TRAIN.read_text())
    command = _train(pod)["command"]
    command[command.index(str(TRAIN))] = f"/hangscope/{job}.py"


def lost(lab: Lab) -> None:
    """The machine of rank 1 loses its power: kubelet, containerd and all containers at once."""
    job = "lost"
    lab.start(job, pods(job, "none", grace_s=40))
    machine = lab.cluster.pods(job)["lost-1"]["spec"]["nodeName"]
    lab.cluster.kill(machine)
    early = lab.collect(job, "lost-early")
    lab.judge("lost: at once, when Kubernetes knows nothing yet", [early], ["crash", "hang", "unknown", ""], "lost-1?")
    lab.wait_for(job, "the verdict on")
    lab.judge("lost: the claim", [lab.cluster.shared / job], ["crash"], "lost-1")
    lab.cluster.until(lambda: machine not in lab.cluster.ready(), WAIT_S, f"{machine} is still Ready")
    lab.until_over_but(job, "lost-1")
    time.sleep(3)
    found = lab.collect(job, "lost")
    lab.judge("lost: logs and statuses", [found], ["crash"], "lost-1", f"ode {machine} failed")
    lab.judge("lost: statuses alone", [found / "files" / "kubernetes"], ["crash"], "lost-1?", f"ode {machine} failed")
    logs = sorted(found.glob("nodes/*/logs"))
    lab.judge("lost: logs alone", logs, ["crash"], "lost-1")
    lab.excluded("lost", found, machine)
    lab.cluster.start(machine)
    lab.clear(job)


TRIALS = {
    each.__name__: each for each in (hung, neighbour, sidecar, machine_disk, deleted, drained, evicted, starved, lost)
}


# ---- all of it -------------------------------------------------------------------------------------------------------


def _account(cluster: KubeCluster, name: str, rights: dict[str, list[str]]) -> Path:
    """A kubeconfig of a service account; with these rights, unless it has its own."""
    if rights:
        cluster.server.kubectl("create", "serviceaccount", name)
        rules = [{"apiGroups": [""], "resources": [what], "verbs": verbs} for what, verbs in rights.items()]
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": name},
            "rules": rules,
        }
        cluster.create(role)
        cluster.server.kubectl("create", "rolebinding", name, f"--role={name}", f"--serviceaccount=ml:{name}")
    tokens: list[str] = []

    def has_token() -> bool:
        said = json.loads(cluster.server.kubectl("get", "serviceaccount", name, "--output=json").stdout)
        tokens[:] = [secret["name"] for secret in said.get("secrets", ())]
        return bool(tokens)

    cluster.until(has_token, 30, f"{name} has no token")
    secret = json.loads(cluster.server.kubectl("get", "secret", tokens[0], "--output=json").stdout)
    config = cluster.lab / f"{name}.conf"
    config.write_text(cluster.server.kubeconfig(base64.b64decode(secret["data"]["token"]).decode()))
    return config


def _prepare(cluster: KubeCluster) -> Path:
    """Namespace, claim and rights; the kubeconfig of who collects."""
    cluster.server.kubectl("create", "namespace", "ml")
    disk = {
        "capacity": {"storage": "50Gi"},
        "accessModes": ["ReadWriteMany"],
        "hostPath": {"path": str(cluster.shared)},
    }
    cluster.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "shared"}, "spec": disk})
    cluster.server.kubectl("apply", "-f", str(MANIFESTS / "volume.yaml"), "-f", str(MANIFESTS / "rbac.yaml"))
    return _account(cluster, "hangscope-collect", {})


def _record(keep: Path, out: Path) -> None:
    """What logs and the API server say of each job, without this machine's paths and most lines of steps."""
    for name in ("hung-after", "drained", "evicted", "starved", "lost"):
        for file in sorted((keep / name).rglob("*")):
            if file.suffix not in (".log", ".json") or file.name == "incident.json" or not file.is_file():
                continue
            text = file.read_text().replace(str(REPOSITORY), "/workspace").replace(sys.base_prefix, "/usr")
            text = re.sub(r"(?m)^rank \d+ step \d*[1-9]\n", "", text)
            target = out / name / file.relative_to(keep / name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="leave what was collected there")
    parser.add_argument("--record", type=Path, help="write logs and statuses there")
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=", ".join(TRIALS))
    given = parser.parse_args()
    if why := kube_cluster.missing():
        print(why, file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell's & has set SIGINT to be ignored
        signal.signal(number, lambda *_: sys.exit(1))
    cluster = KubeCluster(Path(tempfile.mkdtemp(prefix="kube-nodes-", dir="/var/tmp")))
    keep = given.keep or cluster.lab / "collected"
    keep.mkdir(parents=True, exist_ok=True)
    report = Report()
    try:
        begun = time.monotonic()
        cluster.up()
        print(f"{len(cluster.nodes)} nodes are ready after {time.monotonic() - begun:.0f} s", flush=True)
        lab = Lab(cluster, report, keep, _prepare(cluster))
        for name in given.trials or TRIALS:
            try:
                TRIALS[name](lab)
            except RuntimeError as error:
                report.say(False, f"{name} could not be tried", str(error)[:2000])
                cluster.server.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", check=False)
        if given.record:
            _record(keep, given.record)
    finally:
        cluster.down()
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
