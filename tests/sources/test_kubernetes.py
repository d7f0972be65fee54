"""What the API server of Kubernetes says of pods, as evidence: who is gone, why, and on which machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import Diagnosis, diagnose
from hangscope.diagnosis.hardware.broken_nodes import broken_nodes
from hangscope.errors import NotFoundError
from hangscope.reader.load import load
from hangscope.sources.kubernetes import read as kubernetes_pods
from kits.pods import RUNNING, container, ended, event, hung_job, listed, pod

OTHERS = [pod(f"train-{rank}", f"machine-{rank}", **container(RUNNING)) for rank in (0, 1, 3)]
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
LOST = {"reason": "NodeLost", "message": "Node machine-2 which was running pod train-2 is unresponsive"}


def said(path: Path) -> tuple[Diagnosis, list[int], list[str]]:
    """The verdict, the ranks it accuses, and the machines to exclude."""
    job = load([path])
    verdict = diagnose(job)
    return verdict, [each.rank for each in verdict.culprits], [each.node for each in broken_nodes(job, verdict)]


def alone(folder: Path, *items: dict[str, Any]) -> Diagnosis:
    (folder / "pods.json").write_text(listed(*items))
    return said(folder)[0]


@pytest.mark.parametrize(
    ("status", "words", "machines"),
    [
        (EVICTED, "the pod train-2 was evicted by its node: The node was low on resource: memory.", []),
        (LOST, "node machine-2 failed, and rank 2 with it", ["machine-2"]),
        ({"phase": "Unknown"}, "node machine-2 failed, and rank 2 with it", ["machine-2"]),
        ({"phase": "Failed", **container(ended(137, "OOMKilled"))}, "rank 2 ran out of host memory", []),
    ],
    ids=["evicted", "node lost", "unknown", "out of memory"],
)
def test_the_rank_of_a_pod_that_is_gone_is_named(
    status: dict[str, Any], words: str, machines: list[str], tmp_path: Path
) -> None:
    """Nothing was collected of it; the others wait, and the pod without ranks has the one that no other has."""
    verdict, ranks, excluded = said(hung_job(tmp_path, *OTHERS, pod("train-2", "machine-2", **status)))
    assert (verdict.outcome, ranks, verdict.confidence) == ("hang", [2], "medium")
    assert words in verdict.headline
    assert [each.node for each in verdict.culprits] == ["train-2"]
    assert excluded == machines


PRINTED = """\
[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [10.79.1.4]:10117.
hangscope: the verdict on /hangscope/train:
hangscope: CRASH  {}                          confidence: medium
hangscope:        node train-2, local rank 0, pid 37
hangscope:
hangscope: Ranks      train-0  0  W
hangscope:            X dead   W waiting in all_reduce
"""
KILLED_IN = """\
E1118 06:32:25.283000 13 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) \
local_rank: 0 (pid: 37) of binary: /usr/bin/python
Root Cause (first observed failure):
[0]:
  time      : 2026-09-21_13:30:00
  host      : train-2.train.ml.svc.cluster.local
  rank      : 2 (local_rank: 0)
  exitcode  : -9 (pid: 37)
