"""What is done about a hang, with real jobs: it is ended and told about; a pause is passed over; a full disk too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from .conftest import Started, Starter

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PAUSING = Path(__file__).with_name("pausing.py")
TRAIN = Path(__file__).with_name("train.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


class Hook:
    """A real address for alerts, in a file."""

    def __init__(self, folder: Path) -> None:
        self.got: list[dict[str, Any]] = []
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.file = folder / "hook"
        self.file.write_text(f"http://127.0.0.1:{self.server.server_port}/\n")


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[Hook]:
    made = Hook(tmp_path)
    yield made
    made.server.shutdown()
    made.server.server_close()


def result(steps: int) -> str:
    return f"result {2 * sum(range(steps))}\n"


def test_a_hung_job_is_ended_and_told_about_and_the_launcher_restarts_it(
    start: Starter, tmp_path: Path, hook: Hook
) -> None:
    """The evidence and the command come first; the second start runs to its end, and its status is what `run` gives.

    A webhook and the W&B run of rank 0 hear of it once, with the line of the culprit."""
    out = tmp_path / "received"
    command = f'cat > {out}; echo "$HANGSCOPE_OUTCOME $HANGSCOPE_CULPRITS $HANGSCOPE_VERDICT" >> {out}.env; exit 7'
    options = ("--stall-after", "6", "--on-hang", "kill", "--on-hang", command, "--grace", "5", "--node", "n")
    options += ("--kill-after", "8s")
    options += ("--metrics", str(tmp_path / "hangscope.prom"))
    options += ("--on-hang", f"webhook:{hook.file}", "--on-hang", "wandb")
    job = (*TORCHRUN, "--max-restarts=1", PAUSING, "--hang-at", "20", "--steps", "60", "--store", tmp_path / "store")
    started = start.run(tmp_path / "i", *job, "--wandb", tmp_path / "wandb", options=options)
    started.until(out.exists, 60, "command")
    metrics = started.until(lambda: counted(tmp_path / "hangscope.prom"), 30, "verdict in the metrics")
    assert started.wait(90) == 0
    assert started.out == result(60)
    verdict = json.loads(out.read_text())
    assert (verdict["outcome"], [each["rank"] for each in verdict["culprits"]]) == ("hang", [1])
    assert Path(f"{out}.env").read_text() == f"hang 1 {tmp_path / 'i' / 'verdict.json'}\n"
    assert "ended with status 7" in started.err
    (alert,) = hook.got
    assert [(each["rank"], each["where"]["function"]) for each in alert["culprits"]] == [(1, "hang")]
    (title,) = [json.loads(line)["title"] for line in (tmp_path / "wandb").read_text().splitlines()]
    assert title.startswith("HANG: rank 1 is in hang (pausing.py:")
    assert "--on-hang webhook" not in started.err
    assert "--on-hang wandb" not in started.err
    assert "hangscope: --on-hang kill: ranks 0, 1 get SIGTERM, and SIGKILL after 5 s" in started.err
    assert 'hangscope_stalls_total{job="' in metrics
    assert not (tmp_path / "hangscope.prom").exists()
    own = [line for line in started.err.splitlines() if "rank 1" in line and "rank_1" not in line]
    assert own
    assert all(line.startswith("hangscope: ") for line in own if "never launched" in line)


@pytest.mark.parametrize("how", ["writes", "computes", "reads"])
def test_a_rank_that_works_while_the_others_wait_is_not_ended(start: Starter, tmp_path: Path, how: str) -> None:
    """A save, an evaluation or a slow loader of any length is no hang: the job is let go on, to its own end."""
    words = ("--work-at", "20", "--work", how, "--seconds", "20", "--steps", "40")
    options = ("--stall-after", "4", "--on-hang", "kill", "--kill-after", "9", "--grace", "1")
    started = start.run(tmp_path / "i", *TORCHRUN, PAUSING, *words, options=options)
    assert started.wait(90) == 0
    assert started.out == result(40)
    assert "--on-hang kill: rank 0 is still working: the job will not be ended in the meantime" in started.err
    assert "SIGTERM" not in started.err


def counted(file: Path) -> str:
    text = file.read_text() if file.exists() else ""
    return text if re.search(r'hangscope_verdicts_total\{.*outcome="hang",kind="absent"\} 1\n', text) else ""


@pytest.fixture(scope="module")
def pausing(start: Starter, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Started]]:
    """Two jobs at once, which mostly wait: in an operation, and for a key in the store."""
    folder = tmp_path_factory.mktemp("pausing")
    words = {
        "operation": ("--pause-at", "20", "120", "--announce-at", "160", "--steps", "180"),
        "key": ("--by-key", "--pause-at", "20", "120", "--steps", "130"),
    }
    return {
        name: (
            folder / name,
            start.run(folder / name, *TORCHRUN, PAUSING, "--seconds", "7", *more, options=("--stall-after", "3")),
        )
        for name, more in words.items()
    }


def own_lines(started: Started) -> list[str]:
    return [line for line in started.err.splitlines() if line.startswith("hangscope: ")]


def test_a_pause_is_called_one_and_not_reported_in_full_again(pausing: dict[str, tuple[Path, Started]]) -> None:
    """Rank 0 evaluates: a HANG while nobody knows better, corrected when it goes on; then a line; announced, none."""
    incident, started = pausing["operation"]
    assert started.wait(120) == 0
    assert started.out == result(180)
    verdict = json.loads((incident / "verdict.json").read_text())
    assert (verdict["outcome"], verdict["hang"], verdict["kind"]) == ("pause", False, "absent")
    assert [each["rank"] for each in verdict["culprits"]] == [0]
    assert 6 < verdict["waiting_s"] < 15
    text = (incident / "verdict.txt").read_text()
    assert re.match(r"PAUSE  rank 0 held the job up for [\d.]+s in evaluate\s", text)
    own = own_lines(started)
    assert sum("PAUSE, not a hang" in line for line in own) == 1
    assert sum("saving what every rank is doing" in line for line in own) == 1
    assert sum("the job resumed by itself here before" in line for line in own) == 1
    assert not (incident / "hang-2").exists()


def test_a_pause_that_no_recorder_counts_is_reported_in_full_once(pausing: dict[str, tuple[Path, Started]]) -> None:
    """The others wait for a key in the store: the second time costs a line, as with an operation."""
    incident, started = pausing["key"]
    assert started.wait(120) == 0
    assert started.out == result(130)
    own = own_lines(started)
    [saved] = [line for line in own if "saving what every rank is doing" in line]
    assert "rank 1 waits in store.wait (pausing.py:" in saved
    [again] = [line for line in own if "the job resumed by itself here before" in line]
    assert "rank 1 waits in store.wait (pausing.py:" in again
    assert sum("PAUSE, not a hang" in line for line in own) == 1
    assert not (incident / "hang-2").exists()


def test_no_more_incidents_are_saved_than_asked_for(start: Starter, tmp_path: Path) -> None:
    """A launcher's loop fails twice: the first failure is kept, the second costs one line."""
    job = f"{sys.executable} {TRAIN} --spawn 2 --store file://{tmp_path}/store$i --fault raise --at 20"
    loop = ("sh", "-c", f"for i in 1 2; do {job}; done; exit 9")
    started = start.run(tmp_path / "i", *loop, options=("--max-incidents", "1", "--no-diagnose"))
    assert started.wait(120) == 9
    assert (tmp_path / "i" / "incident.json").exists()
    assert not (tmp_path / "i/hang-2").exists()
    assert started.err.count("hangscope: another incident, but --max-incidents (1) are already saved") == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True)
    if os.geteuid() != 0 or mounted.returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_disk_that_is_full_at_the_start_is_not_used(start: Starter, tmp_path: Path, small_disk: Path) -> None:
    """The node's own disk is, and the command does not notice."""
    fill(small_disk / "filler", 0)
    command = (sys.executable, "-c", "print('runs')")
    started = start.run(small_disk / "i", *command, options=("--keep",), TMPDIR=str(tmp_path))
    assert started.wait(30) == 0
    assert started.out == "runs\n"
    assert re.search(r"hangscope: warning: .*No space left on device; what this node saves goes to ", started.err)
    assert list(tmp_path.glob("hangscope-*/incidents/*/0/nodes/*/status.json"))


