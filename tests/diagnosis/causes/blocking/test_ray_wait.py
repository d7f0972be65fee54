"""A Ray cluster's files and the verdict on them: who is accused, and who must not be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import Diagnosis, diagnose
from hangscope.errors import HangscopeError
from hangscope.reader.load import load

JOB = "01000000"
DRIVER = f"{'f' * 40}{JOB}"
NOW = 1_800_000_000.0
WORKER_PY = "/x/lib/python3.11/site-packages/ray/_private/worker.py"
GET = [["Worker.get_objects", WORKER_PY, 1], ["get", WORKER_PY, 2]]
ALL_REDUCE = [["all_reduce", "/x/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9]]


class Cluster:
    """One node with a driver that waits in ray.get; actors and tasks are added by the tests."""

    def __init__(self, waits_for: list[str] | None, call: str = "ray.get") -> None:
        self.actors: list[dict[str, Any]] = []
        self.tasks: list[dict[str, Any]] = [self._task(DRIVER, "", "DRIVER_TASK", "", 8, 1, "")]
        self.processes: list[dict[str, Any]] = []
        self.more: dict[str, Any] = {}
        self.process(1, "driver", [*(GET if call else []), ["main", "/job/job.py", 5]], waits_for, call)

    @staticmethod
    def _task(task: str, name: str, kind: str, actor: str, state: int, pid: int, parent: str) -> dict[str, Any]:
        since = int((NOW - 100) * 1e9)
        common = {"job": JOB, "node": "n", "attempt": 0, "resources": {"CPU": 4.0}}
        own = {"id": task, "name": name, "kind": kind, "actor": actor, "state": state, "pid": pid, "parent": parent}
        return {**common, **own, "since_ns": since, "created_ns": since, "started_ns": since}

    def actor(self, name: str, pid: int, state: str = "ALIVE", **more: Any) -> None:
        row = {"id": name, "class": "Learner", "name": name, "job": JOB, "state": state, "pid": pid, "node": "n"}
        self.actors.append({**row, **more})

    def task(self, task: str, actor: str = "", state: int = 8, pid: int = 0, kind: str = "") -> None:
        kind = kind or ("ACTOR_TASK" if actor else "NORMAL_TASK")
        self.tasks.append(self._task(task, f"Learner.{task}" if actor else task, kind, actor, state, pid, DRIVER))

    def process(
        self,
        pid: int,
        kind: str,
        frames: list[list[Any]],
        waits_for: list[str] | None = None,
        call: str = "",
        **more: Any,
    ) -> None:
        thread = {"name": "MainThread", "frames": frames, "switches": more.pop("switches", [7, 7])[0]}
        if call:
            thread.update({"waits_in": call, "waits_for": waits_for})
        row = {"pid": pid, "kind": kind, "title": "ray::x", "environ": {"RAY_JOB_ID": JOB}, "state": "S"}
        later = {**thread, **more.pop("later", {})}
        self.processes.append({**row, "works": False, "cpu_share": 0.0, "samples": [[thread], [later]], **more})

    def verdict(self, folder: Path) -> Diagnosis:
        node = {"id": "n", "name": "gpu-1", "alive": True, "resources": {"CPU": 8.0}}
        cluster = {
            "schema": "hangscope.ray/1",
            "at": NOW,
            "nodes": [node],
            "jobs": [{"id": JOB, "driver_pid": 1, "dead": False}],
            "actors": self.actors,
            "tasks": {"open": self.tasks, "failed": [], "finished": 3},
            "available": {"n": {"CPU": 0.0}},
            "chosen_jobs": [JOB],
            **self.more,
        }
        here = {"schema": "hangscope.ray-node/1", "node": "gpu-1", "processes": self.processes}
        for name, value in (("ray/cluster.json", cluster), ("nodes/gpu-1/ray/processes.json", here)):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value))
        return diagnose(load([folder]))


def labels(found: Diagnosis) -> list[str]:
    return [actor.label for actor in found.actors]


def test_the_driver_leads_through_an_actor_to_the_one_that_waits_for_nobody(tmp_path: Path) -> None:
    """Of a chain the last is accused, with its line; the actor between is a victim."""
    cluster = Cluster(["update"])
    cluster.actor("front", 2)
    cluster.actor("back", 3)
    cluster.task("update", "front", pid=2)
    cluster.task("fetch", "back", pid=3)
    cluster.process(2, "worker", [*GET, ["Learner.update", "/job/job.py", 20]], ["fetch"], "ray.get")
    cluster.process(3, "worker", [["Learner.fetch", "/job/job.py", 30]], code={"/job/job.py:30": "os.read(fd, 1)"})
    found = cluster.verdict(tmp_path)
    assert (found.outcome, found.kind, labels(found)) == ("hang", "absent", ["actor Learner 'back'"])
    where = found.actors[0].where
    assert where is not None and (where.file, where.line, where.code) == ("/job/job.py", 30, "os.read(fd, 1)")
    assert not found.culprits
    assert found.exit_status == 1


def test_two_actors_that_wait_for_each_other_are_a_deadlock(tmp_path: Path) -> None:
    """Each runs a call and has the other's queued behind it: both are named, and the driver is not."""
    cluster = Cluster(["ask1", "ask2"])
    for number, other in ((1, 2), (2, 1)):
        cluster.actor(f"a{number}", 10 + number)
        cluster.task(f"ask{number}", f"a{number}", pid=10 + number)
        cluster.task(f"answer{number}", f"a{number}", state=5, pid=0)
        frames = [*GET, [f"Learner.ask{number}", "/job/job.py", 40]]
        cluster.process(10 + number, "worker", frames, [f"answer{other}"], "ray.get")
    found = cluster.verdict(tmp_path)
    assert (found.outcome, found.kind, found.confidence) == ("hang", "deadlock", "high")
    assert sorted(labels(found)) == ["actor Learner 'a1'", "actor Learner 'a2'"]