"""


@pytest.mark.parametrize(
    ("printed", "status", "words"),
    [
        ("rank 2 was killed by SIGKILL", container(ended(1, "OOMKilled", message=KILLED_IN)), "out of memory"),
        ("node train-2 has gone silent, and rank 2 with it", EVICTED, "the pod train-2 was evicted by its node"),
        ("node train-2 has gone silent, and rank 2 with it", LOST, "node machine-2 failed, and rank 2 with it"),
    ],
    ids=["out of memory", "evicted", "node lost"],
)
def test_the_api_server_knows_why_a_rank_is_gone(
    printed: str, status: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """`run` in the other pods saw only that it was gone, and printed that; both are of the same rank."""
    log = tmp_path / "nodes" / "train-0" / "train.log"
    log.parent.mkdir(parents=True)
    log.write_text(PRINTED.format(printed))
    (tmp_path / "pods.json").write_text(listed(*OTHERS, pod("train-2", "machine-2", **{"phase": "Failed", **status})))
    verdict, ranks, _ = said(tmp_path)
    assert (verdict.outcome, ranks, verdict.confidence) == ("crash", [2], "medium")
    assert words in verdict.headline
    assert [each.node for each in verdict.culprits] == ["train-2"]  # the pod, not its name in the cluster's DNS
    assert verdict.next_steps[-1] == "diagnose what was saved at the time: /hangscope/train"


def stopped(name: str, at: str) -> dict[str, Any]:
    return event(name, "Killing", "Stopping container train", lastTimestamp=f"2026-09-21T{at}Z")


def test_a_pod_that_was_drained_is_named_and_nobody_in_it(tmp_path: Path) -> None:
    """It is gone from the list; what is left is the event of its stop, before the others lost it and failed."""
    left = [pod(f"train-{rank}", phase="Failed", **container(ended(1))) for rank in (0, 1)]
    unsure = PRINTED.format("ranks 0, 1 wait in all_reduce; there is no evidence from rank 2")
    (tmp_path / "train-0.log").write_text(unsure.replace("X dead   ", "").replace("node train-2, ", ""))
    (tmp_path / "pods.json").write_text(listed(*left, stopped("train-2", "13:29:50")))
    verdict, ranks, machines = said(tmp_path)
    assert (verdict.outcome, ranks, machines) == ("crash", [], [])
    assert "the pod train-2 was ended from outside: deleted, drained or preempted" in verdict.headline


@pytest.mark.parametrize(
    "events",
    [
        [stopped("train-2", "13:31:00")],
        [stopped("train-1", "13:29:50"), stopped("train-2", "13:29:50")],
        [event("train-2", "Killing", "Container train failed liveness probe", lastTimestamp="2026-09-21T13:29:50Z")],
    ],
    ids=["after the end", "most of the job", "for another reason"],
)
def test_cleaning_up_is_no_cause(events: list[dict[str, Any]], tmp_path: Path) -> None:
    """Pods are deleted when a job is over, all of them when somebody deletes it; and probes kill containers, too."""
    left = [pod(f"train-{rank}", phase="Failed", **container(ended(1))) for rank in (0, 1)]
    (tmp_path / "pods.json").write_text(listed(*left, *events))
    assert "ended from outside" not in said(tmp_path)[0].headline


def test_a_hang_that_run_saw_is_not_explained_by_what_came_after(tmp_path: Path) -> None:
    """It printed who was stuck where; that the pod was evicted later is no reason for it."""
    (tmp_path / "train-0.log").write_text(
        PRINTED.format("rank 1 never launched all_reduce").replace("X dead", "X absent")
    )
    (tmp_path / "pods.json").write_text(listed(*OTHERS, pod("train-2", "machine-2", **EVICTED)))
    assert said(tmp_path)[1] == [1]


def test_memory_is_said_with_its_limit(tmp_path: Path) -> None:
    """Whoever reads it wants to know how much there was."""
    verdict = alone(tmp_path, pod("train-0", phase="Failed", **container(ended(137, "OOMKilled"))))
    assert "over its memory limit of 64Gi" in verdict.summary


@pytest.mark.parametrize("code", (1, 134, 137))
def test_who_ends_first_is_not_accused(code: int, tmp_path: Path) -> None:
    """The first to give up waiting ends first: an exit status alone names its pod, and no rank."""
    late = [
        pod(f"train-{rank}", phase="Failed", **container(ended(code, at="2026-09-21T13:31:00Z"))) for rank in (1, 2, 3)
    ]
    first = pod("train-0", phase="Failed", **container(ended(code)))
    _, ranks, machines = said(hung_job(tmp_path, first, *late))
    assert ranks == [2]  # by the others' dumps
    assert machines == []
    (tmp_path / "alone").mkdir()
    assert alone(tmp_path / "alone", first, *late).culprits == ()


def test_a_pod_whose_ranks_left_dumps_ended_later(tmp_path: Path) -> None:
    """It was there while the others waited: that it was evicted afterwards accuses nobody in it."""
    pods = [*OTHERS[:2], pod("train-2", "machine-2", **container(RUNNING)), pod("train-3", "machine-3", **EVICTED)]
    _, ranks, machines = said(hung_job(tmp_path, *pods))
    assert (ranks, machines) == ([2], [])


def test_what_happened_to_an_earlier_container_is_history(tmp_path: Path) -> None:
    """A container that was killed days ago and runs since has nothing to do with the hang of today."""
    runs_again = container(RUNNING, ended(137, "OOMKilled", at="2026-09-18T13:30:00Z"), restarts=3)
    folder = hung_job(tmp_path, *OTHERS[1:], pod("train-0", "machine-0", **runs_again))
    (folder / "incident.json").write_text(
        json.dumps({"schema": "hangscope.incident/1", "captured_at": "2026-09-21T13:33:20Z", "reason": "stall"})
    )
    job = load([folder])
    assert not job.facts.failures
    assert any("started again since (3 restarts)" in gap.why for gap in job.gaps)


def test_a_node_that_was_not_ready_for_a_while_is_no_failure(tmp_path: Path) -> None:
    """The event stays for an hour; the pod runs and is ready."""
    ready = {"conditions": [{"type": "Ready", "status": "True"}], **container(RUNNING)}
    pods = [pod("train-0", "machine-0", **ready), *OTHERS[1:]]
    folder = hung_job(tmp_path, *pods, event("train-0", "NodeNotReady", "Node is not ready"))
    assert not load([folder]).facts.failures


def test_events_tell_of_pods_that_are_no_longer_listed(tmp_path: Path) -> None:
    """A pod that its controller has deleted has events still, with the machine that threw it out."""
    told = event("train-2", "Evicted", "Usage of EmptyDir volume exceeds the limit", source={"host": "machine-2"})
    verdict, ranks, _ = said(hung_job(tmp_path, *OTHERS, told))
    assert ranks == [2]
    assert "the pod train-2 was evicted" in verdict.headline
    assert load([tmp_path]).facts.machines["train-2"] == "machine-2"


def test_pods_of_other_jobs_say_nothing(tmp_path: Path) -> None:
    """A list of a whole namespace: only the pods of the job whose ranks are here count, and of two jobs neither."""
    folder = hung_job(tmp_path, *OTHERS, pod("other-1", "machine-9", job="other", **EVICTED))
    assert not load([folder]).facts.failures
    (tmp_path / "alone").mkdir()
    verdict = alone(
        tmp_path / "alone",
        pod("train-0", **EVICTED),
        pod("other-0", job="other", **container(ended(1)), phase="Failed"),
    )
    assert (verdict.outcome, verdict.culprits) == ("unknown", ())


def test_a_job_that_hangscope_ended_hung(tmp_path: Path) -> None:
    """75 is the status of --on-hang kill; of another program it is a status like any other."""
    pods = [pod(f"train-{rank}", phase="Failed", **container(ended(75))) for rank in (0, 1)]
    assert alone(tmp_path, *pods).outcome == "hang"
    for each in pods:
        each["spec"]["containers"][0]["command"] = ["python"]
    assert alone(tmp_path, *pods).outcome == "crash"


def test_the_last_words_of_a_container_are_read(tmp_path: Path) -> None:
    """What it left in terminationMessagePath, or the end of its log, is a log."""
    words = "[rank0]: Traceback (most recent call last):\n[rank0]: ValueError: a batch that cannot be read\n"
    verdict = alone(tmp_path, pod("train-0", phase="Failed", **container(ended(1, message=words))))
    assert "a batch that cannot be read" in verdict.summary


def test_a_pod_that_never_started_is_named(tmp_path: Path) -> None:
    """No machine for it, or no image: the pod and the reason, with advice about that."""
    condition = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available: 4 Insufficient gpu."}
    verdict = alone(tmp_path, OTHERS[0], pod("train-1", phase="Pending", conditions=[condition]))
    assert verdict.headline == "the pod train-1 never started: 0/4 nodes are available: 4 Insufficient gpu."
    assert "kubectl describe pod" in " ".join(verdict.next_steps)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    verdict = alone(tmp_path, OTHERS[0], pod("train-1", phase="Pending", **container(waiting)))
    assert "the pod train-1 never started: ImagePullBackOff" in verdict.headline


def test_pods_that_are_all_well_are_no_evidence(tmp_path: Path) -> None:
    """They say nothing of a hang, and that is said."""
    with pytest.raises(NotFoundError):
        alone(tmp_path, *OTHERS)


@pytest.mark.parametrize(
    "value",
    [
        {"kind": "Pod", "apiVersion": "v1", "metadata": []},
        {"kind": "PodList", "items": [None, 7, {"metadata": {"name": {"a": 1}}}]},
        {"kind": "List", "items": [{"kind": "Pod", "metadata": {"name": "--kubeconfig=x"}, "status": EVICTED}]},
        {"kind": "List", "items": [{"kind": "Pod", "metadata": {"name": "a"}, "status": {"containerStatuses": 7}}]},
        {"kind": "List", "items": [{"kind": "Pod", "metadata": {"name": "a"}, "status": {"conditions": [[], 3]}}]},
        {"kind": "List", "items": [{"kind": "Event", "involvedObject": "x", "reason": []}]},
    ],
)
def test_lists_of_nonsense_say_nothing(value: dict[str, Any]) -> None:
    """Whatever stands where a pod should, nothing is made of it, and nothing breaks."""
    assert not any(each.ends for each in kubernetes_pods.read_object(value, "pods.json").pods)


def test_other_lists_are_not_pods() -> None:
    """A list of something else, or an empty one, is left to others."""
    assert not kubernetes_pods.recognise_object({"kind": "List", "items": [{"kind": "Node"}]})
    assert not kubernetes_pods.recognise_object({"kind": "List", "items": []})
    assert not kubernetes_pods.recognise_object({"kind": "Job", "apiVersion": "batch/v1"})
    assert kubernetes_pods.recognise_object(
        {"kind": "PodList", "apiVersion": "v1", "items": [{"metadata": {"name": "a"}}]}
    )
