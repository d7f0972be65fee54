"""Real NCCL jobs whose links are stopped one after another, with a black box in every rank.

    python3 tests/record/record_links.py --out FOLDER [--only ring4,tree8] [--seconds 420]

Needs one GPU, root, a C compiler and a PyTorch with NCCL; installs nothing. Each job plays many trials: an operation
runs once unharmed, which shows the links that it uses; then one of them stops (stop_sends.c), or a rank stays away, is
stopped, or has a kernel that does not end. After some seconds the evidence is taken as a case, the link is let go, and
the job plays the next. At the end one line a trial: what was injected, and what the black boxes say.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path[:0] = [str(REPOSITORY / "src"), str(HERE)]

from record_neutral import neutralise, pack  # noqa: E402

from hangscope.model import BlackBox, Source  # noqa: E402
from hangscope.sources.black_box import read as blackbox_file  # noqa: E402
from hangscope.sources.black_box.capture import copy_of  # noqa: E402

HOLD_S = 4.0
PAGE = "<iiiiqQ"
PAGE_BYTES = struct.calcsize(PAGE) + 2 * 65536
LINKS = ["all_reduce", "broadcast", "all_gather", "all_to_all", "pipeline", "exchange"]


def trials(ring: bool, world: int) -> list[dict[str, Any]]:
    """What one job plays. Every third link trial stops the link at once, the others after some bytes."""
    operations = (
        [*LINKS, "all_reduce_small", "reduce_scatter", "half_all_reduce", "all_reduce", "broadcast"]
        if ring
        else ["all_reduce", "all_reduce_small", "all_to_all", "all_reduce", "half_all_reduce", "exchange", "all_reduce"]
    )
    found: list[dict[str, Any]] = [
        {
            "operation": name,
            "fault": "link",
            "then": "all_reduce_small",
            "after_bytes": 0 if name.endswith("small") else (0, 20_000, 150_000)[n % 3],
        }
        for n, name in enumerate(operations)
    ]
    for fault, name, victim in (
        ("absent", "all_reduce", 2 % world),
        ("gpu", "all_reduce", 1),
        ("frozen", "all_reduce", world - 1),
        ("gpu", "broadcast" if ring else "all_reduce_small", world - 2),
        ("absent", "all_to_all", 0),
        ("killed", "all_reduce", 1),
    ):
        found.append({"operation": name, "fault": fault, "then": "all_reduce_small", "victim": victim})
    return found


class Job(threading.Thread):
    """One job of several ranks, all its trials."""

    def __init__(
        self, name: str, world: int, algorithm: str, place: Path, libraries: Path, ends_at: float, program: Path
    ) -> None:
        super().__init__(name=name)
        self.world, self.algorithm, self.ends_at = world, algorithm, ends_at
        self.room = place / "rooms" / name
        self.cases = place / "cases" / name
        self.libraries = libraries
        self.trials = trials(algorithm == "Ring", world)
        self.nodes = [f"gpu-worker-{10 * world + (algorithm == 'Tree') * 100 + rank}" for rank in range(world)]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.rows: list[dict[str, Any]] = []
        self.problem = ""
        self.random = random.Random(name)
        self.more: dict[str, str] = {}
        self.program = program

    def run(self) -> None:
        try:
            self.start_ranks()
            for number, trial in enumerate(self.trials):
                self._play(number, trial)
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            for process in self.processes:
                process.kill()

    def start_ranks(self) -> None:
        (self.room / "boxes").mkdir(parents=True)
        (self.room / "logs").mkdir()
        (self.room / "trials.json").write_text(json.dumps(self.trials))
        page = self.room / "link"
        page.write_bytes(bytes(PAGE_BYTES))
        with page.open("r+b") as stream:
            self.page = mmap.mmap(stream.fileno(), PAGE_BYTES)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for rank, node in enumerate(self.nodes):
            given = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "TORCH_"))}
            env = {
                **given,
                "RANK": str(rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(self.world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RECORD_ROOM": str(self.room),
                "RECORD_LINK": str(page),
                "LD_PRELOAD": str(self.libraries / "stop_sends.so"),
                "PYTHONUNBUFFERED": "1",
                "OMP_NUM_THREADS": "1",
                "TZ": "UTC",
                "NCCL_PROFILER_PLUGIN": str(self.libraries / "blackbox.so"),
                "HANGSCOPE_BLACKBOX_DIR": str(self.room / "boxes"),
                "HANGSCOPE_BLACKBOX_BYTES": "262144",  # for small cases; eight ranks need no more
                "NCCL_HOSTID": f"{self.name}-{rank}",
                "NCCL_NET": "Socket",
                "NCCL_SOCKET_IFNAME": "lo",
                "NCCL_P2P_DISABLE": "1",
                "NCCL_SHM_DISABLE": "1",
                "NCCL_IB_DISABLE": "1",
                "NCCL_ALGO": self.algorithm,
                "NCCL_MAX_NCHANNELS": "2",
                "NCCL_BUFFSIZE": "524288",
                "NCCL_RAS_ENABLE": "0",
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,BOOTSTRAP,ENV",
                "NCCL_DEBUG_FILE": f"{self.room}/logs/nccl.%h.%p.log",
                "NCCL_DEBUG_TIMESTAMP_FORMAT": "[%FT%T.%3f] ",
                "NCCL_DEBUG_TIMESTAMP_LEVELS": "ALL",
                "TORCH_FR_BUFFER_SIZE": "2000",
                **self.more,
            }
            command = [sys.executable, str(HERE / "record_node.py"), node, sys.executable, str(self.program)]
            with (self.room / "logs" / f"rank_{rank}.log").open("wb") as log:
                self.processes.append(
                    subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
                )

    # ------------------------------------------------------------------------------------------------------- one trial

    def _wait(self, what: str, number: int, ranks: list[int], seconds: float = 90) -> None:
        until = min(time.monotonic() + seconds, self.ends_at)
        while not all((self.room / f"{what}.{number}.{rank}").exists() for rank in ranks):
            if time.monotonic() > until:
                missing = [rank for rank in ranks if not (self.room / f"{what}.{number}.{rank}").exists()]
                raise TimeoutError(f"trial {number}: no {what} from ranks {missing}")
            time.sleep(0.02)

    def _boxes(self) -> dict[int, BlackBox]:
        found: dict[int, BlackBox] = {}
        for path in sorted((self.room / "boxes").glob("*.ncclbb")):
            data = copy_of(path)
            if data is not None:
                box, _ = blackbox_file.read_box(data, Source(str(path)))
                found[box.rank if box.rank is not None else -1] = box
        return found

    def _play(self, number: int, trial: dict[str, Any]) -> None:
        everyone = list(range(self.world))
        before = used(self._boxes())
        (self.room / f"start.{number}").touch()
        self._wait("warm", number, everyone)
        edges = sorted(pair for pair, count in used(self._boxes()).items() if count > before.get(pair, 0))
        row = {"job": self.name, "number": number, **trial, "edges": len(edges)}
        link: tuple[int, int] | None = None
        if trial["fault"] == "link":
            if os.environ.get("RECORD_BACKEND") == "gloo":  # to try the launcher alone: no black box, no link stops
                edges = [(0, 1)]
            if not edges:
                raise RuntimeError(f"trial {number}: {trial['operation']} uses no link")
            taken = {tuple(old["link"]) for old in self.rows if old.get("link")}
            link = self.random.choice([edge for edge in edges if edge not in taken] or edges)
            self._set(1, *link, trial["after_bytes"])
            row["link"] = link
        (self.room / f"go.{number}").touch()
        try:
            self._wait("launched", number, everyone, 15)
        except TimeoutError as error:  # a call that blocks belongs to the evidence
            row["problem"] = str(error)
        victim = trial.get("victim")
        if trial["fault"] == "frozen":
            self.processes[victim].send_signal(signal.SIGSTOP)
        elif trial["fault"] == "killed":
            time.sleep(1)
            self.processes[victim].kill()
        time.sleep(HOLD_S)
        row["still"] = [rank for rank in everyone if not (self.room / f"done.{number}.{rank}").exists()]
        if row["still"]:  # otherwise there is no hang to take evidence of
            self._take(number, row)
        self.rows.append(row)
        self._set(0, -1, -1, 0)
        if trial["fault"] == "frozen":
            self.processes[victim].send_signal(signal.SIGCONT)
        (self.room / f"release.{number}").touch()
        if trial["fault"] != "killed":
            self._wait("done", number, everyone)

    def _set(self, active: int, sender: int, receiver: int, after_bytes: int) -> None:
        struct.pack_into("<iiiqQ", self.page, 4, sender, receiver, 0, after_bytes, 0)
        struct.pack_into("<i", self.page, 0, active)

    def _take(self, number: int, row: dict[str, Any]) -> None:
        what = "_".join(map(str, row.get("link") or [row["victim"]]))
        name = f"{self.name}_{number:02d}_{row['fault']}_{row['operation']}_{what}"
        case = self.cases / name
        for node in self.nodes:
            (case / node).mkdir(parents=True)
            for path in (self.room / "boxes").glob(f"{node}.*.ncclbb"):
                data = copy_of(path)
                if data is not None:
                    (case / node / path.name).write_bytes(data)
        quiet = [rank for rank in range(self.world) if rank != row.get("victim") or row["fault"] in ("absent", "gpu")]
        (self.room / f"collect.{number}").touch()
        try:
            self._wait("collected", number, quiet, 8 if number else 25)
        except TimeoutError as error:
            row["problem"] = str(error)
        for rank, node in enumerate(self.nodes):
            dump = self.room / "taken" / str(number) / f"nccl_trace_rank_{rank}"
            if rank in quiet and dump.exists():
                shutil.copy(dump, case / node / dump.name)
            for log in (self.room / "logs").glob(f"nccl.{node}.*.log"):
                shutil.copy(log, case / node / log.name)
            shutil.copy(self.room / "logs" / f"rank_{rank}.log", case / node)
        self._write_truth(case, row)
        row["case"] = name

    def _write_truth(self, case: Path, row: dict[str, Any]) -> None:
        fault = row["fault"]
        link = list(row["link"]) if row.get("link") else None
        truth: dict[str, Any] = {
            "case": case.name,
            "world_size": self.world,
            "nodes": {str(rank): node for rank, node in enumerate(self.nodes)},
            "hang": True,
            "kind": {"link": "network", "killed": "dead"}.get(fault, fault),
            "culprits": [] if link else [row["victim"]],
            "accept": [link] if link else [],
        }
        if link:
            truth["link"] = link
        (case / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
        roster = [
            {
                "rank": rank,
                "host": node,
                "local_rank": 0,
                "pid": self.processes[rank].pid,
                "exit": -9 if fault == "killed" and rank == row["victim"] else None,
            }
            for rank, node in enumerate(self.nodes)
        ]
        (case / "roster.json").write_text(json.dumps(roster, indent=1) + "\n")


def used(boxes: dict[int, BlackBox]) -> dict[tuple[int, int], int]:
    """Sends that each pair of ranks of the job has begun, over all communicators."""
    ranks = {(comm.hash, comm.rank): rank for rank, box in boxes.items() for comm in box.comms}
    found: dict[tuple[int, int], int] = {}
    for rank, box in boxes.items():
        hashes = {comm.serial: comm.hash for comm in box.comms}
        for link in box.links:
            other = ranks.get((hashes.get(link.comm, ""), link.peer))
            if link.sends and other is not None:
                found[rank, other] = found.get((rank, other), 0) + link.ops
    return found


# ----------------------------------------------------------------------------------------------------------- afterwards


def judge(case: Path, row: dict[str, Any]) -> str:
    """What the black boxes of a case say, in one word or a pair."""
    from hangscope.diagnosis.waits import proxy_waits

    boxes = [blackbox_file.read_box(path.read_bytes(), Source(path.name))[0] for path in sorted(case.rglob("*.ncclbb"))]
    found = proxy_waits.root(boxes)
    row["found"] = repr(found)
    operation = getattr(found, "operation", None)
    row["in"] = f"in {operation.func} {operation.seq}" if operation is not None else ""
    return proxy_waits.in_short(found)


def right(row: dict[str, Any], said: str) -> str:
    """ "yes", "no" for a wrong accusation, "-" where nothing is named."""
    if said.startswith("unknown"):
        return "-"
    if row.get("link"):
        return "yes" if said == f"link {row['link'][0]}>{row['link'][1]}" else "no"
    want = {"absent": "absent", "gpu": "gpu", "frozen": "silent", "killed": "silent"}[row["fault"]]
    return "yes" if said == f"{want} {row['victim']}" else "no"


def build(libraries: Path) -> None:
    libraries.mkdir(parents=True)
    compiler = shutil.which("cc") or "gcc"
    shared = [compiler, "-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread"]
    native = REPOSITORY / "native"
    subprocess.run(
        [
            *shared,
            "-fvisibility=hidden",
            "-Wl,-z,nodelete",
            native / "blackbox.c",
            "-o",
            libraries / "blackbox.so",
            "-ldl",
        ],
        check=True,
    )
    subprocess.run([*shared, HERE / "stop_sends.c", "-o", libraries / "stop_sends.so", "-ldl"], check=True)


def startup(arguments: argparse.Namespace, libraries: Path, program: Path, say: Callable[[str], None]) -> None:
    """Seconds from init_process_group to the end of the first all_reduce, with NCCL's log at WARN and INFO in turns."""
    for world in (4, 8):
        times: dict[str, list[float]] = {"WARN": [], "INFO": []}
        for turn in range(arguments.startup_rounds):
            for level in ("WARN", "INFO") if turn % 2 else ("INFO", "WARN"):
                job = Job(f"start{world}{level}{turn}", world, "Ring", arguments.place, libraries, 0, program)
                job.more = {"NCCL_DEBUG": level, "RECORD_STARTUP": "1"}
                job.start_ranks()
                for process in job.processes:
                    process.wait(60)
                found = [float(path.read_text()) for path in job.room.glob("startup.*")]
                times[level].append(max(found, default=float("nan")))
        shown = "; ".join(f"{level} " + " ".join(f"{t:.2f}" for t in found) for level, found in times.items())
        say(f"start of {world} ranks, slowest rank, s: {shown}")


