"""Real processes for the recorder's tests. Whatever a test starts, and whatever that starts, is ended with the test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[3] / "src"
MARK = "HANGSCOPE_TEST"


def pytest_itemcollected(item: pytest.Item) -> None:
    """With `--dist=loadgroup`, tests that share jobs stay in the process that started them, others spread.

    A file may name a group of its own, which it shares with others.
    """
    assert isinstance(item, pytest.Function)
    item.add_marker("jobs")
    if item.get_closest_marker("xdist_group"):
        return
    for name, (*_, fixture) in item._fixtureinfo.name2fixturedefs.items():
        if fixture.scope == "module" and fixture.baseid == item.nodeid.partition("::")[0]:
            item.add_marker(pytest.mark.xdist_group(f"{fixture.baseid}::{name}"))
            break


def hear_signals() -> None:
    """In a child, before exec: the signals that `nohup` and a script's `&` have ignored count again."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def processes_with(mark: str) -> list[int]:
    """Every process that was started, directly or not, with this mark in its environment."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
    return found


@dataclass
class Started:
    """A command under test, its output in files, its processes marked."""

    process: subprocess.Popen[bytes]
    mark: str
    folder: Path

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text(errors="replace")

    def wait(self, seconds: float) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds} s; stderr:\n{self.err[-3000:]}")

    def until(self, condition: Any, seconds: float, what: str) -> Any:
        """Wait for something to become true; what it became."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            time.sleep(0.1)
        pytest.fail(f"no {what} within {seconds} s; stderr:\n{self.err[-3000:]}")

    def processes(self) -> list[int]:
        return processes_with(self.mark)


class Starter:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Started] = []

    def __call__(self, *words: str | Path, **environ: str) -> Started:
        """Start a command of its own session, with PYTHONPATH set so that hangscope can be imported.

        It hears every signal, however the tests themselves were started.
        """
        mark = uuid.uuid4().hex
        folder = self._folder / mark
        folder.mkdir(parents=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HANGSCOPE", "TORCH"))}
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**inherited, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **environ, MARK: mark},
                start_new_session=True,
                preexec_fn=hear_signals,
            )
        self._started.append(Started(process, mark, folder))
        return self._started[-1]

    def run(self, incident: Path, *words: str | Path, options: tuple[str, ...] = (), **environ: str) -> Started:
        """`hangscope run` in front of a command."""
        head = (sys.executable, "-m", "hangscope", "run", "--dir", incident, *options, "--")
        return self(*head, *words, **environ)

    def end(self) -> None:
        for started in self._started:
            for _ in range(50):
                left = processes_with(started.mark)
                if not left:
                    break
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.05)
            started.process.wait()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    starter = Starter(tmp_path_factory.mktemp("started"))
    yield starter
    starter.end()


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def node_file(incident: Path) -> dict[str, Any]:
    """The only node.json of an incident."""
    [path] = incident.glob("nodes/*/node.json")
    return json.loads(path.read_text())


def rank_row(incident: Path, rank: int) -> dict[str, Any]:
    [row] = [row for row in node_file(incident)["ranks"] if row["rank"] == rank]
    return row
