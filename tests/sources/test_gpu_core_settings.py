"""The CUDA driver's variables for cores of the GPUs: what is set, what stays, and what the doctor says of them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from hangscope.recorder.doctor.examine_node import gpu_core
from hangscope.recorder.doctor.examined_node import ExaminedNode
from hangscope.recorder.launch import gpu_core_folder, rank_sockets
from hangscope.recorder.setup.setting_problems import Setting
from hangscope.sources.gpu_core import settings

HERE = Path("/scratch/x")


def test_what_the_user_set_stays() -> None:
    """Each variable is set where the user did not, and never over the user's own."""
    added, why = settings.variables({settings.FILE: "/mine/core.%p"}, HERE)
    assert not why
    assert set(added) == {settings.ENABLE, settings.PIPE, settings.FLAGS}
    assert not settings.why_not({**added, settings.FILE: "/mine/core.%p"})


@pytest.mark.parametrize("own", [{settings.ON_EXCEPTION: "1"}, {settings.ENABLE: "0"}])
def test_cores_of_the_users_own_are_left_alone(own: dict[str, str]) -> None:
    """Who has the driver write cores at exceptions, or has switched this off, gets nothing set and is told."""
    added, why = settings.variables(own, HERE)
    assert (added, bool(why)) == ({}, True)


def test_one_place_decides_whether_they_are_set() -> None:
    """What the user says counts; else `--on-hang kill` asks for them only where that is the default."""
    assert settings.wanted(True, kill=False)
    assert not settings.wanted(False, kill=True)
    assert settings.wanted(None, kill=True) is settings.WITH_KILL
    assert not settings.wanted(None, kill=False)


def test_names_are_expanded_as_the_driver_does() -> None:
    """%p, %h, %t and %% in a name; without names, the driver's own in the process's working directory."""
    assert settings.pipe_of({settings.PIPE: "p.%h.%p.%%"}, 7, "n1", HERE) == HERE / "p.n1.7.%"
    assert settings.pipe_of({}, 7, "n1", HERE) == HERE / "corepipe.cuda.n1.7"
    assert settings.core_of({settings.FILE: "/c/%p"}, 7, "n1", HERE) == (Path("/c/7"), False)
    assert settings.core_of({}, 7, "n1", HERE) == (HERE / "core_*_n1_7.nvcudmp", True)


def test_the_folder_is_private_and_goes_with_the_run(tmp_path: Path) -> None:
    """Pipes and cores lie in a directory for the user alone, which is gone after the run, whatever is in it."""
    with contextlib.ExitStack() as kept:
        added = gpu_core_folder.variables({}, {"TMPDIR": str(tmp_path)}, kept, print)
        folder = Path(added[settings.FILE]).parent
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "1.core").write_bytes(b"left")
    assert not folder.exists()


def test_what_a_killed_run_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    """A directory whose run is gone, and whose processes are, goes when another run starts; a living one's stays."""
    dead = rank_sockets.make_in(str(tmp_path))
    (dead / "owner").write_text("999999999")
    (dead / "1.core").write_bytes(bytes(100))
    living = rank_sockets.make_in(str(tmp_path))
    (living / "owner").write_text("999999999")
    (living / f"{os.getpid()}.pipe").touch()
    rank_sockets.make_in(str(tmp_path))
    assert not dead.exists()
    assert living.exists()


def test_a_place_that_cannot_be_made_keeps_no_job_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a directory the job starts without them, with a warning."""

    def refuse(base: str) -> Path:
        raise OSError(28, "No space left on device", base)

    monkeypatch.setattr(rank_sockets, "make_in", refuse)
    said: list[str] = []
    with contextlib.ExitStack() as kept:
        assert gpu_core_folder.variables({}, {"TMPDIR": str(tmp_path)}, kept, said.append) == {}
    assert "No space left" in said[0]


@pytest.mark.parametrize(
    ("environ", "severity", "words"),
    [
        ({}, "note", "run --gpu-core"),
        ({settings.ENABLE: "1"}, "note", "hold the GPU's memory"),
        ({settings.ON_EXCEPTION: "1"}, "note", "sets nothing then"),
        (settings.variables({}, HERE)[0], "ok", "can be asked"),
    ],
)
def test_the_doctor_says_whether_gpus_can_be_asked(
    environ: dict[str, str], severity: str, words: str, tmp_path: Path
) -> None:
    """With a GPU here: whether its kernels could be named, and what to do where not."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    node = ExaminedNode(path=str(tmp_path))
    [found] = gpu_core(node, Setting(environ, None, frozenset(("nccl",))))
    assert found.severity == severity
    assert words in " ".join((found.what, found.why, found.cure))
