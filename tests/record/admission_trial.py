"""`hangscope serve --admission` asked by a real Kubernetes API server, by hand.

    HANGSCOPE_KUBE_BIN=DIR python tests/record/admission_trial.py

kube_trial.py says how the API server is had. Built with Go 1.18 or newer, 1.20.2 ends when it writes down a webhook's
patch, because its vendored reflect2 does not know this Go: in apiserver/pkg/admission/plugin/webhook/mutating,
dispatcher.go, let the standard library's encoding/json do that. Pods are made in a labelled namespace and in another
one, with the webhook as it should be, and with one that is down, slow, or answers nonsense. Prints a line for each
thing that was tried.
"""

from __future__ import annotations

import base64
import copy
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from kits import kube_server
from kits.kube_server import REPOSITORY, KubeServer, Report

MANIFEST = REPOSITORY / "docs" / "manifests" / "admission.yaml"


def certificate(folder: Path) -> tuple[Path, Path]:
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hangscope"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{folder}/tls.key", "-out", f"{folder}/tls.crt"]
    subprocess.run(words, check=True, capture_output=True)
    return folder / "tls.crt", folder / "tls.key"


def configuration(port: int, crt: Path) -> dict[str, Any]:
    """The one of the manifest, with an address in place of the service."""
    made = next(
        each for each in yaml.safe_load_all(MANIFEST.read_text()) if each["kind"] == "MutatingWebhookConfiguration"
    )
    for webhook in made["webhooks"]:
        bundle = base64.b64encode(crt.read_bytes()).decode()
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/", "caBundle": bundle}
    return copy.deepcopy(made)