def test_a_disk_that_fills_up_during_the_capture_costs_no_verdict(
    start: Starter, tmp_path: Path, small_disk: Path
) -> None:
    """What does not fit goes to the node's own disk, with what was saved before it."""
    job = (*TORCHRUN, PAUSING, "--hang-at", "30", "--steps", "40")
    options = ("--stall-after", "2", "--on-hang", "kill", "--kill-after", "0", "--grace", "1", "--job", "j")
    started = start.run(small_disk / "i", *job, options=options, TMPDIR=str(tmp_path))
    started.until((small_disk / "i" / "run.json").exists, 30, "run")
    fill(small_disk / "filler", 40_000)
    assert started.wait(90) == 75
    assert re.search(r"hangscope: warning: .*No space left on device; what this node saves goes to ", started.err)
    [verdict] = tmp_path.glob("hangscope-*/**/verdict.json")
    value = json.loads(verdict.read_text())
    assert (value["outcome"], [each["rank"] for each in value["culprits"]]) == ("hang", [1])
    assert value["completeness"]["dumps"] == value["completeness"]["stacks"] == 2
    assert "hangscope: HANG   rank 1" in started.err


def fill(file: Path, left: int) -> None:
    """Write until nothing more goes in, then give `left` bytes back."""
    with file.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"x" * 4096)
        except OSError:
            stream.truncate(max(0, stream.tell() - left))