def test_a_task_without_a_node_accuses_nobody(tmp_path: Path) -> None:
    """Nothing works, and Ray has no node for it: the cause is named, and no actor."""
    cluster = Cluster(["train"])
    cluster.task("train", state=2)
    found = cluster.verdict(tmp_path)
    assert (found.outcome, found.kind, labels(found)) == ("hang", "resources", [])
    assert "4 CPU" in found.headline
    assert found.exit_status == 1


def test_a_task_without_a_node_waits_for_the_one_that_works(tmp_path: Path) -> None:
    """A full cluster whose tasks work is a healthy one: those that are queued are no hang."""
    cluster = Cluster(["train", "busy"])
    cluster.task("train", state=2)
    cluster.task("busy", pid=4)
    cluster.process(4, "worker", [["busy", "/job/job.py", 50]], works=True)
    assert cluster.verdict(tmp_path).outcome == "ok"


@pytest.mark.parametrize("sign", [{"works": True}, {"later": {"frames": [["step", "/job/job.py", 51]]}}])
def test_who_works_is_not_accused(tmp_path: Path, sign: dict[str, Any]) -> None:
    """Who uses a core, or is at another line at the second look, gets on."""
    cluster = Cluster(["step"])
    cluster.actor("only", 4)
    cluster.task("step", "only", pid=4)
    cluster.process(4, "worker", [["step", "/job/job.py", 50]], **sign)
    found = cluster.verdict(tmp_path)
    assert (found.outcome, labels(found)) == ("ok", [])


def test_a_stopped_actor_is_frozen(tmp_path: Path) -> None:
    """The kernel's word that a process is stopped goes before where it was."""
    cluster = Cluster(["step"])
    cluster.actor("only", 4)
    cluster.task("step", "only", pid=4)
    cluster.process(4, "worker", [["step", "/job/job.py", 50]], state="T")
    found = cluster.verdict(tmp_path)
    assert (found.kind, labels(found), found.confidence) == ("frozen", ["actor Learner 'only'"], "high")


@pytest.mark.parametrize(
    ("reason", "died_at", "accused"),
    [
        ("WORKER_DIED", NOW - 50, "actor Learner 'gone'"),
        ("WORKER_DIED", NOW - 5000, "actor Learner 'here'"),
        ("RAY_KILL", NOW - 50, "actor Learner 'here'"),
    ],
)
def test_a_dead_actor_is_accused_where_it_died_by_itself_during_the_wait(
    tmp_path: Path, reason: str, died_at: float, accused: str
) -> None:
    """One that ray.kill ended, or that died long before, is not why somebody is blocked now."""
    cluster = Cluster(["read"])
    cluster.actor("here", 4, started_at=NOW - 9000)
    death = {"kind": "actor_died_error", "reason": reason, "text": "connection error code 2. End of file."}
    cluster.actor("gone", 5, "DEAD", death=death, ended_at=died_at)
    cluster.task("read", "here", pid=4)
    cluster.process(4, "worker", [["read", "/job/job.py", 50]])
    assert labels(cluster.verdict(tmp_path)) == [accused]