def pod(name: str, namespace: str, labels: dict[str, str] | None = None, **container: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    spec = {"containers": [{"name": "train", "image": "train:1", **container}], "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class Trial:
    def __init__(self, server: KubeServer, report: Report) -> None:
        self.server = server
        self.report = report

    def made(self, value: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """The pod as the API server keeps it, and how long that took."""
        begun = time.monotonic()
        said = self.server.kubectl("create", "-o", "json", "--filename=-", stdin=json.dumps(value), check=False)
        took = time.monotonic() - begun
        return (json.loads(said.stdout) if said.returncode == 0 else {"refused": said.stderr}), took

    def check(self, what: str, value: dict[str, Any], *, patched: bool, most_s: float = 30.0) -> dict[str, Any]:
        made, took = self.made(value)
        spec = made.get("spec", {})
        names = [row["name"] for row in spec.get("containers", [{}])[0].get("env", [])]
        volumes = [row["name"] for row in spec.get("volumes", [])]
        is_patched = "HANGSCOPE_NODE" in names and "hangscope-evidence" in volumes
        right = "refused" not in made and is_patched is patched and took < most_s
        self.report.say(right, what, f"{len(names)} variables, {took:.1f} s {made.get('refused', '')}")
        return made


class Bad:
    """Something else where the webhook should be."""

    def __init__(self, how: str, crt: Path, key: Path) -> None:
        self.how = how
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(crt, key)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        if self.how == "says nothing":
            time.sleep(60)
            return
        try:
            with self.context.wrap_socket(client, server_side=True) as secured:
                secured.recv(1 << 16)
                if self.how == "is slow":
                    time.sleep(60)
                patch = base64.b64encode(b'[{"op":"add","path":"/spec/nowhere/-","value":1}]').decode()
                review = {"response": {"uid": "other", "allowed": True, "patchType": "JSONPatch", "patch": patch}}
                body = b"<html>no</html>" if self.how == "answers nonsense" else json.dumps(review).encode()
                secured.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        except OSError:
            pass


def main() -> int:
    missing = kube_server.missing()
    if missing:
        print(missing)
        return 2
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        crt, key = certificate(folder)
        server = KubeServer(folder)
        words = [
            "-m",
            "hangscope",
            "serve",
            "--admission",
            "127.0.0.1:0",
            "--tls-cert",
            str(crt),
            "--tls-key",
            str(key),
        ]
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
        webhook = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True, env=environ)
        try:
            server.up()
            assert webhook.stderr is not None
            port = int(webhook.stderr.readline().rpartition(":")[2])
            trials(Trial(server, report), port, crt, key, webhook)
        except Exception:
            log = (folder / "kube-apiserver.log").read_text(errors="replace")
            print(log[log.find("anic") - 100 :][:6000] if "anic" in log else log[-6000:])
            raise
        finally:
            webhook.kill()
            webhook.wait()
            server.down()
    return report.status()


def trials(trial: Trial, port: int, crt: Path, key: Path, webhook: subprocess.Popen[str]) -> None:
    kubectl = trial.server.kubectl
    for namespace in ("on", "other"):
        kubectl("create", "namespace", namespace)
    kubectl("label", "namespace", "on", "hangscope=on")
    jobset = {"jobset.sigs.k8s.io/jobset-name": "llm-7b"}
    trial.check("before there is a webhook", pod("before", "on", jobset), patched=False)
    kubectl("apply", "--filename=-", stdin=json.dumps(configuration(port, crt)))
    time.sleep(3)  # the API server learns of it
    made = trial.check("a JobSet's pod in a labelled namespace", pod("set", "on", jobset), patched=True)
    names = [row["name"] for row in made["spec"]["containers"][0]["env"]]
    trial.report.say("TORCH_FR_BUFFER_SIZE" in names and "HANGSCOPE_JOB" in names, "its environment", str(len(names)))
    trial.check("a plain pod beside it", pod("plain", "on"), patched=False)
    trial.check("a labelled pod elsewhere", pod("labelled", "other", {"hangscope": "on"}), patched=True)
    trial.check("a JobSet's pod elsewhere", pod("elsewhere", "other", jobset), patched=False)
    trial.check("switched off by its label", pod("off", "on", {**jobset, "hangscope": "off"}), patched=False)
    off = [{"name": "HANGSCOPE", "value": "off"}]
    trial.check("switched off by its environment", pod("env-off", "on", jobset, env=off), patched=False)
    own = [{"name": "TORCH_NCCL_TRACE_BUFFER_SIZE", "value": "500"}, {"name": "HANGSCOPE_NODE", "value": "mine"}]
    made = trial.check("its own settings", pod("own", "on", jobset, env=own), patched=True)
    rows = made["spec"]["containers"][0]["env"]
    trial.report.say(rows[:2] == own and "TORCH_FR_BUFFER_SIZE" not in [row["name"] for row in rows], "they stay")
    source = [{"configMapRef": {"name": "settings", "optional": True}}]
    trial.check("settings in a config map", pod("from", "on", jobset, envFrom=source), patched=True)
    shared = pod("shared", "on", jobset)
    shared["metadata"]["annotations"] = {"hangscope/share-processes": "true"}
    made = trial.check("its processes shared", shared, patched=True)
    trial.report.say(made["spec"].get("shareProcessNamespace") is True, "they are")
    for file in ("job", "jobset", "pytorchjob", "sidecar", "trainjob", "volcano"):
        for number, template in enumerate(templates(file)):
            value = {"apiVersion": "v1", "kind": "Pod", "spec": template}
            value["metadata"] = {"name": f"{file}-{number}", "namespace": "on", "labels": jobset}
            made, _ = trial.made(value)
            trial.report.say("refused" not in made, f"the pod of {file}.yaml is taken", made.get("refused", ""))
    webhook.send_signal(signal.SIGSTOP)
    trial.check("the webhook is stopped", pod("stopped", "on", jobset), patched=False, most_s=15)
    webhook.send_signal(signal.SIGCONT)
    webhook.send_signal(signal.SIGTERM)
    trial.report.say(webhook.wait(20) == 0, "it ends on SIGTERM with 0")
    trial.check("the webhook is down", pod("down", "on", jobset), patched=False, most_s=15)
    for how in ("says nothing", "is slow", "answers nonsense", "answers for another"):
        bad = Bad(how, crt, key)
        kubectl("apply", "--filename=-", stdin=json.dumps(configuration(bad.port, crt)))
        time.sleep(3)
        trial.check(f"the webhook {how}", pod(how.replace(" ", "-"), "on", jobset), patched=False, most_s=15)
    kubectl("delete", "mutatingwebhookconfiguration", "hangscope")
    time.sleep(3)
    trial.check("the webhook is deleted", pod("deleted", "on", jobset), patched=False)


def templates(file: str) -> list[dict[str, Any]]:
    """The pods in a manifest, of which a server of 1.20 knows every field."""
    found: list[dict[str, Any]] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("containers"), list):
                found.append(value)
            for each in value.values():
                look(each)
        elif isinstance(value, list):
            for each in value:
                look(each)

    look(list(yaml.safe_load_all((REPOSITORY / "docs" / "manifests" / f"{file}.yaml").read_text())))
    for spec in found:
        spec["restartPolicy"] = spec.get("restartPolicy", "Never")
        for each in (*spec["containers"], *spec.get("initContainers", ())):
            each.pop("restartPolicy", None)
            each.setdefault("image", "train:1")
            each.setdefault("name", "train")
    return found


if __name__ == "__main__":
    sys.exit(main())
