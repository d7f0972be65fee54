"""The manifests in docs/manifests: they hold together, and every hangscope command in them exists with its options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from hangscope.cli.main import cli
from hangscope.cli.verbs import run
from hangscope.recorder.rundir.job_identity import identify

yaml = pytest.importorskip("yaml")
DOCS = Path(__file__).parents[1] / "docs"
FILES = sorted((DOCS / "manifests").glob("*.yaml"))
NEEDED = {"pods": {"get", "list"}, "pods/log": {"get"}, "pods/exec": {"create"}, "events": {"list"}}
"""What `collect --kubernetes` does with kubectl; tests/record/kube_trial.py asks an API server about it."""


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text()))


def inside(value: Any, key: str) -> Iterator[dict[str, Any]]:
    """Every object with this key, wherever it lies."""
    if isinstance(value, dict):
        if key in value:
            yield value
        for each in value.values():
            yield from inside(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from inside(each, key)


def runs(file: Path) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """(the pod or trainer, the options of `hangscope run`) for each command of ours."""
    for document in documents(file):
        for holder in inside(document, "command"):
            if holder["command"][:2] == ["hangscope", "run"]:
                yield holder, holder["command"][2:]


def test_there_are_manifests_for_each_way_to_start_a_job() -> None:
    """Those that the page promises."""
    kinds = {document["kind"] for file in FILES for document in documents(file)}
    assert {"Job", "JobSet", "PyTorchJob", "TrainJob", "DaemonSet", "Role", "PersistentVolumeClaim"} <= kinds
    text = (DOCS / "kubernetes.md").read_text()
    assert all(f"manifests/{file.name}" in text for file in FILES)


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_every_command_of_ours_exists(file: Path) -> None:
    """`hangscope run` takes these options, and hangscope verbs in comments are verbs."""
    for _, words in runs(file):
        options = words[: words.index("--")]
        context = run.command.make_context("run", [*options, "--", "true"], resilient_parsing=True)
        known = {name for each in run.command.params if isinstance(each, click.Option) for name in each.opts}
        assert context is not None
        assert {option.partition("=")[0] for option in options} <= known
    for verb in re.findall(r"hangscope ([a-z-]+) ", file.read_text()):
        assert verb in cli.list_commands(click.Context(cli)), verb


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_incidents_lie_on_a_volume_and_sigterm_has_its_time(file: Path) -> None:
    """--dir is below a mounted volume, and --term-grace is what the pod is given."""
    grace = [pod["terminationGracePeriodSeconds"] for pod in inside(documents(file), "terminationGracePeriodSeconds")]
    for holder, words in runs(file):
        options = dict(word.removeprefix("--").split("=", 1) for word in words[: words.index("--")])
        assert options["term-grace"] == f"{grace[0]}s"
        mounts = [mount["mountPath"] for each in inside(documents(file), "mountPath") for mount in [each]]
        assert options["dir"].startswith("/hangscope/")
        assert "/hangscope" in mounts
        assert "volumeMounts" in holder or holder.get("numNodes")  # a TrainJob's are in its runtime


def test_statuses_in_policies_are_those_that_run_ends_with() -> None:
    """75 where nothing else is asked for; and what is asked for is one that the controller starts again after."""
    for name in ("job", "jobset"):
        values = [rule["values"] for rule in inside(documents(DOCS / "manifests" / f"{name}.yaml"), "operator")]
        assert all(each == [75] for each in values)
        assert values
    (volcano,) = documents(DOCS / "manifests" / "volcano.yaml")
    for policy in volcano["spec"]["policies"]:
        assert ("event" in policy) != ("exitCode" in policy)  # Volcano refuses both
    options = [word for _, words in runs(DOCS / "manifests" / "pytorchjob.yaml") for word in words]
    assert "--exit-on-hang=138" in options  # Kubeflow's ExitCode starts again from 128 on


def test_rights_are_the_least() -> None:
    """What collect needs, in one namespace, and nothing more."""
    (role,) = (each for each in documents(DOCS / "manifests" / "rbac.yaml") if each["kind"] == "Role")
    granted: dict[str, set[str]] = {}
    for rule in role["rules"]:
        assert rule["apiGroups"] == [""]
        for resource in rule["resources"]:
            granted.setdefault(resource, set()).update(rule["verbs"])
    assert granted == NEEDED


def test_pods_name_their_job_and_themselves() -> None:
    """What `run` sees in such a pod: the job's name, the pod's, and a JobSet's attempt."""
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "llm-7b-2", "HANGSCOPE_NODE": "llm-7b-2-x7k2p"}
    found = identify(pod)
    assert (found.job, found.node) == ("llm-7b", "llm-7b-2-x7k2p")
    found = identify({**pod, "JOBSET_NAME": "llm-7b", "JOBSET_RESTART_ATTEMPT": "2"})
    assert (found.job, found.attempt) == ("llm-7b", "2")


