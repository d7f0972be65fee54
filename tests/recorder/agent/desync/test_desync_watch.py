"""Looks that are compared while the job runs: two of them have to agree, and nothing is asked of the ranks."""

from __future__ import annotations

import json
import pickle
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hangscope import load
from hangscope.recorder.agent.desync import desync_watch
from hangscope.recorder.agent.desync.desync_watch import DesyncWatch
from hangscope.recorder.agent.diagnose_process import Verdict
from hangscope.recorder.capture.look_files import with_groups
from hangscope.recorder.capture.node_facts import NodeFacts
from hangscope.recorder.live.looks import Look
from hangscope.recorder.live.polling import Polling
from hangscope.recorder.rundir.run_directory import RunFolders

STEP = ((37, 16), (41, 16), (41, 16))
GROUPS = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}


def ring(left_out: int = 0, rank: int = 0) -> bytes:
    """Sixty steps as NCCL's recorder pickles them; in the middle some calls are left out."""
    calls = [call for _ in range(60) for call in STEP]
    del calls[91 : 91 + left_out]
    entries = [
        {
            "record_id": number,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": 1 + number,
            "p2p_seq_id": 0,
            "op_id": 1 + number,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_794_705_000_000_000_000 + number * 10**8 + rank,
            "input_sizes": [[size]],
            "output_sizes": [[size]],
            "input_dtypes": ["Float"],
            "output_dtypes": ["Float"],
            "state": "completed",
            "time_discovered_started_ns": 1_794_705_000_000_000_000 + number * 10**8 + 1000,
            "time_discovered_completed_ns": 1_794_705_000_000_000_000 + number * 10**8 + 2000,
            "retired": True,
            "timeout_ms": 600_000,
            "is_p2p": False,
            "frames": [{"name": "step", "filename": "/workspace/train.py", "line": line}],
        }
        for number, (line, size) in enumerate(calls)
    ]
    return pickle.dumps({"version": "2.10", "pg_config": GROUPS, "entries": entries}, protocol=2)


def look(launched: int, odd: int = 2) -> Look:
    return Look(time.time(), launched, {rank: {"nccl": ring(odd if rank == 2 else 0, rank)} for rank in range(3)})


def verdict(outcome: str = "desync", rank: int = 2) -> Verdict:
    value = {"outcome": outcome, "kind": "shift", "culprits": [{"rank": rank}], "headline": f"rank {rank} is off"}
    return Verdict("", value)


@pytest.fixture
def watch(tmp_path: Path) -> DesyncWatch:
    own = tmp_path / "run" / "nodes" / "n1"
    own.mkdir(parents=True)
    node = NodeFacts("n1", "job", "0", time.time())
    return DesyncWatch(Polling(tmp_path), RunFolders(tmp_path / "run", own), node, threading.Event())


def compare(watch: DesyncWatch, monkeypatch: pytest.MonkeyPatch, launched: int, said: Verdict) -> Any:
    monkeypatch.setattr(watch, "_verdict", lambda _: said)
    watch._compare(Look(0.0, launched, {0: {"nccl": b"x"}}))
    return watch.take()