def test_a_guess_is_called_one(tmp_path: Path) -> None:
    """Where memory did not show what is awaited, and several tasks are open, confidence is low."""
    cluster = Cluster(None)
    for number in (4, 5):
        cluster.task(f"work{number}", pid=number)
        cluster.process(number, "worker", [[f"work{number}", "/job/job.py", 50 + number]])
    found = cluster.verdict(tmp_path)
    assert (found.outcome, found.confidence, len(found.actors)) == ("hang", "low", 2)


def trained(folder: Path, switches: list[int]) -> Diagnosis:
    """Ray Train: rank 1 is in its loader, rank 0 in a collective; `switches` of rank 0 at both looks."""
    cluster = Cluster(["run"])
    cluster.actor("control", 2, **{"class": "TrainController"})
    cluster.task("run", "control", pid=2)
    cluster.process(2, "worker", [["run", "/x/lib/python3.11/site-packages/ray/train/v2/controller.py", 3]])
    rows = []
    for rank, frames in enumerate(([*ALL_REDUCE, ["loop", "/job/job.py", 60]], [["load", "/job/job.py", 70]])):
        pid = 10 + rank
        cluster.actor(f"w{rank}", pid, **{"class": "RayTrainWorker"})
        environ = {"RAY_JOB_ID": JOB, "RANK": str(rank), "WORLD_SIZE": "2"}
        moved = {"later": {"switches": switches[1]}, "switches": switches} if rank == 0 else {}
        cluster.process(pid, "worker", frames, environ=environ, **moved)
        rows.append({"rank": rank, "pid": pid, "state": "S"})
    node = folder / "nodes/gpu-1/node.json"
    node.parent.mkdir(parents=True)
    node.write_text(json.dumps({"schema": "hangscope.node/1", "node": "gpu-1", "ranks": rows}))
    return cluster.verdict(folder / "")


def test_a_rank_outside_of_a_collective_is_accused_as_a_rank(tmp_path: Path) -> None:
    """Ray Train without `run`: the verdict names the rank, as any verdict does, and the actor beside it."""
    found = trained(tmp_path, [7, 7])
    assert (found.kind, [culprit.rank for culprit in found.culprits]) == ("absent", [1])
    assert labels(found) == ["actor RayTrainWorker 'w1' (rank 1)"]


def test_a_training_that_moves_is_not_hung(tmp_path: Path) -> None:
    """A rank that goes to sleep again and again in its collective gets on, so nobody keeps it waiting."""
    found = trained(tmp_path, [7, 200])
    assert (found.outcome, found.culprits, found.actors) == ("ok", (), ())


@pytest.mark.parametrize(
    "broken", [{"tasks": 3}, {"actors": [{"id": 4}]}, {"nodes": "x"}, {"jobs": [[]]}, {"at": "no"}]
)
def test_a_strange_file_is_no_crash(tmp_path: Path, broken: dict[str, Any]) -> None:
    """What anybody may have written is read as far as it goes, or refused in words."""
    cluster = Cluster(["step"])
    cluster.more = broken
    try:
        cluster.verdict(tmp_path)
    except HangscopeError as error:
        assert str(error)


def test_who_waits_for_a_queue_is_named_and_not_the_queue(tmp_path: Path) -> None:
    """Ray's own actor only keeps the items: the line to look at is where they are waited for."""
    cluster = Cluster(["consume"])
    cluster.actor("consumer", 2)
    cluster.actor("q", 3, **{"class": "_QueueActor"})
    cluster.task("consume", "consumer", pid=2)
    cluster.tasks.append(Cluster._task("get", "_QueueActor.get", "ACTOR_TASK", "q", 8, 3, "consume"))
    cluster.process(2, "worker", [*GET, ["Learner.consume", "/job/job.py", 20]], ["get"], "ray.get")
    cluster.process(3, "worker", [["main_loop", WORKER_PY, 9]])
    found = cluster.verdict(tmp_path)
    assert (found.outcome, labels(found)) == ("hang", ["actor Learner 'consumer'"])


@pytest.mark.parametrize(("ended", "outcome"), [(0, "hang"), (4, "ok")])
def test_a_driver_that_waits_for_no_task_is_looked_at_itself(tmp_path: Path, ended: int, outcome: str) -> None:
    """With nothing open only the driver's line is left, at low; unless its tasks ended while it was looked."""
    cluster = Cluster(None, call="")
    cluster.more = {"ended_during_capture": ended}
    found = cluster.verdict(tmp_path)
    assert (found.outcome, found.confidence == "low") == (outcome, outcome == "hang")
    assert labels(found) == (["the driver"] if outcome == "hang" else [])
