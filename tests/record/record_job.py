"""One recorded job: start its ranks, take evidence while it hangs, end it, and write the case down."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from record_neutral import Replacements, neutralise, read_dump
from record_scenarios import Scenario

HERE = Path(__file__).parent
RAS_AFTER = 0.5  # of the collective's timeout, counted from the injection
STACKS_AFTER = (0.55, 0.8)
LINGER_S = 3.0
TIMED_OUT = b"Watchdog caught collective operation timeout"


@dataclass(frozen=True)
class Setting:
    """What all jobs of one recording share."""

    programs: Path
    """The folder of the training programs."""
    scratch: Path
    backend: str
    timeout_s: float
    torch: str
    nccl: str | None
    replacements: Replacements
    host: str
    ends_at: float
    """On the monotonic clock: no job runs longer than this."""
    open_store: Callable[[], Any]


@dataclass
class Outcome:
    """A finished job, as the table shows it."""

    scenario: Scenario
    seconds: float = 0.0
    dumps: int = 0
    dumps_with_frames: int = 0
    stacks: int = 0
    exits: list[int | None] = field(default_factory=list)
    ras: str = "-"
    hang: bool = False
    timed_out: int = 0
    problems: list[str] = field(default_factory=list)


class RecordedJob(threading.Thread):
    """Runs one scenario to its end. `outcome` is complete once the thread has ended."""

    def __init__(self, scenario: Scenario, setting: Setting, ras_port: int) -> None:
        super().__init__(name=scenario.name)
        self.scenario = scenario
        self.setting = setting
        self.case = setting.scratch / "running" / scenario.name
        self.notes = setting.scratch / "notes" / scenario.name
        self.ras_port = ras_port
        self.outcome = Outcome(scenario)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ended_at: list[float | None] = [None] * scenario.world
        self.ras_thread: threading.Thread | None = None
        self.signalled: set[int] = set()
        self.stopping = threading.Event()

    def run(self) -> None:
        began = time.monotonic()
        try:
            self.notes.mkdir(parents=True)
            store = self.setting.open_store()  # held until the job is over
            for rank in range(self.scenario.world):
                self.processes.append(self._start(rank, store.port))
            self._watch(began)
        except Exception as error:  # one job that fails must not take the others along
            self.outcome.problems.append(f"{type(error).__name__}: {error}")
        finally:
            self._end()
        try:
            self._write_case()
        except Exception as error:
            self.outcome.problems.append(f"{type(error).__name__}: {error}")
        self.outcome.seconds = time.monotonic() - began

    def stop(self) -> None:
        """Give up: end the processes, write down what there is."""
        self.stopping.set()

    # ------------------------------------------------------------------------------------------------ the processes

    def _node_dir(self, rank: int) -> Path:
        return self.case / self.scenario.hosts[rank]

    def _local_rank(self, rank: int) -> int:
        return self.scenario.hosts[:rank].count(self.scenario.hosts[rank])

    def _start(self, rank: int, store_port: int) -> subprocess.Popen[bytes]:
        node, folder = self.scenario.hosts[rank], self._node_dir(rank)
        folder.mkdir(parents=True, exist_ok=True)
        given = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "TORCH_"))}
        wanted = {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.scenario.world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store_port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the launcher holds the store, as torchrun does
            "TORCHELASTIC_RESTART_COUNT": "0",
            "RECORD_DIR": str(self.notes),
            "RECORD_BACKEND": self.setting.backend,
            "RECORD_TIMEOUT_S": str(self.setting.timeout_s),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "TZ": "UTC",
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_HOSTID": f"{node}-{rank}",  # NCCL refuses two ranks of one host on one GPU
            "NCCL_NET": "Socket",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
            "NCCL_IB_DISABLE": "1",
            "NCCL_ALGO": "Ring",
            "NCCL_MAX_NCHANNELS": "2",
            "NCCL_BUFFSIZE": "1048576",
            "NCCL_RAS_ADDR": f"127.0.0.1:{self.ras_port}",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,BOOTSTRAP,ENV",
            "NCCL_DEBUG_FILE": f"{folder}/nccl.%h.%p.log",
            "NCCL_DEBUG_TIMESTAMP_FORMAT": "[%FT%T.%3f] ",
            "NCCL_DEBUG_TIMESTAMP_LEVELS": "ALL",
            "TORCH_FR_BUFFER_SIZE": "2000",  # TORCH_NCCL_TRACE_BUFFER_SIZE beside it only makes torch 2.11 warn
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_ENABLE_TIMING": "1",
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "15",  # processes end 15 s after their dump, not eight minutes
            "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "25000",  # symbolising is slow while many ranks share the cores
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{folder}/nccl_trace_rank_",
            "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/nccl_trace_rank_",
            **self.scenario.env,
        }
        env = {name: value for name, value in (given | wanted).items() if value is not None}
        command = [sys.executable, str(HERE / "record_node.py"), node]
        command += [sys.executable, str(self.setting.programs / self.scenario.program), self.scenario.name]
        with (folder / f"rank_{rank}.log").open("wb") as log:
            return subprocess.Popen(
                command, env=env, cwd=self.setting.programs,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _alive(self) -> list[int]:
        alive = []
        for rank, process in enumerate(self.processes):
            if process.poll() is None:
                alive.append(rank)
            elif self.ended_at[rank] is None:
                self.ended_at[rank] = round(time.time(), 1)
        return alive

    def _end(self) -> None:
        """Kill what still runs; the roster says of those ranks that they were still there."""
        alive = self._alive()
        self.outcome.exits = [
            None if rank in alive else process.returncode for rank, process in enumerate(self.processes)
        ]
        for rank in alive:
            self.processes[rank].kill()
        for rank in alive:
            try:
                self.processes[rank].wait(timeout=20)
            except subprocess.TimeoutExpired:  # stuck in the driver; the others' evidence must not wait for it
                self.outcome.problems.append(f"rank {rank} could not be killed")

    # -------------------------------------------------------------------------------------------------- while it runs

    def _watch(self, began: float) -> None:
        """Until the job is over: take evidence at its times, stop a finished job, give up at the deadline."""
        deadline = min(began + self.scenario.deadline_s, self.setting.ends_at)
        injected_at: float | None = None
        early_end_at: float | None = None
        peers_ended_at: float | None = None
        samples = list(enumerate(STACKS_AFTER, 1))
        while True:
            now = time.monotonic()
            alive = self._alive()
            if not alive or self.stopping.is_set():
                return
            if now > deadline:
                self.outcome.problems.append("deadline")
                return
            if all((self.notes / f"done.{rank}").exists() for rank in range(self.scenario.world)):
                (self.notes / "stop").touch()
            if (self.notes / "ask_ras").exists():
                self._ask_ras()
            if injected_at is None and self._injections():
                injected_at = now
            self._signal_on_request()
            if injected_at is None:
                if len(alive) < self.scenario.world and self.scenario.hangs:
                    early_end_at = early_end_at or now
                    if now > early_end_at + LINGER_S:
                        self.outcome.problems.append("a rank ended before anything was injected")
                        return
            elif self.scenario.hangs:
                if now > injected_at + RAS_AFTER * self.setting.timeout_s:
                    self._ask_ras()
                if samples and now > injected_at + samples[0][1] * self.setting.timeout_s:
                    self._take_stacks(samples.pop(0)[0], alive)
                if not set(alive) - set(self.scenario.culprits):
                    peers_ended_at = peers_ended_at or now
                    if now > peers_ended_at + LINGER_S:
                        return
            time.sleep(0.1)

    def _injections(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.notes.glob("injected.*.json"))]

    def _signal_on_request(self) -> None:
        """Send a rank the signal that its note names, a second later: its peers are inside the operation by then."""
        for note in self._injections():
            if "signal" in note and note["rank"] not in self.signalled and time.time() > note["at"] + 1.0:
                self.processes[note["rank"]].send_signal(signal.Signals[note["signal"]])
                self.signalled.add(note["rank"])

    def _take_stacks(self, sample: int, alive: list[int]) -> None:
        """Ask every rank for the stacks of its Python threads; faulthandler writes them from a signal handler."""
        ranks = [rank for rank in alive if rank not in self.scenario.untouched]
        raw = {rank: self.notes / f"stacks.{rank}" for rank in ranks}
        before = {rank: raw[rank].stat().st_size for rank in ranks if catches(self.processes[rank].pid, signal.SIGUSR2)}
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        for rank in before:
            self.processes[rank].send_signal(signal.SIGUSR2)
        time.sleep(0.6)
        for rank, size in before.items():
            text = raw[rank].read_bytes()[size:]
            if not text:
                continue
            head = f"# hangscope stacks rank={rank} pid={self.processes[rank].pid} sample={sample}"
            head += f" by=faulthandler at={at}"
            path = self._node_dir(rank) / "stacks" / f"rank_{rank}.{sample}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(head.encode() + b"\n" + text)
            self.outcome.stacks += 1

    def _ask_ras(self) -> None:
        """Take both RAS answers, once, beside the watching: an answer can take ten seconds."""
        if self.ras_thread is None and self.setting.backend == "nccl" and self.scenario.has_ras:
            self.ras_thread = threading.Thread(target=self._take_ras, daemon=True)
            self.ras_thread.start()

    def _take_ras(self) -> None:
        got = []
        for name, as_json in (("ras.json", True), ("ras.txt", False)):
            answer = ask_ras(self.ras_port, as_json)
            if answer:
                (self.case / name).write_bytes(answer)
                got.append(name.partition(".")[2])
        self.outcome.ras = "+".join(got) or "no"

    # ------------------------------------------------------------------------------------------------------ afterwards

    def _write_case(self) -> None:
        if self.ras_thread is not None:
            self.ras_thread.join(timeout=5)
        scenario, outcome = self.scenario, self.outcome
        for node, _ in scenario.nodes:
            host = [(self.setting.host, node)] if self.setting.host else []
            outcome.problems += neutralise(self.case / node, [*self.setting.replacements, *host])
        outcome.hang = any(status != 0 for status in outcome.exits)
        for rank in range(scenario.world):
            outcome.timed_out += TIMED_OUT in (self._node_dir(rank) / f"rank_{rank}.log").read_bytes()
        self._count_dumps()
        injections = self._injections()
        _write_json(self.case / "roster.json", self._roster())
        if not injections and scenario.hangs:
            outcome.problems.append("nothing was injected: no case")
            return
        if outcome.hang != scenario.hangs:
            outcome.problems.append("hangs" if outcome.hang else "does not hang")
        _write_json(self.case / "truth.json", self._truth(injections))
        shutil.rmtree(self.notes, ignore_errors=True)

    def _count_dumps(self) -> None:
        for rank in range(self.scenario.world):
            path = self._node_dir(rank) / f"nccl_trace_rank_{rank}"
            if not path.exists():
                continue
            self.outcome.dumps += 1
            try:
                entries = read_dump(path).get("entries", [])
                self.outcome.dumps_with_frames += any(entry.get("frames") for entry in entries)
            except Exception as error:  # told in the table; the file stays as it is
                self.outcome.problems.append(f"{path.name}: {error}")

    def _roster(self) -> list[dict[str, Any]]:
        return [
            {
                "rank": rank,
                "host": host,
                "local_rank": self._local_rank(rank),
                "pid": self.processes[rank].pid,
                "exit": self.outcome.exits[rank],
                "ended_at": self.ended_at[rank] if self.outcome.exits[rank] is not None else None,
            }
            for rank, host in enumerate(self.scenario.hosts)
        ]

    def _truth(self, injections: list[dict[str, Any]]) -> dict[str, Any]:
        scenario = self.scenario
        links = [note["link"] for note in injections if "link" in note]
        accept = [list(ranks) for ranks in scenario.accept] + links
        truth: dict[str, Any] = {
            "case": scenario.name,
            "world_size": scenario.world,
            "nodes": {str(rank): host for rank, host in enumerate(scenario.hosts)},
            "torch": self.setting.torch,
            "nccl": self.setting.nccl,
            "hang": self.outcome.hang,
            "kind": scenario.kind,
            "culprits": list(scenario.culprits),
            "accept": accept,
        }
        if scenario.accept_kinds:
            truth["accept_kinds"] = list(scenario.accept_kinds)
        if links:
            truth["link"] = links[0]
        told = [{key: note[key] for key in ("rank", "operation", "line", "culprit_line")} for note in injections]
        if told:
            truth |= {key: told[0][key] for key in ("operation", "line", "culprit_line")}
        if len(told) > 1:
            truth["by_culprit"] = told
        return truth


def catches(pid: int, signum: int) -> bool:
    """Whether the process has a handler for the signal: one that is about to end has none any more and would die."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((row.split()[1] for row in status.splitlines() if row.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signum - 1) & 1)


def ask_ras(port: int, as_json: bool) -> bytes | None:
    """NCCL's RAS answer as the server sent it, less its "OK" lines. A frozen process may swallow a try."""
    for _ in range(3):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=3) as connection:
                stream = connection.makefile("rwb")
                stream.write(b"CLIENT PROTOCOL 2\n")
                stream.flush()
                answer = stream.readline()
                if as_json:
                    stream.write(b"SET FORMAT json\n")
                    stream.flush()
                    if stream.readline().strip() != b"OK":
                        return None
                stream.write(b"STATUS\n")
                stream.flush()
                connection.settimeout(12)
                return answer + stream.read()
        except OSError:
            time.sleep(0.3)
    return None


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
