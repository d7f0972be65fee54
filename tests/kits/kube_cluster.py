"""A real Kubernetes cluster for trials by hand: control plane and nodes, each a set of namespaces on this machine.

Every node has its own host name, processes, network, /tmp, /run and /var/lib, a containerd and a kubelet; pods have
addresses of their own (the CNI plugin `bridge`) and, with a headless service, names. The machine "login" holds the
bridge and the control plane, so nothing of this machine's network is touched; pid 1 of a node takes everything along
when it is killed, which is a loss of power. `lab` is the disk that all share. Needs root, and what
tests/record/kube_nodes.py says.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kits import kube_images, kube_server
from kits.kube_server import KubeServer
from kits.slurm_cluster import enter_network, make_bridge, only_child, plug_in

MACHINE = Path(__file__).with_name("kube_machine.sh")
NAMES = Path(__file__).with_name("kube_names.py")
PROGRAMS = ("kube-controller-manager", "kube-scheduler", "kubelet", "containerd", "ctr", "runc", "busybox", "ip")
CNI = Path("/usr/lib/cni")
NETWORK = "10.78.0"
PODS = "10.79"
TUNED = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
"""What every kubelet sets for the whole machine; put back at the end."""

_CONTAINERD = """version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{here}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""
# restrict_oom_score_adj: where nobody may lower it, runc stops with "can't get final child's PID"


def missing() -> str:
    """Why there can be no such cluster here, empty where there can."""
    if os.geteuid() != 0:
        return "a cluster of namespaces needs root"
    absent = [name for name in PROGRAMS if kube_server.program(name) is None]
    if not (CNI / "bridge").exists():
        absent.append("containernetworking-plugins")
    if absent:
        return f"needs {', '.join(absent)}: see tests/record/kube_nodes.py"
    if any(path.is_relative_to("/tmp") for path in (Path(sys.prefix), MACHINE)):
        return "every node has a /tmp of its own, and this checkout or its Python lies in /tmp"
    return kube_server.missing()


