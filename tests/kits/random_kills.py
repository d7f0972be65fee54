"""Random kills of everything that is hangscope's, over training runs: none of them may end or change a result.

    python tests/kits/random_kills.py --kills 1000   minutes to an hour; a line a run, and what was done at the end
    python tests/kits/random_kills.py --kills 50     as the tests do
    python tests/kits/random_kills.py --files        full, read-only and frozen file systems (as root)

Each run is a real job under torchrun with two ranks, which prints at every step and writes a hash of its weights at the
end. While it trains: SIGKILL of `run` (and with it the agent), of the relay, of its standby; the companion's socket
gets half a question, garbage, a crowd that hangs up, or is taken away. The result must be the one without hangscope.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
STEADY = Path(__file__).parents[1] / "recorder" / "jobs" / "steady.py"
MARK = "HANGSCOPE_TEST"
RANKS = 2
RUN_S = 180.0


class Training:
    """One job, with or without `hangscope run` in front of it."""

    def __init__(self, folder: Path, steps: int, *options: str, watched: bool = True) -> None:
        self.mark = uuid.uuid4().hex
        self.results = folder / "results"
        self.results.mkdir(parents=True)
        self.status = folder / "status"
        launch = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node={RANKS}"
        command = f"{launch} {STEADY} {self.results} --steps {steps}; echo $? > {self.status}"
        head = [sys.executable, "-m", "hangscope", "run", *options, "--"] if watched else []
        environ = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", MARK: self.mark}
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [*head, "sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environ,
                start_new_session=True,
            )
        self.folder = folder

    def processes(self, part: bytes) -> list[int]:
        """Processes of this run whose command line has `part`."""
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and f"{MARK}={self.mark}".encode() in Path(f"/proc/{name}/environ").read_bytes():
                    words = Path(f"/proc/{name}/cmdline").read_bytes()
                    if part in words:
                        found.append(int(name))
        return found

    def sockets(self) -> list[Path]:
        for pid in self.processes(b"steady.py"):
            with contextlib.suppress(OSError):
                for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    if pair.startswith(b"HANGSCOPE_SOCKETS="):
                        return sorted(Path(os.fsdecode(pair.partition(b"=")[2])).glob("*.sock"))
        return []

    def steps(self) -> int:
        """How far the job is by its own output; -1 before the first step."""
        with contextlib.suppress(OSError):
            return (self.folder / "out").read_bytes().count(b"rank 0 step ") - 1
        return -1

    def done(self) -> bool:
        return self.status.exists() and bool(self.status.read_text().strip())

    def result(self) -> tuple[str, ...]:
        """The launcher's status and what each rank computed."""
        ranks = [self.results / f"rank_{rank}" for rank in range(RANKS)]
        return (self.status.read_text().strip(), *(p.read_text() if p.exists() else "nothing" for p in ranks))

    def wait(self) -> None:
        until = time.monotonic() + RUN_S
        while not self.done() and time.monotonic() < until:
            time.sleep(0.1)
        if not self.done():
            self.status.write_text("did not end")

    def clear(self) -> None:
        for _ in range(100):
            left = self.processes(b"")
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.05)
        self.process.wait()


def without_hangscope(folder: Path, steps: int) -> tuple[str, ...]:
    """What a run gives that nobody watches."""
    plain = Training(folder, steps, watched=False)
    plain.wait()
    plain.clear()
    found = plain.result()
    assert found[0] == "0", f"the job itself does not run: {found}"
    return found


# ---- what is done to it ----------------------------------------------------------------------------------------------


def kill_relay(training: Training, chance: random.Random) -> bool:
    """A relay or its standby: both run the same script."""
    pids = training.processes(b"relay.py")
    if pids:
        with contextlib.suppress(OSError):
            os.kill(chance.choice(pids), signal.SIGKILL)
    return bool(pids)


def kill_run(training: Training, chance: random.Random) -> bool:
    """The agent is a thread of it."""
    if training.process.poll() is not None:
        return False
    training.process.kill()
    training.process.wait()
    return True


def trouble_socket(training: Training, chance: random.Random) -> bool:
    """Half a question, garbage, a crowd, or the socket's file taken away."""
    paths = training.sockets()
    if not paths:
        return False
    path = chance.choice(paths)
    how = chance.choice(("half", "garbage", "crowd", "crowd", "away"))
    if how == "away":
        path.unlink(missing_ok=True)
        return True
    questions = {"half": b"GET /handler/dump_tra", "garbage": chance.randbytes(4096), "crowd": b""}
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        for _ in range(30 if how == "crowd" else 1):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(1)
            client.connect(str(path))
            client.send(questions[how] or b"POST /handler/ping HTTP/1.1\r\n\r\n")
    return True


