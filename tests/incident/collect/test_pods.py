"""Collecting from Kubernetes through a stand-in for kubectl; tests/record/kube_trial.py asks a real API server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hangscope.cli.main import main
from hangscope.errors import CollectError
from hangscope.incident.collect import Collected, collect, pods
from hangscope.incident.collect.gather import CollectOptions
from kits.pods import RUNNING, container, ended, event, listed, pod

QUICK = CollectOptions(deadline_s=20, retries=0)
SCRIPT = """#!/bin/sh
printf '%s\\n' "kubectl $*" >>"{folder}/calls"
case "$1 $2" in
  'get pods') cat "{folder}/pods.json"; exit;;
  'get events') cat "{folder}/events.json" 2>/dev/null && exit; echo 'events is forbidden: User "x"' >&2; exit 1;;
esac
for word in "$@"; do case $word in train-*) name=$word;; --previous) before=.previous;; esac; done
if [ "$1" = logs ]; then cat "{folder}/$name$before.log" && exit; echo "container not found" >&2; exit 1; fi
[ -e "{folder}/$name.closed" ] && {{ echo 'exec: "sh": executable file not found in $PATH' >&2; exit 126; }}
cd / && HOME="{folder}/$name" exec sh -s
"""


class Cluster:
    """A stand-in for kubectl that is the first on the PATH, and what it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "kubectl").write_text(SCRIPT.format(folder=folder))
        (folder / "kubectl").chmod(0o755)

    def put(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def collect(self, selector: str = "job-name=train", **options: Any) -> Collected:
        sources, gone = pods.kubernetes(selector, **options)
        return collect(self.folder / "out", sources, gone=gone, options=QUICK)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    made = Cluster(tmp_path)
    made.put("events.json", listed())
    return made


def _text(found: Collected, path: str) -> str:
    return (found.path / path).read_text()


def test_running_pods_give_files_and_others_their_logs(cluster: Cluster) -> None:
    """kubectl exec where a container runs, kubectl logs where none does, and what the API server says of all."""
    failed = pod("train-1", phase="Failed", **container(ended(1)))
    cluster.put("pods.json", listed(pod("train-0", **container(RUNNING)), failed))
    cluster.put("train-0/.cache/torch/comm_lib_trace_rank_0", "dump 0")
    cluster.put("train-0.log", "rank 0 step 7\n")
    cluster.put("train-1.log", "[rank1]: ValueError: a batch\n")
    found = cluster.collect(namespace="ml")
    assert _text(found, "nodes/train-1/logs/container-logs/train/attempt_0/train.log").startswith("[rank1]")
    assert list(found.path.glob("nodes/train-0/dumps/**/comm_lib_trace_rank_0"))
    kept = json.loads(_text(found, "files/kubernetes/pods.json"))
    assert [each["metadata"]["name"] for each in kept["items"]] == ["train-0", "train-1"]
    assert [(gap.node, "Failed" in gap.why) for gap in found.manifest.gaps] == [("train-1", True)]
    calls = cluster.calls()
    assert calls[0] == "kubectl get pods --selector job-name=train --namespace ml --output json"
    assert "kubectl exec --stdin --namespace ml train-0 --container train -- sh -s" in calls
    assert not any("exec" in call and "train-1" in call for call in calls)


def test_the_log_before_a_restart_is_an_earlier_attempt(cluster: Cluster) -> None:
    """It comes too, and lies where readers take it for what it is."""
    cluster.put("pods.json", listed(pod("train-0", **container(RUNNING, ended(75), restarts=2))))
    cluster.put("train-0.log", "now\n")
    cluster.put("train-0.previous.log", "before\n")
    found = cluster.collect()
    assert _text(found, "nodes/train-0/logs/container-logs/train/attempt_2/train.log") == "now\n"
    assert _text(found, "nodes/train-0/logs/container-logs/train/attempt_1/train.log") == "before\n"


def test_a_pod_without_a_shell_still_gives_its_log(cluster: Cluster) -> None:
    """No sh, no tar, or no right to enter it: that is said, and the rest comes."""
    cluster.put("pods.json", listed(pod("train-0", **container(RUNNING))))
    cluster.put("train-0.closed", "")
    cluster.put("train-0.log", "rank 0 step 7\n")
    found = cluster.collect()
    assert _text(found, "nodes/train-0/logs/container-logs/train/attempt_0/train.log") == "rank 0 step 7\n"
    assert any("executable file not found" in gap.why for gap in found.manifest.gaps)


def test_a_sidecar_is_entered_while_the_trainer_is_down(cluster: Cluster) -> None:
    """The default container where it runs, else the first that does; one that is asked for by name, or none."""
    value = pod("train-0", **container({"waiting": {"reason": "CrashLoopBackOff"}}, ended(75), restarts=1))
    value["status"]["initContainerStatuses"] = [{"name": "files", "restartCount": 0, "state": RUNNING}]
    cluster.put("pods.json", listed(value))
    cluster.put("train-0.log", "")
    cluster.put("train-0.previous.log", "")
    cluster.collect()
    assert "kubectl exec --stdin train-0 --container files -- sh -s" in cluster.calls()
    sources, gone = pods.kubernetes("job-name=train", container="train")
    assert [gap.why for gap in gone] == ["its container does not run, and only a running one can be entered"]
    assert len(sources) == 2


def test_a_run_in_the_volume_needs_no_log(cluster: Cluster) -> None:
    """Where `run` left an incident, its own copy of the output is in it: kubectl logs is not asked."""
    cluster.put("pods.json", listed(pod("train-0", **container(RUNNING))))
    manifest = {"schema": "hangscope.incident/1", "job": "train", "attempt": "0", "captured_at": "2026-09-21T13:33:20Z"}
    cluster.put("train-0/hangscope/train/0/incident.json", json.dumps(manifest))
    cluster.put("train-0/hangscope/train/0/nodes/train-0/logs/rank_0.log", "rank 0 step 7\n")
    found = cluster.collect()
    assert (found.path / "nodes/train-0/logs/rank_0.log").exists()
    assert not any(" logs " in call for call in cluster.calls())


def test_a_file_in_the_volume_is_no_run(cluster: Cluster) -> None:
    """Whatever else lies where runs are kept, the container's log is asked for."""
    cluster.put("pods.json", listed(pod("train-0", **container(RUNNING))))
    cluster.put("train-0/hangscope/notes/today.log", "rank 0 step 7\n")
    cluster.put("train-0.log", "rank 0 step 8\n")
    assert _text(cluster.collect(), "nodes/train-0/logs/container-logs/train/attempt_0/train.log") == "rank 0 step 8\n"


def _incident(job: str, at: str, *nodes: str) -> dict[str, str]:
    """Files of an incident below a home, by their paths."""
    manifest = {"schema": "hangscope.incident/1", "job": job, "attempt": "0", "captured_at": f"2026-09-21T{at}Z"}
    files = {f"hangscope/{job}/nodes/{node}/logs/rank_0.log": f"of {job} on {node}\n" for node in nodes}
    return {f"hangscope/{job}/incident.json": json.dumps(manifest), **files}


def _mount(cluster: Cluster, pods_: tuple[str, ...], *incidents: dict[str, str]) -> None:
    """One disk in all of these pods."""
    for name in pods_:
        for files in incidents:
            for path, text in files.items():
                cluster.put(f"{name}/{path}", text)
                os.utime(cluster.folder / name / path, (1_790_000_000, 1_790_000_000))


def test_another_jobs_incident_on_the_same_disk_is_left(cluster: Cluster) -> None:
    """The newest on a claim that jobs share may be a neighbour's: these pods' own is taken, or their logs."""
    both = ("train-0", "train-1")
    cluster.put("pods.json", listed(*(pod(name, **container(RUNNING)) for name in both)))
    for name in both:
        cluster.put(f"{name}.log", f"log of {name}\n")
    ours = _incident("train", "13:33:20", *both)
    _mount(cluster, both, _incident("other", "14:00:00", "other-0", "other-1"))
    found = cluster.collect()
    assert found.manifest.job is None
    assert _text(found, "nodes/train-1/logs/container-logs/train/attempt_0/train.log") == "log of train-1\n"
    assert not list(found.path.glob("nodes/other-*"))
    assert any("--job NAME takes one of them" in gap.why for gap in found.manifest.gaps)
    _mount(cluster, both, ours)
    sources, _ = pods.kubernetes("job-name=train")
    assert collect(cluster.folder / "ours", sources, options=QUICK).manifest.job == "train"
    sources, _ = pods.kubernetes("job-name=train", any_job=True)
    assert collect(cluster.folder / "theirs", sources, options=QUICK, job="other").manifest.job == "other"


@pytest.mark.parametrize(
    ("before", "theirs"),
    [("train-node-0-1-x7k2p", True), ("train-large-0-1-x7k2p", False), ("training-node-0-1-x7k2p", False)],
)
def test_the_incident_of_pods_that_were_replaced_is_this_jobs(before: str, theirs: bool, cluster: Cluster) -> None:
    """A hang ends all pods, and their controller starts others: names of the same make, with other numbers and ends."""
    cluster.put("pods.json", listed(pod("train-node-0-0-zz4wl", **container(RUNNING))))
    cluster.put("train-node-0-0-zz4wl.log", "anew\n")
    _mount(cluster, ("train-node-0-0-zz4wl",), _incident("train", "13:33:20", before))
    assert (cluster.collect().manifest.job == "train") is theirs


def test_pods_that_share_a_disk_miss_nothing(cluster: Cluster) -> None:
    """Each lists the others' parts, and each gives its own: that is no gap."""
    both = ("train-0", "train-1")
    cluster.put("pods.json", listed(*(pod(name, **container(RUNNING)) for name in both)))
    _mount(cluster, both, _incident("train", "13:33:20", *both))
    found = cluster.collect()
    assert found.manifest.gaps == ()
    assert _text(found, "nodes/train-1/logs/rank_0.log") == "of train on train-1\n"


def test_the_part_of_a_pod_that_is_over_comes_from_the_disk_that_it_shared(cluster: Cluster) -> None:
    """It cannot be entered; what two others list alike is taken, and what one alone lists is not."""
    three = ("train-0", "train-1", "train-2")
    over = pod("train-1", phase="Failed", **container(ended(1)))
    cluster.put("pods.json", listed(pod("train-0", **container(RUNNING)), over, pod("train-2", **container(RUNNING))))
    cluster.put("train-1.log", "last words\n")
    _mount(cluster, ("train-0", "train-2"), _incident("train", "13:33:20", *three))
    cluster.put("train-0/hangscope/train/nodes/train-1/logs/rank_9.log", "lies\n")
    found = cluster.collect()
    assert _text(found, "nodes/train-1/logs/rank_0.log") == "of train on train-1\n"
    assert not (found.path / "nodes/train-1/logs/rank_9.log").exists()


def test_a_pod_that_reads_its_machines_disk_is_no_node_of_the_job(cluster: Cluster) -> None:
    """A DaemonSet's pods bring the parts of trainers that are gone, and nothing is expected of themselves."""
    reader = pod("train-files", job="files", **container(RUNNING))
    reader["metadata"]["labels"] = {"app": "files"}
    cluster.put("pods.json", listed(reader))
    _mount(cluster, ("train-files",), _incident("llm", "13:33:20", "llm-0"))
    found = cluster.collect("app=files")
    assert "train-files" not in (found.manifest.nodes_expected or ())
    assert _text(found, "nodes/llm-0/logs/rank_0.log") == "of llm on llm-0\n"


def test_secrets_of_a_pod_stay_where_they_are(cluster: Cluster) -> None:
    """Of a pod's description only names, limits and state are kept: no environment, arguments or annotations."""
    value = pod("train-0", phase="Failed", **container(ended(1)))
    value["metadata"]["annotations"] = {"note": "hunter2"}
    value["spec"]["containers"][0].update(env=[{"name": "KEY", "value": "hunter2"}], args=["--token", "hunter2"])
    cluster.put("pods.json", listed(value))
    cluster.put("train-0.log", "rank 0 step 7\n")
    found = cluster.collect()
    assert not any(b"hunter2" in file.read_bytes() for file in found.path.rglob("*") if file.is_file())


def test_events_of_the_job_alone_are_kept(cluster: Cluster) -> None:
    """Those of its pods, also of one that is gone; not those of others. Without the right to see them, a gap."""
    cluster.put("pods.json", listed(pod("train-0", phase="Failed", **container(ended(1)))))
    cluster.put("train-0.log", "rank 0 step 7\n")
    about = [event(name, "Evicted", "low") for name in ("train-0", "train-7", "other-0")]
    cluster.put("events.json", listed(*about))
    kept = json.loads(_text(cluster.collect(), "files/kubernetes/events.json"))
    assert [each["involvedObject"]["name"] for each in kept["items"]] == ["train-0", "train-7"]
    (cluster.folder / "events.json").unlink()
    found = cluster.collect()
    assert any(gap.what == "events of the pods" and "forbidden" in gap.why for gap in found.manifest.gaps)


def test_a_bare_name_is_a_jobs(cluster: Cluster) -> None:
    """Whoever gives the name of a job gets its pods, by the labels that controllers give them."""
    cluster.put("pods.json", listed())
    with pytest.raises(CollectError, match="no pod matches 'llm-7b'"):
        pods.kubernetes("llm-7b")
    asked = [call.split("--selector ")[1].split()[0] for call in cluster.calls()]
    assert asked[0] == "llm-7b"
    assert {"job-name=llm-7b", "training.kubeflow.org/job-name=llm-7b", "jobset.sigs.k8s.io/jobset-name=llm-7b"} <= set(
        asked
    )


@pytest.mark.parametrize("answer", ("error", "[]", '{"items": 7}', "{}"))
def test_an_answer_that_is_no_list_is_an_error_in_words(answer: str, cluster: Cluster) -> None:
    """kubectl's plugins and proxies answer all sorts of things."""
    cluster.put("pods.json", answer)
    with pytest.raises(CollectError, match="not a list of pods"):
        pods.kubernetes("job-name=train")


def test_what_was_collected_is_diagnosed(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """From kubectl to the verdict: the pod that was thrown out is named, and something is missing."""
    evicted = pod("train-1", phase="Failed", reason="Evicted", message="The node was low on resource: memory.")
    cluster.put("pods.json", listed(pod("train-0", **container(RUNNING)), evicted))
    cluster.put("train-0.log", "rank 0 step 7\n")
    assert main(["collect", "-o", str(cluster.folder / "hang"), "--kubernetes", "train", "--retries", "0"]) == 1
    assert "missing: files of train-1: its pod is Failed (Evicted)" in " ".join(capsys.readouterr().err.split())
    main(["diagnose", str(cluster.folder / "hang")])
    assert "the pod train-1 was evicted by its node" in " ".join(capsys.readouterr().out.split())
