"""Ranks that end in every way there is while their worker server is asked 50 times a second: no end may be changed.

    python tests/live_scripts/ends.py [--ends 2000] [--rate 50] [--companion DIR] [--outside]

Each rank is forked off a process that has imported torch, starts a companion as it would, makes a group of one, and
ends in one of `KINDS`. Its status and what it prints are compared with those of the same end without a companion.
A rank that aborts leaves a core, whose aborting thread is shown where gdb is there: `WorkerServer` in it is our doing,
a Gloo thread that frees a tensor while Python ends is torch's own. Takes half a second an end; `--companion` takes that
of another tree, `--outside` has the ranks read from outside instead, as by default: no server is in them.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from hangscope.recorder.live.companion_hook import with_companion

COMPANION = Path(__file__).parents[2] / "src/hangscope/recorder/live/companion"
QUESTIONS = (
    "hangscope_progress?groups=1",
    "hangscope_stacks",
    "hangscope_sites",
    "dump_traceback",
    "fr_trace_json",
    "wait_counter_values",
)
AT_ONCE = 4
LIVES_S = 0.25
LONGEST_S = 60.0


# ---- the ways to end -------------------------------------------------------------------------------------------------


def returns() -> None:
    pass


def leaves_the_group() -> None:
    import torch.distributed as dist

    dist.destroy_process_group()


def ends_with_7() -> None:
    sys.exit(7)


def raises() -> None:
    raise ValueError("of the script's own")


def leaves_at_once() -> None:
    os._exit(3)


def is_terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LONGEST_S)


def handles_sigterm() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LONGEST_S)


def forks() -> None:
    child = os.fork()
    if child == 0:
        os._exit(5)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def leaves_a_child() -> None:
    if os.fork() == 0:
        time.sleep(0.3)
        os._exit(0)


def has_workers() -> None:
    import torch.multiprocessing as mp

    workers = [mp.get_context("fork").Process(target=time.sleep, args=(0.05,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.exit(sum(worker.exitcode or 0 for worker in workers))


def becomes_another_program() -> None:
    os.execv(sys.executable, [sys.executable, "-ISc", "raise SystemExit(6)"])


def has_busy_threads() -> None:
    def busy() -> None:
        while True:
            sum(range(1000))

    for _ in range(2):
        threading.Thread(target=busy, daemon=True).start()


def takes_long_to_free() -> None:
    sys.kept = [{number: [number]} for number in range(300_000)]  # type: ignore[attr-defined]


class Keeper:
    """Keeps every module beyond the point where Python clears them."""

    def __init__(self) -> None:
        self.modules = list(sys.modules.values())

    def hook(self, *_: object) -> None:
        print(sys)


def keeps_the_modules() -> None:
    sys.excepthook = Keeper().hook  # type: ignore[assignment]


KINDS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        returns,
        leaves_the_group,
        ends_with_7,
        raises,
        leaves_at_once,
        is_terminated,
        handles_sigterm,
        forks,
        leaves_a_child,
        has_workers,
        becomes_another_program,
        has_busy_threads,
        takes_long_to_free,
        keeps_the_modules,
    )
}


# ---- one rank --------------------------------------------------------------------------------------------------------


class End(NamedTuple):
    status: int
    printed: str
    seconds: float


def become_a_rank(companion: ModuleType | None, sockets: Path, core_folder: Path) -> None:
    """In the forked child: everything that a rank does before it ends."""
    os.chdir(core_folder)
    if companion is not None:
        os.environ.update(HANGSCOPE_SOCKETS=str(sockets), RANK="0", WORLD_SIZE="1")
        companion.start()
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(8)
    for _ in range(3):
        dist.all_reduce(tensor)
    time.sleep(LIVES_S)


def await_end(pid: int, output: Path) -> End:
    begun = time.monotonic()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return End(os.waitstatus_to_exitcode(status), plain(output), time.monotonic() - begun)
        if time.monotonic() - begun > LONGEST_S:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return End(-999, "never ended", LONGEST_S)
        time.sleep(0.005)


def plain(output: Path) -> str:
    """Without what differs from run to run."""
    return re.sub(r"0x[0-9a-f]+|\[?rank\d+\]:?|\d+\.\d+|\b\d{3,}\b", "_", output.read_text(errors="replace"))


def aborting_thread(core: Path) -> str:
    gdb = shutil.which("gdb")
    if gdb is None or not core.exists():
        return "no core, or no gdb"
    words = [gdb, "-batch", "-ex", "bt 30", sys.executable, str(core)]
    lines = subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()
    frames = [line[:150] for line in lines if line.startswith("#")]
    return "\n    ".join(frames) or "no stack"


# ---- the questions ---------------------------------------------------------------------------------------------------


def ask_all(sockets: Path, rate: float) -> None:
    """In a process of its own, until it is ended: ask every server whose socket is there, also while it goes."""
    from hangscope.recorder.live.worker_server import ask

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a job in the background ignores SIGINT
    asked: dict[str, int] = collections.Counter()
    known: dict[str, float] = {}

    def keep_asking(path: str, number: int) -> None:
        drawn = random.Random(number)
        until = time.monotonic() + LONGEST_S
        while os.path.exists(path) and time.monotonic() < until:
            answer = ask(path, drawn.choice(QUESTIONS), 2.0 if drawn.random() < 0.8 else 0.0)
            asked["answered" if answer.ok else "not answered"] += 1
            time.sleep(drawn.uniform(0.5, 1.5) * AT_ONCE / rate)
        known.pop(path, None)

    with contextlib.suppress(KeyboardInterrupt):
        parent = os.getppid()
        while os.getppid() == parent:
            for path in map(str, sockets.glob("*.sock")):
                if path not in known:
                    known[path] = time.monotonic()
                    for number in range(AT_ONCE):
                        threading.Thread(target=keep_asking, args=(path, number), daemon=True).start()
            time.sleep(0.01)
    print(f"questions: {dict(asked)}", flush=True)


def read_all(sockets: Path, rate: float) -> None:
    """The same for ranks that are read from outside: counters, rings, groups, calls and stacks, also while they go."""
    from hangscope.sources import stacks
    from hangscope.sources.cannot_read import CannotRead
    from hangscope.sources.distributed_state import DistributedState
    from hangscope.sources.flight_recorder.outside import open_process

    def recorders(pid: int) -> None:
        with open_process(pid) as process:
            for backend in process.recorders():
                process.counters()
                process.dump(backend)

    def groups(pid: int) -> None:
        with DistributedState(pid) as state:
            state.groups()
            state.calls()
            state.gil_holder()

    read: dict[str, int] = collections.Counter()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        parent = os.getppid()
        while os.getppid() == parent:
            for each in sockets.glob("*.json"):
                for look in (recorders, groups, stacks.python_stacks):
                    try:
                        look(int(each.stem))
                        read["good"] += 1
                    except CannotRead:
                        read["refused"] += 1
            time.sleep(1 / rate)
    print(f"readings: {dict(read)}", flush=True)


# ---- all together ----------------------------------------------------------------------------------------------------


def load_companion(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_hangscope_companion", folder / "_hangscope_companion.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_hangscope_companion"] = module
    spec.loader.exec_module(module)
    return module


def main(given: Any, folder: Path) -> Callable[[], None]:
    """What is left to do: for the harness to say how it went, for a forked rank to end."""
    import torch.distributed

    assert torch.distributed.is_available()
    resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
    companion = load_companion(given.companion)
    sockets = folder / "sockets"
    sockets.mkdir(mode=0o700)
    words = [sys.executable, str(Path(__file__).resolve()), "--ask", str(sockets), "--rate", str(given.rate)]
    asker = subprocess.Popen([*words, *(["--outside"] if given.outside else [])])
    if given.outside:
        os.environ.update(with_companion({}, sockets=sockets, outside=True))
    kinds = given.kinds or list(KINDS)
    control: dict[str, set[tuple[int, str]]] = {kind: set() for kind in kinds}
    slowest: dict[str, list[float]] = {kind: [0.0, 0.0] for kind in kinds}
    bad = []
    controls = given.controls * len(kinds)
    for number in range(controls + given.ends):
        kind = kinds[number % len(kinds)]
        is_control = number < controls
        place = folder / str(number)
        place.mkdir()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            with (place / "printed").open("wb") as printed:
                os.dup2(printed.fileno(), 1)
                os.dup2(printed.fileno(), 2)
            become_a_rank(None if is_control else companion, sockets, place)
            return KINDS[kind]
        end = await_end(pid, place / "printed")
        slowest[kind][not is_control] = max(slowest[kind][not is_control], end.seconds)
        if is_control:
            control[kind].add((end.status, end.printed))
        elif (end.status, end.printed) not in control[kind]:
            bad.append(number)
            core = next((core for core in place.glob("core*")), place / "core")
            print(f"{number} {kind}: {end}, not {control[kind]}\n    {aborting_thread(core)}", flush=True)
        shutil.rmtree(place)
        for left in sockets.glob(f"{pid}.*"):
            left.unlink()
    asker.terminate()
    asker.wait()

    def report() -> None:
        shutil.rmtree(folder)
        for kind, (without, with_us) in slowest.items():
            print(f"{kind}: slowest {with_us:.2f} s, without a companion {without:.2f} s")
        print(f"{len(bad)} of {given.ends} ends changed")
        sys.exit(bool(bad))

    return report


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ends", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=50.0, help="questions a second")
    parser.add_argument("--controls", type=int, default=3, help="ends of each kind without a companion")
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS))
    parser.add_argument("--companion", type=Path, default=COMPANION)
    parser.add_argument("--outside", action="store_true")
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    asked_for = options()
    if asked_for.ask is not None:
        (read_all if asked_for.outside else ask_all)(asked_for.ask, asked_for.rate)
    else:
        made = Path(tempfile.mkdtemp())
        what_is_left = main(asked_for, made)
        what_is_left()