KILLS = {"relay": kill_relay, "run": kill_run, "socket": trouble_socket}


def torment(training: Training, chance: random.Random, most: int, counts: Counter[str]) -> int:
    """Do harm, now and then, until the job has ended or enough was done. Returns how often."""
    given = 0
    while training.steps() < 0 and not training.done() and given == 0:
        if training.process.poll() is not None and not training.processes(b"steady.py"):
            break
        time.sleep(0.1)
    while given < most and not training.done():
        time.sleep(chance.uniform(0.02, 0.3))
        kind = chance.choices(("relay", "socket", "run"), (10, 8, 1))[0]
        if not training.done() and KILLS[kind](training, chance):
            counts[kind] += 1
            given += 1
    return given


# ---- file systems ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(place: Path, *words: str | Path) -> Iterator[None]:
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", *words, place], check=True, capture_output=True, timeout=60)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True, timeout=60)


def full(training: Training, place: Path) -> None:
    with (place / "filler").open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"x" * 65536)


def read_only(training: Training, place: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", place], capture_output=True, timeout=60)


def frozen(training: Training, place: Path) -> None:
    """Every write hangs, in a way that no signal ends, for longer than the job takes."""
    subprocess.run(["fsfreeze", "-f", place], check=True, timeout=60)


HARMS = {"full": full, "read-only": read_only, "frozen": frozen}


def on_file_system(scratch: Path, name: str, steps: int) -> tuple[str, ...]:
    """The result of a run on a directory that fills up, becomes read-only or freezes in the middle of it."""
    place, image = scratch / f"disk-{name}", scratch / f"image-{name}"
    words: tuple[str | Path, ...] = ("-t", "tmpfs", "-o", "size=4m", "tmpfs")
    if name == "frozen":
        subprocess.run(["truncate", "-s", "16m", image], check=True)
        subprocess.run(["mkfs.ext4", "-q", image], check=True, timeout=60)
        words = ("-o", "loop", image)
    with mounted(place, *words):
        training = Training(scratch / name, steps, "--dir", str(place / "i"), "--stall-after", "3")
        try:
            while training.steps() < 5 and not training.done():
                time.sleep(0.05)
            HARMS[name](training, place)
            training.wait()
        finally:
            if name == "frozen":
                subprocess.run(["fsfreeze", "-u", place], timeout=60)
            training.clear()
    return training.result()


# ---- the whole -------------------------------------------------------------------------------------------------------


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--per-run", type=int, default=50, help="so many at most in one training run")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--files", action="store_true", help="also on broken file systems")
    given = parser.parse_args(words)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    counts: Counter[str] = Counter()
    scratch = Path(tempfile.mkdtemp(prefix="kills."))
    problems: list[str] = []
    left, number = given.kills, 0
    with ThreadPoolExecutor() as beside:  # the runs mostly wait for their steps
        plain = beside.submit(without_hangscope, scratch / "plain", given.steps)
        harmed = {name: beside.submit(on_file_system, scratch, name, given.steps) for name in HARMS if given.files}
        while left > 0:
            number += 1
            folder = scratch / f"run-{number}"
            training = Training(folder, given.steps, "--dir", str(folder / "incident"), "--stall-after", "5")
            done = torment(training, chance, min(left, given.per_run), counts)
            training.wait()
            training.clear()
            left -= done
            well = training.result() == plain.result()
            print(f"run {number}: {done} kills, {'well' if well else 'HARMED'}; {max(0, left)} left", flush=True)
            if not well:
                problems.append(f"run {number}: {training.result()} instead of {plain.result()}; see {folder}")
            else:
                shutil.rmtree(folder)
        for name, run in harmed.items():
            well = run.result() == plain.result()
            print(f"{name}: {'well' if well else 'harmed'}", flush=True)
            problems += [] if well else [f"{name}: {run.result()} instead of {plain.result()}"]
    print(f"{sum(counts.values())} kills ({dict(counts)}) over {number} runs: {len(problems)} harmed")
    print("\n".join(problems))
    if not problems:
        shutil.rmtree(scratch)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
