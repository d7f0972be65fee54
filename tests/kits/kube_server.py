"""A real Kubernetes API server with its etcd, for trials by hand: no node is needed to hold pods in any state.

`kube-apiserver` is in no Debian package. tests/record/kube_trial.py says how it is built from Debian's source package.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOKEN = "of-this-trial-alone"
REPOSITORY = Path(__file__).parents[2]


def program(name: str) -> str | None:
    """Where it is: in the folder that HANGSCOPE_KUBE_BIN names, or on the PATH."""
    return shutil.which(name, path=f"{os.environ.get('HANGSCOPE_KUBE_BIN', '')}:{os.environ['PATH']}")


def missing() -> str:
    """Why there can be no such server here, empty where there can."""
    absent = [name for name in ("etcd", "kube-apiserver", "kubectl", "openssl") if program(name) is None]
    return f"needs {', '.join(absent)}: see tests/record/kube_trial.py" if absent else ""


class Report:
    """A line for each thing that was tried, and what came of it."""

    def __init__(self) -> None:
        self.wrong = 0
        self.tried = 0

    def say(self, right: bool, what: str, more: str = "") -> None:
        self.tried += 1
        self.wrong += not right
        print(f"{'right' if right else 'WRONG'}  {what}{f': {more}' if more else ''}", flush=True)

    def status(self) -> int:
        """Said at the end; the exit status."""
        print(f"{self.tried - self.wrong} of {self.tried} right")
        return 1 if self.wrong else 0


class KubeServer:
    """`folder` gets its data, logs and a kubeconfig of somebody who may do everything. `inside` are the words in front
    of every command that enter another network namespace, where it listens at `address`."""

    def __init__(self, folder: Path, address: str = "127.0.0.1", inside: Sequence[str] = ()) -> None:
        self.folder = folder
        self.config = folder / "admin.conf"
        self.address = address
        self.inside = list(inside)
        self.url = ""
        self.key = folder / "accounts.key"
        self._started: list[subprocess.Popen[bytes]] = []

    def up(self, *options: str) -> None:
        """With further options of the API server."""
        etcd, peer, secure = _free_ports(3)
        self.url = f"https://{self.address}:{secure}"
        subprocess.run(["openssl", "genrsa", "-out", str(self.key), "2048"], check=True, capture_output=True)
        (self.folder / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n")
        self.config.write_text(self.kubeconfig(TOKEN))
        store = f"http://127.0.0.1:{etcd}"
        self.start(
            "etcd",
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={store}",
            f"--advertise-client-urls={store}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
        )
        self.start(
            "kube-apiserver",
            f"--etcd-servers={store}",
            f"--bind-address={self.address}",
            f"--secure-port={secure}",
            f"--cert-dir={self.folder}/certificates",
            f"--token-auth-file={self.folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://trial.example.org",
            f"--service-account-key-file={self.key}",
            f"--service-account-signing-key-file={self.key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
            *(options or ("--disable-admission-plugins=ServiceAccount",)),
        )
        self._wait(120)

    def kubeconfig(self, token: str) -> str:
        """As kubectl reads it; JSON is YAML."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "trial",
                "contexts": [{"name": "trial", "context": {"cluster": "trial", "user": "trial", "namespace": "ml"}}],
                "clusters": [{"name": "trial", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
                "users": [{"name": "trial", "user": {"token": token}}],
            }
        )

    def down(self) -> None:
        for process in reversed(self._started):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [*self.inside, str(program("kubectl")), f"--kubeconfig={self.config}", *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
        return done

    def hangscope(self, config: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Of this checkout, with kubectl as the user of a kubeconfig."""
        tools = Path(str(program("kubectl"))).parent
        environ = {**os.environ, "KUBECONFIG": str(config), "PATH": f"{tools}:{os.environ['PATH']}"}
        environ["PYTHONPATH"] = str(REPOSITORY / "src")
        command = [*self.inside, sys.executable, "-m", "hangscope", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ)

    def put_status(self, kind: str, name: str, status: dict[str, Any], namespace: str = "ml") -> None:
        """Write an object's status as its kubelet or controller would."""
        place = f"/api/v1/namespaces/{namespace}/{kind}/{name}"
        value = json.loads(self.kubectl("get", "--raw", place).stdout)
        value["status"] = status
        self.kubectl("replace", "--raw", f"{place}/status", "-f", "-", stdin=json.dumps(value))

    def start(self, name: str, *options: str) -> None:
        """A program of the control plane, until the server goes down."""
        command = [*self.inside, str(program(name)), *options]
        with (self.folder / f"{name}.log").open("wb") as log:
            self._started.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.kubectl("get", "--raw", "/readyz", check=False).stdout != "ok":
            if time.monotonic() > until or any(process.poll() is not None for process in self._started):
                logs = "\n".join(file.read_text(errors="replace")[-1500:] for file in self.folder.glob("*.log"))
                raise RuntimeError(f"the API server does not come up:\n{logs}")
            time.sleep(0.5)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