class KubeCluster:
    """`lab` must be a new directory outside of /tmp, /run and /var/lib."""

    def __init__(self, lab: Path, nodes: int = 3) -> None:
        self.lab = lab
        self.nodes = [f"gpu-{letter}" for letter in "abcdefgh"[:nodes]]
        self.shared = lab / "shared"
        self.machines: dict[str, subprocess.Popen[bytes]] = {}
        self._pids: dict[str, int] = {}
        self._names: subprocess.Popen[bytes] | None = None
        self._tuned = {name: Path("/proc/sys", name).read_text() for name in TUNED}
        self._cgroups = set(_cgroups())
        self.shared.mkdir(parents=True)
        (lab / "images").mkdir()
        kube_images.write_all(lab / "images")
        self.server = KubeServer(lab)

    # ---- machines ----------------------------------------------------------------------------------------------------

    def up(self) -> None:
        self._start("login")
        enter = ("nsenter", "-t", str(self._pids["login"]), "-n")
        self.server.address = f"{NETWORK}.10"
        self.server.inside = list(enter)
        self.server.up("--default-not-ready-toleration-seconds=20", "--default-unreachable-toleration-seconds=20")
        config = f"--kubeconfig={self.server.config}"
        key = f"--service-account-private-key-file={self.server.key}"
        quick = ("--node-monitor-period=1s", "--node-monitor-grace-period=12s")
        self.server.start("kube-controller-manager", config, key, *quick, "--leader-elect=false")
        self.server.start("kube-scheduler", config, "--leader-elect=false")
        words = [*enter, sys.executable, str(NAMES), f"{NETWORK}.10", str(kube_server.program("kubectl"))]
        with (self.lab / "names.log").open("wb") as log:
            self._names = subprocess.Popen([*words, str(self.server.config)], stdout=log, stderr=log)
        for name in self.nodes:
            self._start(name)
        self.until(lambda: self.ready() == set(self.nodes), 180, "the nodes are not ready")

    def ready(self) -> set[str]:
        """The nodes that Kubernetes calls Ready."""
        shown = self.server.kubectl("get", "nodes", "--output=json", check=False)
        nodes = json.loads(shown.stdout)["items"] if shown.returncode == 0 else []
        return {
            node["metadata"]["name"]
            for node in nodes
            for condition in node["status"]["conditions"]
            if (condition["type"], condition["status"]) == ("Ready", "True")
        }

    def logs(self) -> str:
        files = [*self.lab.glob("*.log"), *self.lab.glob("machines/*/*.log")]
        return "\n".join(f"{file}: {file.read_text(errors='replace')[-1500:]}" for file in files)

    def start(self, name: str) -> None:
        """Start a node again that was killed."""
        self._start(name)
        self.until(lambda: name in self.ready(), 120, f"{name} is not ready")

    def _start(self, name: str) -> None:
        here = self.lab / "machines" / name
        index = 0 if name == "login" else 1 + self.nodes.index(name)
        self._write_settings(here, index)
        apart = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
        words = ["bash", str(MACHINE), str(self.lab), name, str(kube_server.program("kubelet"))]
        with (here / "machine.log").open("wb") as out:
            machine = subprocess.Popen(
                [*apart, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self.machines[name] = machine
        self._pids[name] = pid = only_child(machine.pid)
        if name == "login":
            make_bridge(pid, f"{NETWORK}.10")
        else:
            plug_in(pid, name, f"{NETWORK}.{10 + index}", self._pids["login"], f"{NETWORK}.10")
        for other in range(1, len(self.nodes) + 1):
            if other != index:
                enter_network(pid, f"route replace {PODS}.{other}.0/24 via {NETWORK}.{10 + other}")
        (here / "network").write_text(f"{NETWORK}.{10 + index}")

    def _write_settings(self, here: Path, index: int) -> None:
        for folder in ("lib", "log", "cni"):
            (here / folder).mkdir(parents=True, exist_ok=True)
        (here / "network").unlink(missing_ok=True)
        (here / "containerd.toml").write_text(_CONTAINERD.format(pause=kube_images.PAUSE, cni=CNI, here=here))
        range_ = {"subnet": f"{PODS}.{index}.0/24"}
        addresses = {"type": "host-local", "ranges": [[range_]], "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "ipam": addresses}
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
        (here / "cni" / "pods.conflist").write_text(json.dumps(network))
        (here / "kubelet.json").write_text(json.dumps(_kubelet()))

    def kill(self, name: str) -> None:
        """A machine loses its power: kubelet, containerd and all containers at once, and nobody is told."""
        machine = self.machines.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pids.pop(name), signal.SIGKILL)
        machine.wait(timeout=30)

    def down(self) -> None:
        if self._names is not None:
            self._names.kill()
            self._names.wait()
        for name in reversed(list(self.machines)):
            if name != "login":
                self.kill(name)
        self.server.down()
        if "login" in self.machines:
            self.kill("login")
        for name, value in self._tuned.items():
            Path("/proc/sys", name).write_text(value)
        for folder in sorted(set(_cgroups()) - self._cgroups, reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
        shutil.rmtree(self.lab, ignore_errors=True)

    # ---- pods --------------------------------------------------------------------------------------------------------

    def create(self, *values: dict[str, Any]) -> None:
        for value in values:
            self.server.kubectl("create", "--filename=-", stdin=json.dumps(value))

    def pods(self, job: str) -> dict[str, dict[str, Any]]:
        shown = self.server.kubectl("get", "pods", f"--selector=job-name={job}", "--output=json").stdout
        return {pod["metadata"]["name"]: pod for pod in json.loads(shown)["items"]}

    def log(self, pod: str, *options: str) -> str:
        return self.server.kubectl("logs", pod, *options, check=False).stdout

    def until(self, done: Any, seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                raise RuntimeError(f"{what} after {seconds:g} s:\n{self.logs()}")
            time.sleep(0.5)


def _kubelet() -> dict[str, Any]:
    return {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},  # reached from the cluster's own network alone
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "clusterDNS": [f"{NETWORK}.10"],
        "clusterDomain": "cluster.local",
        "evictionHard": {"memory.available": "1Mi"},
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 8,
        "syncFrequency": "5s",
    }


def _cgroups() -> Iterator[Path]:
    for kind in Path("/sys/fs/cgroup").iterdir():
        for folder in (kind / "k8s.io", kind / "kubepods"):
            if folder.is_dir():
                yield folder
                yield from (each for each in folder.rglob("*") if each.is_dir())