def test_two_looks_that_agree_are_a_finding_and_it_is_said_once(
    watch: DesyncWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look only suspects; the second one, with operations in between, says it; a third nothing new."""
    assert compare(watch, monkeypatch, 100, verdict()) is None
    found = compare(watch, monkeypatch, 200, verdict())
    assert found is not None
    trouble, look = found
    assert trouble.reason == "desync"
    assert "rank 2 is off" in trouble.detail
    assert look.launched == 200
    assert compare(watch, monkeypatch, 300, verdict()) is None
    assert watch.take() is None


def test_a_comparison_under_way_ends_with_the_job(
    watch: DesyncWatch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the machine is busy, a process of the lowest priority would go on for minutes: nothing of it is left."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    watch._working = threading.Thread(target=watch._compare, args=(look(100),), daemon=True)
    watch._working.start()
    while (comparing := watch._comparing) is None:
        assert watch._working.is_alive()
        time.sleep(0.01)
    watch.close()
    watch._working.join(60)  # a busy machine also kills it late
    assert comparing._process.returncode == -signal.SIGKILL
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    "between",
    [
        pytest.param([verdict("ok")], id="all was well in between"),
        pytest.param([verdict(rank=1)], id="another rank in between"),
        pytest.param([verdict("hang")], id="it hangs"),
    ],
)
def test_looks_that_do_not_agree_say_nothing(
    watch: DesyncWatch, monkeypatch: pytest.MonkeyPatch, between: list[Verdict]
) -> None:
    """What one look shows and the next does not has not lasted."""
    said = [verdict(), *between, verdict()]
    assert [compare(watch, monkeypatch, 100 * n, each) for n, each in enumerate(said)] == [None] * len(said)


def test_a_job_that_hardly_moves_does_not_confirm_itself(watch: DesyncWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks at the same calls are one: the second counts once more operations were launched."""
    assert compare(watch, monkeypatch, 100, verdict()) is None
    assert compare(watch, monkeypatch, 105, verdict()) is None
    assert compare(watch, monkeypatch, 140, verdict()) is not None


def test_no_verdict_changes_nothing(watch: DesyncWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the diagnosis itself fails, what was suspected stays suspected."""
    assert compare(watch, monkeypatch, 100, verdict()) is None
    assert compare(watch, monkeypatch, 200, Verdict("", {}, "no memory")) is None
    assert compare(watch, monkeypatch, 300, verdict()) is not None


def test_a_suspicion_brings_the_next_look_forward(watch: DesyncWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits a quarter of an hour for the second look."""
    looks = watch._polling.looks
    looks.begin(time.monotonic(), 0, [])
    looks.finished(time.monotonic())
    compare(watch, monkeypatch, 100, verdict())
    assert looks.is_due(time.monotonic() + desync_watch.AGAIN_S + 1, moving=True)


@pytest.mark.parametrize(("left_out", "outcome"), [(2, "desync"), (0, "ok")])
def test_the_engine_judges_the_rings_of_a_look(watch: DesyncWatch, left_out: int, outcome: str) -> None:
    """A real diagnosis process over the rings as they came: apart, or all well; and nothing of it stays."""
    found = watch._verdict(look(100, left_out))
    assert found is not None
    assert found.value["outcome"] == outcome, found
    assert [culprit["rank"] for culprit in found.value["culprits"]] == ([2] if left_out else [])
    assert sorted(path.name for path in watch._folders.root.rglob("*") if path.is_file()) == []


def test_several_nodes_put_their_rings_together(watch: DesyncWatch, tmp_path: Path) -> None:
    """The agent with the lowest rank compares its rings with those that another node wrote at the same time."""
    root = watch._folders.root
    whole = look(100)
    for name, ranks in (("n1", [0, 1]), ("n2", [2])):
        folder = root / "nodes" / name
        folder.mkdir(parents=True, exist_ok=True)
        live = [{"rank": rank, "pid": 1, "state": "S", "groups": []} for rank in ranks]
        status = {"schema": "hangscope.status/1", "node": name, "job": "job", "world_size": 3, "live": live}
        (folder / "agent.json").write_text("{}")
        (folder / "status.json").write_text(json.dumps({**status, "attempt": "0", "at": time.time()}))
    other = DesyncWatch(Polling(tmp_path), RunFolders(root, root / "nodes" / "n2"), watch._node, threading.Event())
    assert other._verdict(Look(whole.at, 100, {2: whole.rings[2]})) is None
    found = watch._verdict(Look(whole.at + 1, 100, {rank: whole.rings[rank] for rank in (0, 1)}))
    assert found is not None
    assert (found.value["outcome"], [c["rank"] for c in found.value["culprits"]]) == ("desync", [2])
    watch.close()
    assert not (root / "look-1").exists()


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_groups_are_put_into_a_ring_that_lacks_them(tmp_path: Path, form: str) -> None:
    """Gloo's recorder does not know who is in a group: the agent does, in both forms of a dump."""
    value = pickle.loads(ring())
    value["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
    body = json.dumps(value).encode() if form == "json" else pickle.dumps(value, protocol=2)
    for rank in range(3):
        (tmp_path / f"gloo_rank_{rank}.{form}").write_bytes(with_groups(body, GROUPS))
    assert [group.members for group in load(tmp_path).groups] == [(0, 1, 2)]


@pytest.mark.parametrize("body", [b"", b"{}", b"x", b"\x80\x02}", b"not a dump."])
def test_what_is_no_dump_stays_as_it_is(body: bytes) -> None:
    """An answer that is cut or nonsense is kept as it came, for the reader to say so."""
    assert with_groups(body, GROUPS) == body
