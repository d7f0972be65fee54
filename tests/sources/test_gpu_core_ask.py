"""GPU cores of a node's ranks, taken from real processes that play the driver's part."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hangscope.incident.node_dir import NodeDir
from hangscope.processes import hold_launcher, linux_process
from hangscope.recorder.live.find_ranks import RankProcess
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.sources.gpu_core import ask as gpu_cores
from hangscope.sources.gpu_core import settings as gpu_core_settings
from kits.gpu_cores import ALL_REDUCE, SPIN, Kernel, core

FAKE = Path(__file__).parents[1] / "kits" / "fake_cuda.py"


class Node:
    """A node's part of an incident, and processes that play ranks with a CUDA context."""

    def __init__(self, tmp_path: Path) -> None:
        self.cores = tmp_path / "cores"
        self.cores.mkdir(mode=0o700)
        self.files = tmp_path / "files"
        self.files.mkdir()
        self.node_dir = NodeDir(tmp_path / "incident", tmp_path / "incident" / "nodes" / "here")
        self.ranks: list[WatchedRank] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def add(self, mode: str, kernels: list[Kernel], **environ: str) -> None:
        number = len(self.ranks)
        file = self.files / f"{number}.core"
        file.write_bytes(core(kernels))
        added, _ = gpu_core_settings.variables({}, self.cores)
        process = subprocess.Popen(
            [sys.executable, str(FAKE), mode, str(file)],
            env={**os.environ, **added, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        self.ranks.append(WatchedRank.of(RankProcess(process.pid, number)))

    def take(self, launcher: int | None = None) -> gpu_cores.CoresTaken | None:
        return gpu_cores.take(self.node_dir, self.ranks, launcher)

    def kernels(self, rank: int) -> list[str]:
        table = json.loads((self.node_dir.directory / "gpu" / f"rank_{rank}.json").read_text())
        return [grid["kernel"] for grid in table["grids"]]

    def why(self, rank: int) -> str:
        return next((gap["why"] for gap in self.node_dir.gaps if gap["rank"] == rank), "")

    def left(self) -> list[str]:
        """What lies where the cores go, besides the pipes."""
        return sorted(path.name for path in self.cores.iterdir() if path.suffix != ".pipe")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(gpu_cores, "CORES_S", 4.0)
    monkeypatch.setattr(gpu_cores, "CUT_S", 0.8)
    monkeypatch.setattr(gpu_cores, "ROOM_BYTES", 1 << 20)
    made = Node(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def test_all_ranks_are_asked_at_once_and_their_kernels_kept(node: Node) -> None:
    """Each rank's kernels are in its table, the core is gone, and who runs nothing has a table that says so."""
    node.add("whole", [Kernel(ALL_REDUCE, 2)])
    node.add("fails", [Kernel(ALL_REDUCE, 2)])
    node.add("slow", [Kernel(SPIN)])
    node.add("whole", [])
    taken = node.take()
    assert taken is not None
    assert taken.ranks == (0, 1, 2, 3)
    assert [node.kernels(rank) for rank in range(4)] == [[ALL_REDUCE], [ALL_REDUCE], [SPIN], []]
    assert node.left() == []
    assert node.node_dir.gaps == []


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("never", "no core came within 4 s"),
        ("garbage", "no GPU core"),
        ("cut", "cut off"),
        ("dies", "cut off"),
        ("huge", "more than 2048 MiB"),
        ("link", "a link, not"),
        ("none", "the process has no CUDA context"),
    ],
)
def test_a_core_that_does_not_come_is_a_gap_with_its_reason(node: Node, mode: str, why: str) -> None:
    """Whatever comes in the place of a core costs that rank's answer alone, and nothing of it stays on the disk."""
    node.add(mode, [Kernel(SPIN)])
    node.add("whole", [Kernel(ALL_REDUCE)])
    taken = node.take()
    assert taken is not None
    assert taken.ranks == (1,)
    assert why in node.why(0)
    assert node.left() == []
    assert Path("/etc/passwd").exists()


def test_how_far_the_files_were_is_kept(node: Node) -> None:
    """What ranks write after they were asked is our doing: how large logs and dumps were before is in the answer."""
    node.node_dir.write("logs/rank_0.log", b"step 1\n")
    node.node_dir.write("dumps/nccl_rank_0.pickle", b"12345")
    node.add("whole", [])
    taken = node.take()
    assert taken is not None
    assert taken.to_json()["files"] == {"logs/rank_0.log": 7, "dumps/nccl_rank_0.pickle": 5}


def test_without_the_variables_nobody_is_asked(node: Node) -> None:
    """A rank that was started without them is told so, and its process is left alone."""
    node.add("whole", [Kernel(SPIN)], CUDA_ENABLE_USER_TRIGGERED_COREDUMP="0")
    node.add("whole", [Kernel(SPIN)], CUDA_COREDUMP_GENERATION_FLAGS="skip_abort")
    assert not gpu_cores.can_be_asked(node.ranks)
    assert node.take() is None
    assert "started without CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1" in node.why(0)
    assert "hold the GPU's memory" in node.why(1)
    assert not list(node.cores.glob("*.core"))


def test_a_full_disk_is_noticed_before_anybody_is_asked(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for all cores none is asked for: half a core tells nothing, and the job's contexts stay whole."""
    monkeypatch.setattr(gpu_cores, "ROOM_BYTES", 1 << 60)
    node.add("whole", [Kernel(SPIN)])
    assert node.take() is None
    assert "MiB left" in node.why(0)
    assert not list(node.cores.glob("*.core"))


def test_what_is_not_the_drivers_pipe_is_not_written_to(node: Node, tmp_path: Path) -> None:
    """A file, or a link to a pipe elsewhere, in the place of the pipe gets no byte."""
    other = tmp_path / "other"
    os.mkfifo(other)
    elsewhere = os.open(other, os.O_RDWR | os.O_NONBLOCK)
    for replaced in ("file", "link"):
        node.add("whole", [])
        pipe = node.cores / f"{node.processes[-1].pid}.pipe"
        pipe.unlink()
        if replaced == "file":
            pipe.write_bytes(b"")
        else:
            pipe.symlink_to(other)
    assert node.take() is None
    assert "a file, not a pipe" in node.why(0)
    assert "a link" in node.why(1)
    with pytest.raises(BlockingIOError):
        os.read(elsewhere, 1)
    os.close(elsewhere)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's pipe")
def test_another_users_pipe_is_refused(node: Node) -> None:
    """A pipe that another user of the node put in the place gets no byte."""
    node.add("whole", [])
    os.chown(node.cores / f"{node.processes[0].pid}.pipe", 65534, 65534)
    assert node.take() is None
    assert "belongs to another user" in node.why(0)


def test_a_name_with_the_time_in_it_is_found(node: Node) -> None:
    """The user's own pattern, with the time in it, leads to the core; cores that were there before stay."""
    (node.cores / "core_1_old").write_bytes(b"theirs")
    node.add("whole", [Kernel(SPIN)], CUDA_COREDUMP_FILE=f"{node.cores}/core_%t_%p")
    taken = node.take()
    assert taken is not None
    assert node.kernels(0) == [SPIN]
    assert node.left() == ["core_1_old"]


# ---- the launcher ----------------------------------------------------------------------------------------------------

LAUNCHER = """
import os, subprocess, sys
rank = subprocess.Popen([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE)
print(rank.pid, rank.stdout.readline(), flush=True)
rank.wait()
print("a rank ended", flush=True)
"""


def state(pid: int) -> str:
    found = linux_process.stat(pid)
    return found.state if found is not None else "gone"


def test_the_launcher_is_held_and_let_go(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a rank is asked its launcher is stopped, so that it does not see the rank fail; afterwards it runs."""
    file = node.files / "core"
    file.write_bytes(core([Kernel(SPIN)]))
    added, _ = gpu_core_settings.variables({}, node.cores)
    command = [sys.executable, "-c", LAUNCHER, str(FAKE), "fails", str(file)]
    launcher = subprocess.Popen(command, env={**os.environ, **added}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    node.processes.append(launcher)
    assert launcher.stdout is not None
    rank = int(launcher.stdout.readline().split()[0])
    node.ranks.append(WatchedRank.of(RankProcess(rank, 0)))
    seen: list[str] = []
    collect = gpu_cores._Work._collect

    def looking(work: gpu_cores._Work, asked: list[gpu_cores._Asked]) -> None:
        seen.append(state(launcher.pid))
        collect(work, asked)
        seen.append(state(launcher.pid))

    monkeypatch.setattr(gpu_cores._Work, "_collect", looking)
    taken = node.take(launcher.pid)
    assert taken is not None
    assert taken.ranks == (0,)
    assert seen == ["T", "T"]
    assert launcher.stdout.readline() == b"a rank ended\n"


HOLDER = """
import sys, time
from hangscope.processes import hold_launcher, linux_process
pid = int(sys.argv[1])
ticks = linux_process.stat(pid).started_ticks
with hold_launcher.held([hold_launcher.Launcher(pid, ticks)], float(sys.argv[2])) as held:
    print(held, linux_process.stat(pid).state, flush=True)
    time.sleep(60)
"""


def await_state(pid: int, wanted: str, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if (state(pid) == "T") == (wanted == "T"):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(("seconds", "killed"), [(60.0, True), (1.0, False)])
def test_a_launcher_is_let_go_whatever_becomes_of_us(seconds: float, killed: bool) -> None:
    """Who holds it may be killed by SIGKILL, or never come back: the launcher goes on."""
    sleeper = subprocess.Popen(["sleep", "60"])
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(sleeper.pid), str(seconds)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True T\n"
        if killed:
            os.kill(holder.pid, signal.SIGKILL)
        assert await_state(sleeper.pid, "S", 10)
    finally:
        for process in (holder, sleeper):
            process.kill()
            process.wait()


def test_whom_to_hold() -> None:
    """What is above the ranks up to the command is held: not the ranks, not what is stopped, not what we run below."""
    ours = os.getpid()
    child = subprocess.Popen(["sh", "-c", "sleep 60; true"])
    try:
        until = time.monotonic() + 5
        while not (below := linux_process.children(child.pid)) and time.monotonic() < until:
            time.sleep(0.02)
        assert [each.pid for each in hold_launcher.launchers(below, child.pid)] == [child.pid]
        assert [each.pid for each in hold_launcher.launchers(below, ours)] == [child.pid]
        assert hold_launcher.launchers([child.pid], child.pid) == []
        assert hold_launcher.launchers(below, 999_999_999) == []
        os.kill(child.pid, signal.SIGSTOP)
        assert await_state(child.pid, "T", 5)
        assert hold_launcher.launchers(below, child.pid) == []
    finally:
        for pid in below:
            os.kill(pid, signal.SIGKILL)
        child.kill()
        child.wait()
