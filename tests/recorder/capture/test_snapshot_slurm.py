"""`snapshot --slurm`: the steps of srun that capture the nodes of a job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hangscope.errors import NotFoundError
from hangscope.recorder.capture import snapshot_slurm


def stand_in(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/calls\n{script}\n')
    (folder / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands: a job of two components with a node each, whose steps say what they captured."""
    folder = tmp_path / "tools"
    stand_in(folder, "squeue", "printf '48121|N/A|gpu-a1|48121+0\\n48122|N/A|gpu-b1|48121+1\\n'")
    stand_in(folder, "scontrol", 'echo "$3"')
    said = json.dumps({"node": "gpu-a1", "ranks": 1, "world_size": 2})
    stand_in(folder, "srun", f"env | grep -c ^SLURM_ >> {folder}/variables; echo '{said}'")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "8")
    return folder


def steps(tools: Path) -> list[list[str]]:
    lines = (tools / "calls").read_text().splitlines()
    return sorted(line.split() for line in lines if line.startswith("srun "))


def test_each_component_is_captured_by_a_step_of_its_own(tools: Path, tmp_path: Path) -> None:
    """By the first one's number and its group, beside the job's own steps, and without the batch script's variables."""
    root = snapshot_slurm.of_job("48121", tmp_path / "hang", lambda _: None)
    assert [words[1:4] for words in steps(tools)] == [
        ["--jobid=48121", f"--het-group={group}", "--overlap"] for group in (0, 1)
    ]
    assert set((tools / "variables").read_text().split()) == {"0"}
    assert json.loads((root / "incident.json").read_text())["nodes_expected"] == ["gpu-a1", "gpu-b1"]


def test_a_container_of_pyxis_is_entered(tools: Path, tmp_path: Path) -> None:
    """The running one, not a new one of that name, and with the hangscope that is inside."""
    snapshot_slurm.of_job("48121+1", tmp_path / "hang", lambda _: None, container="train")
    (words,) = steps(tools)
    assert "--container-name=train:exec" in words
    assert words[words.index("snapshot") - 1] == "hangscope"
    assert words[words.index("snapshot") :] == ["snapshot", "--slurm-node", "48121", "--dir", str(tmp_path / "hang")]


def test_where_no_rank_is_captured_the_container_is_asked_for(tools: Path, tmp_path: Path) -> None:
    """A rank inside a container of pyxis may not be seen from outside: srun's last word and the cure are said."""
    stand_in(tools, "srun", "echo 'srun: error: Unable to create step' >&2; exit 1")
    with pytest.raises(NotFoundError, match="Unable to create step") as raised:
        snapshot_slurm.of_job("48121", tmp_path / "hang", lambda _: None)
    assert "--container NAME" in str(raised.value.hint)