def overhead(libraries: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Step times with and without the plugin: two copies of one job that take turns, under MPS where there is one."""
    pipe = libraries.parent / "mps"
    env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
    control = shutil.which("nvidia-cuda-mps-control")
    if control:
        pipe.mkdir()
        subprocess.run([control, "-d"], env=env, check=False)
        time.sleep(2)
    until = time.monotonic() + seconds
    bench = [sys.executable, str(REPOSITORY / "tests" / "bench_overhead.py"), "--backend", "nccl", "--ranks", "4"]
    bench += ["--plugin", str(libraries / "blackbox.so"), "--starts", "1"]
    try:
        for more in (["--step", "layers"], [], ["--step", "layers"], []):
            left = until - time.monotonic()
            if left < 45:
                say("overhead: no time left for more")
                break
            try:
                done = subprocess.run(
                    [*bench, *more], env=env, capture_output=True, text=True, check=False, timeout=min(left, 75)
                )
                errors = done.stderr[-1500:] if done.returncode else ""
                say(f"overhead {' '.join(more) or 'tiny'}:\n{done.stdout}{errors}")
            except subprocess.TimeoutExpired:
                say(f"overhead {' '.join(more)}: did not end in time")
    finally:
        if control:
            subprocess.run([control], input="quit\n", text=True, env=env, check=False, timeout=20)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder for one archive a job and links.txt")
    parser.add_argument("--only", default="ring4,tree4,ring8,tree8")
    parser.add_argument("--seconds", type=float, default=440, help="the most it takes in all")
    parser.add_argument("--bench-seconds", type=float, default=150, help="of which for the step times; 0 for none")
    parser.add_argument(
        "--startup-rounds", type=int, default=0, help="also time the start with NCCL's log at two levels"
    )
    parser.add_argument("--place", type=Path, default=Path("/tmp/record_links"))
    parser.add_argument("--programs", type=Path, default=Path("/workspace"), help="where the cases show the program")
    arguments = parser.parse_args()
    began = time.monotonic()
    shutil.rmtree(arguments.place, ignore_errors=True)
    arguments.place.mkdir(parents=True)
    lines: list[str] = []

    def say(text: str) -> None:
        lines.append(text)
        print(text, flush=True)
        (arguments.out / "links.txt").write_text("\n".join(lines) + "\n")

    libraries = arguments.place / "libraries"
    build(libraries)
    arguments.programs.mkdir(exist_ok=True)
    program = Path(shutil.copy(HERE / "links.py", arguments.programs / "links.py"))
    arguments.out.mkdir(parents=True, exist_ok=True)
    ends_at = began + arguments.seconds - arguments.bench_seconds - 20
    kinds = {"ring4": (4, "Ring"), "tree4": (4, "Tree"), "ring8": (8, "Ring"), "tree8": (8, "Tree")}
    jobs = [Job(name, *kinds[name], arguments.place, libraries, ends_at, program) for name in arguments.only.split(",")]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    score: dict[str, list[str]] = {}
    for job in jobs:
        for row in job.rows:
            if "case" not in row:
                say(f"{row['job']:6} {row['number']:2} {row['fault']:7} {row['operation']:17} did not hang")
                continue
            try:
                said = judge(job.cases / row["case"], row)
            except Exception as error:
                said = f"unknown ({type(error).__name__}: {error})"
            good = right(row, said)
            score.setdefault("link" if row.get("link") else row["fault"], []).append(good)
            where = f"{row['link'][0]}>{row['link'][1]}" if row.get("link") else str(row["victim"])
            say(
                f"{row['job']:6} {row['number']:2} {row['fault']:7} {row['operation']:17} {where:4} "
                f"of {row['edges']:3} links  still {len(row['still'])}  {good:3} {said} {row.get('in', '')} "
                f"{row.get('problem', '')}"
            )
            (job.cases / row["case"] / "found.txt").write_text(f"{said}\n{row.get('found')}\n")
        if job.problem:
            say(f"{job.name}: {job.problem}")
            for log in sorted((job.room / "logs").glob("rank_*.log")):
                say(f"--- {log.name}\n" + log.read_text(errors="replace")[-1500:])
    for fault, answers in sorted(score.items()):
        say(f"{fault}: {answers.count('yes')} right, {answers.count('-')} not named, {answers.count('no')} wrong")
    pairs = {(row["job"], row["link"]) for job in jobs for row in job.rows if row.get("link") and "case" in row}
    say(f"{len(pairs)} different links in {sum(1 for answers in score.values() for _ in answers)} trials")
    boxes = [path.stat().st_size for path in (arguments.place / "rooms").rglob("*.ncclbb")]
    for world in (4, 8):
        logs = [log for job in jobs if job.world == world for log in (job.room / "logs").glob("nccl.*.log")]
        if not boxes or not logs:
            continue
        sizes = [log.stat().st_size for log in logs]
        counts = [log.read_bytes().count(b"\n") for log in logs]
        say(
            f"{world} ranks: black box {max(boxes)} bytes; NCCL log a rank: {statistics.median(counts):.0f} lines, "
            f"{statistics.median(sizes):.0f} bytes (median of {len(logs)})"
        )
    neutral = [(str(arguments.place), "/workspace/run"), (socket.gethostname(), "node")]
    for job in jobs:
        if any("case" in row for row in job.rows):
            neutralise(job.cases, neutral)
            archive = arguments.out / f"{job.name}.tar.gz"
            pack(job.cases, archive)
            say(f"{archive.name}: {archive.stat().st_size >> 10} KiB, after {time.monotonic() - began:.0f} s")
    if arguments.startup_rounds:
        startup(arguments, libraries, program, say)
    if arguments.bench_seconds:
        overhead(libraries, arguments.bench_seconds, say)
    say(f"{time.monotonic() - began:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