def test_pods_say_on_which_machine_they_run() -> None:
    """Where `run` is started in a pod, it is given the machine's name: a scheduler leaves out machines, not pods."""
    for file in FILES:
        for holder, _ in runs(file):
            named = {each["name"]: each for each in holder.get("env", ())}
            if "HANGSCOPE_NODE" in named:
                assert named["HANGSCOPE_MACHINE"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    assert identify({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HANGSCOPE_MACHINE": "gpu-c"}).machine == "gpu-c"
    assert identify({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).machine == ""
    assert identify({}).machine is None


def webhooks() -> list[dict[str, Any]]:
    (found,) = (
        each for each in documents(DOCS / "manifests" / "admission.yaml") if each["kind"].endswith("Configuration")
    )
    return list(found["webhooks"])


def test_no_pod_waits_for_the_webhook() -> None:
    """Where it fails, pods start: it is asked about new pods alone, for two seconds, and has no side effects."""
    for webhook in webhooks():
        assert webhook["failurePolicy"] == "Ignore"
        assert webhook["sideEffects"] == "None"
        assert webhook["timeoutSeconds"] <= 2
        assert [rule["operations"] for rule in webhook["rules"]] == [["CREATE"]]
        assert [rule["resources"] for rule in webhook["rules"]] == [["pods"]]
    by_namespace, by_pod = webhooks()
    assert (
        by_namespace["namespaceSelector"]["matchLabels"]
        == by_pod["objectSelector"]["matchLabels"]
        == {"hangscope": "on"}
    )


def test_the_webhooks_command_is_one_and_its_parts_fit_together() -> None:
    """Options, port, secret, service and certificate are the same ones throughout, in manifest and chart."""
    from hangscope.cli.verbs import serve

    parts = {each["kind"]: each for each in documents(DOCS / "manifests" / "admission.yaml")}
    pod = parts["Deployment"]["spec"]["template"]["spec"]
    words = pod["containers"][0]["command"]
    assert words[:2] == ["hangscope", "serve"]
    known = {name for each in serve.command.params if isinstance(each, click.Option) for name in each.opts}
    assert {word.partition("=")[0] for word in words[2:]} <= known
    assert pod["volumes"][0]["secret"]["secretName"] == parts["Certificate"]["spec"]["secretName"]
    service = parts["Service"]["metadata"]
    assert parts["Certificate"]["spec"]["dnsNames"] == [f"{service['name']}.{service['namespace']}.svc"]
    for webhook in webhooks():
        asked = webhook["clientConfig"]["service"]
        assert (asked["name"], asked["namespace"]) == (service["name"], service["namespace"])
    chart = (DOCS.parent / "containers" / "chart" / "templates" / "admission.yaml").read_text()
    assert set(re.findall(r"--[a-z-]+(?==)", chart)) <= known
    assert chart.count("failurePolicy: Ignore") == chart.count("timeoutSeconds: 2") == len(webhooks())
