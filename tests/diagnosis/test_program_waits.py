"""A rank that others wait for may wait itself, for a program that is no rank: the verdict goes on to that program."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import hangscope
from hangscope.report import export
from hangscope.report.op_times import op_times
from hangscope.report.page import wait_boxes
from hangscope.sources.process_waits.schema import NodeWaits, SeenProcess, Target, Wait

CASE = Path(__file__).parents[1] / "cases" / "mesh_absent"
RANK, PID, NODE = 6, 436, "gpu-worker-13"
SERVER = SeenProcess(4711, 1, "python", "python reward_server.py", "T", 3, 0.0)
TRAINER = SeenProcess(PID, 1, "python", "python train.py", "S", 9, 0.0, rank=RANK)
OVER_TCP = Target("tcp", "127.0.0.1:9000", (4711,), "inode", local="127.0.0.1:41000", peer="127.0.0.1:9000")


def diagnosed(folder: Path, *processes: SeenProcess, waits: tuple[Wait, ...]) -> hangscope.Diagnosis:
    """The recorded job in which rank 6 is away, with these waits beside it."""
    target = folder / "job"
    shutil.copytree(CASE, target)
    seen = {**NodeWaits(processes, waits, 2.0).to_json(), "node": NODE}
    (target / NODE / "processes.json").write_text(json.dumps(seen))
    return hangscope.diagnose(hangscope.load(target))


def waits_in(target: Target, pid: int = PID) -> Wait:
    return Wait(pid, pid, "python", "recvfrom", (target,), main=True)


def test_the_verdict_names_the_program_that_the_rank_waits_for(tmp_path: Path) -> None:
    """The accused stays the rank that is absent; who holds it up is a sentence of the summary, a finding and a step."""
    found = diagnosed(tmp_path, TRAINER, SERVER, waits=(waits_in(OVER_TCP),))
    assert [culprit.rank for culprit in found.culprits] == [RANK]
    assert "Rank 6 waits for process 4711 (python reward_server.py), which is stopped." in found.summary
    assert any("waits in recvfrom over TCP with 127.0.0.1:9000" in finding.text for finding in found.why)
    assert found.next_steps[0].startswith("other programs: look at process 4711")
    said = export.to_dict(found)
    assert said["waits"][0]["to"] == {"node": NODE, "pid": 4711}
    assert {row["pid"] for row in said["processes"]} == {PID, 4711}


@pytest.mark.parametrize(("state", "cpu_s"), [("R", 1.0), ("S", 0.0)])
def test_a_server_that_works_or_shows_nothing_is_accused_of_nothing(tmp_path: Path, state: str, cpu_s: float) -> None:
    """Where the end of the chain moves, or does not show what it waits for, the summary does not blame it."""
    server = replace(SERVER, state=state, cpu_s=cpu_s)
    found = diagnosed(tmp_path, TRAINER, server, waits=(waits_in(OVER_TCP),))
    assert "waits for process 4711" not in found.summary
    assert any("4711" in finding.text for finding in found.why)


def test_programs_that_wait_for_each_other_are_shown_as_a_circle(tmp_path: Path) -> None:
    """Trainer and engine, each in a call to the other: both are named, with both waits in the JSON."""
    back = Target("unix", "/run/trainer.sock", (PID,), "inode")
    waits = (waits_in(OVER_TCP), waits_in(back, 4711))
    found = diagnosed(tmp_path, TRAINER, replace(SERVER, state="S"), waits=waits)
    assert "wait for each other" in found.summary
    assert [row["to"]["pid"] for row in export.to_dict(found)["waits"]] == [4711, PID]


def test_a_key_that_nobody_sets_is_named(tmp_path: Path) -> None:
    """A wait for the job's store says which key it is for, where that was read."""
    in_store = Wait(
        PID, PID, "python", "poll", (), main=True, place="join (train.py:9)", says="the key engine/0/ready of its store"
    )
    found = diagnosed(tmp_path, TRAINER, waits=(in_store,))
    said = "rank 6 waits for the key engine/0/ready of its store, in join (train.py:9): nobody has set it"
    assert said in [finding.text for finding in found.why]


def test_a_doubtful_way_is_said_to_seem_so(tmp_path: Path) -> None:
    """Known by a port alone: the summary says that the rank seems to wait, and the finding why."""
    found = diagnosed(tmp_path, TRAINER, SERVER, waits=(waits_in(replace(OVER_TCP, sure="listens")),))
    assert "Rank 6 seems to wait for process 4711" in found.summary


def test_programs_are_boxes_of_the_page_before_the_rank_that_waits_for_them(tmp_path: Path) -> None:
    """The page's graph of waits goes on to the programs, with an arrow that says over what."""
    found = diagnosed(tmp_path, TRAINER, SERVER, waits=(waits_in(OVER_TCP),))
    drawn = wait_boxes.waits(found, op_times(hangscope.load(tmp_path / "job")).alignment)
    assert drawn is not None
    server = next(box for box in drawn["boxes"] if box["title"] == "reward_server.py")
    rank = next(box for box in drawn["boxes"] if box["title"] == f"rank {RANK}")
    assert server["x"] < rank["x"] and server["says"] == "is stopped"
    assert any("waits in recvfrom, tcp 127.0.0.1:9000" in arrow["title"] for arrow in drawn["arrows"])


def test_an_address_outside_of_the_job_is_named_as_such(tmp_path: Path) -> None:
    """A connection whose other end no node shows is an address, and no process."""
    outside = Target("tcp", "10.0.0.9:9000", local="10.0.0.1:41000", peer="10.0.0.9:9000")
    found = diagnosed(tmp_path, TRAINER, waits=(waits_in(outside),))
    assert "10.0.0.9:9000 is no process that was seen here" in found.summary


def test_a_wait_for_another_rank_adds_nothing(tmp_path: Path) -> None:
    """Ranks that wait for each other over sockets are what the recorder is about."""
    other = replace(SERVER, rank=7)
    found = diagnosed(tmp_path, TRAINER, other, waits=(waits_in(OVER_TCP),))
    plain = hangscope.diagnose(hangscope.load(CASE))
    assert (found.summary, found.next_steps) == (plain.summary, plain.next_steps)


@pytest.mark.parametrize(
    "hostile",
    [
        {"processes": 3, "waits": None},
        {"processes": [None, {"pid": "7"}, {"pid": PID, "rank": True, "state": 5, "sockets": [["a"], 3]}]},
        {"processes": [{"pid": PID, "rank": RANK, "state": "S"}], "waits": [{"pid": PID, "targets": [{"pids": [-1]}]}]},
        {"waits": [{"pid": PID, "targets": [3]}, []], "between_s": "x", "not_visible": -4},
    ],
)
def test_what_is_no_such_file_changes_nothing(tmp_path: Path, hostile: dict[str, object]) -> None:
    """Values of other kinds in the file of waits are left out, and the verdict is as without it."""
    target = tmp_path / "job"
    shutil.copytree(CASE, target)
    (target / NODE / "waits.json").write_text(json.dumps({"schema": "hangscope.waits/1", "node": NODE, **hostile}))
    plain = hangscope.diagnose(hangscope.load(CASE))
    assert hangscope.diagnose(hangscope.load(target)).summary == plain.summary
