"""Jobs of several programs, live: what waits across a socket, a lock, a pipe, and what the verdict makes of it.

    python tests/live_scripts/program_jobs.py [NAME…] [--keep DIR]
    python tests/live_scripts/program_jobs.py --looks 200     looks at healthy jobs: nobody may be accused
    python tests/live_scripts/program_jobs.py --cost          what two looks at 500 processes cost

Each job's programs are in programs.py. What is true of a job was written down before a rule was looked at: the programs
on the way from rank 1, and what holds them up. Prints one line a job as a table for docs/waits.md. Some need a package
or a server (pyzmq, grpcio, ray, psycopg, Postgres, Redis, root): those that lack it are said to be left out. A real
vLLM or SGLang is not among them: the engine is a program of ours that waits as theirs do.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
PROGRAMS = str(HERE / "programs.py")
SETTLE_S = 4.0
LONGEST_S = 90.0
HANGSCOPE = (sys.executable, "-m", "hangscope")


@dataclass
class Scene:
    """The programs of one job as they are started, each in a session of its own."""

    folder: Path
    started: list[subprocess.Popen[str]]
    undo: list[Callable[[], object]]

    def start(
        self, *words: str, until: str = "", environ: dict[str, str] | None = None, within: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        """Start the program of that role, and wait until it says `until`."""
        role, *given = words
        script = self.folder / f"{role}.py"  # a process is shown by its script's name, never by what it was given
        if not script.exists():
            script.symlink_to(PROGRAMS)
        one = subprocess.Popen(
            [*within, sys.executable, str(script), *given],
            stdout=subprocess.PIPE,
            stderr=(self.folder / f"{role}.err").open("a"),
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})},
        )
        self.started.append(one)
        if until:
            self.wait_for(one, until)
        return one

    def wait_for(self, one: subprocess.Popen[str], word: str) -> None:
        assert one.stdout is not None
        for line in one.stdout:
            if line.strip() == word:
                return
        raise RuntimeError(f"{one.args} ended before it said {word!r}")

    def trainers(self, *seam: str, name: str = "trainer", address: str = "127.0.0.1", within=((), ())):
        """The two ranks; back when the one that goes wrong has said so."""
        port = str(free_port())
        ranks = []
        for rank in (0, 1):
            environ = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": port}
            environ["GLOO_SOCKET_IFNAME"] = "lo" if address == "127.0.0.1" else "seam"  # and asks no name server
            ranks.append(self.start(name, *seam, environ=environ, within=within[rank]))
        self.wait_for(ranks[1], "fault")
        return ranks

    def end(self) -> None:
        for one in self.started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
        for undo in reversed(self.undo):
            undo()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass(frozen=True)
class Truth:
    """What is so, in the words of people who know the job."""

    says: str
    """What happened."""
    way: tuple[str, ...] = ()
    """Words that each program on the way has in its command, the accused rank first."""
    holds: str = ""
    """What must be said of the end of the way: one of these, by |. Empty: no program may be blamed."""
    by: str = ""
    """The program that holds it up, where it is one that runs."""
    rank: int | None = 1
    """The rank that others wait for: nobody else may be accused."""
    healthy: bool = False


@dataclass(frozen=True)
class Job:
    name: str
    truth: Truth
    start: Callable[[Scene], list[int]]
    """Starts it, and gives the pids that a user would give: the trainer's first."""
    needs: tuple[str, ...] = ()


def pids(*programs: Any) -> list[int]:
    found = []
    for each in programs:
        found += [one.pid for one in each] if isinstance(each, list) else [each.pid]
    return found


def http_circle(s: Scene) -> list[int]:
    http, sync = str(free_port()), str(free_port())
    ranks = []
    engine = s.start("rollout_engine", http, sync, until="ready")
    ranks = s.trainers("sync_then_ask", sync, http)
    return pids(ranks, engine)


def weight_sync(s: Scene) -> list[int]:
    port = str(free_port())
    trainers = s.trainers("weights_sender", port)
    rollouts = s.trainers("weights_receiver", port, name="rollout")
    return pids(rollouts, trainers)


def reward_server_stopped(s: Scene) -> list[int]:
    port = str(free_port())
    server = s.start("reward_server", port, until="ready")
    os.kill(server.pid, signal.SIGSTOP)
    return pids(s.trainers("ask_http", port), server)


def zmq_worker_died(s: Scene) -> list[int]:
    port, behind = str(free_port()), str(free_port())
    router = s.start("zmq_router", port, behind, until="ready")
    worker = s.start("zmq_worker", behind, until="ready")
    return pids(s.trainers("ask_zmq", port), router, worker)


def store_key(s: Scene) -> list[int]:
    return pids(s.trainers("store_key"))


def fifo_without_writer(s: Scene) -> list[int]:
    path = s.folder / "samples.fifo"
    os.mkfifo(path)
    return pids(s.trainers("read_fifo", str(path)))


def compile_cache_lock(s: Scene) -> list[int]:
    path = str(s.folder / "kernel.lock")
    holder = s.start("compiler", path, until="ready")
    os.kill(holder.pid, signal.SIGSTOP)
    return pids(s.trainers("take_lock", path), holder)


def frozen_data_service(s: Scene) -> list[int]:
    path = str(s.folder / "samples.sock")
    service = s.start("data_service", path, until="ready")
    os.kill(service.pid, signal.SIGSTOP)
    return pids(s.trainers("load_samples", path), service)


def grpc_full_window(s: Scene) -> list[int]:
    port = str(free_port())
    buffer = s.start("rollout_buffer", port, until="ready")
    return pids(s.trainers("stream_grpc", port), buffer)


def postgres_row_lock(s: Scene) -> list[int]:
    data, port = s.folder / "pg", str(free_port())
    as_user: tuple[str, ...] = ()
    if os.geteuid() == 0:
        s.folder.chmod(0o755)
        data.mkdir()
        shutil.chown(data, "postgres")
        as_user = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    initdb, server = (_postgres(name) for name in ("initdb", "postgres"))
    subprocess.run([*as_user, initdb, "-A", "trust", "-U", "trainer", "-D", str(data)], **quiet)
    words = [*as_user, server, "-D", str(data), "-p", port, "-k", str(data), "-h", "127.0.0.1"]
    s.started.append(subprocess.Popen(words, start_new_session=True, stderr=subprocess.DEVNULL, text=True))
    address = f"host=127.0.0.1 port={port} user=trainer dbname=postgres"
    _until(lambda: _made_table(address))
    holder = s.start("row_keeper", address, until="ready")
    return pids(s.trainers("update_row", address), holder)


def _postgres(name: str) -> str:
    found = shutil.which(name) or next(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), "")
    if not found:
        raise FileNotFoundError(name)
    return os.path.realpath(found)


def _made_table(address: str) -> bool:
    import psycopg

    try:
        with psycopg.connect(address) as connection:
            connection.execute("CREATE TABLE rollouts (id int, done bool)")
            connection.execute("INSERT INTO rollouts VALUES (1, false)")
        return True
    except psycopg.OperationalError:
        return False


def _until(there: Callable[[], bool]) -> None:
    until = time.monotonic() + 20.0
    while not there():
        if time.monotonic() > until:
            raise TimeoutError("a server did not come up")
        time.sleep(0.2)


def redis_blpop(s: Scene) -> list[int]:
    port = str(free_port())
    words = ["redis-server", "--port", port, "--save", "", "--dir", str(s.folder)]
    s.started.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True, text=True))
    _until(lambda: not socket.socket().connect_ex(("127.0.0.1", int(port))))
    return pids(s.trainers("pop_list", port), s.started[0])


def child_never_ends(s: Scene) -> list[int]:
    return pids(s.trainers("wait_for_child"))


def fork_inherits_lock(s: Scene) -> list[int]:
    return pids(s.trainers("fork_with_lock"))


def leaked_semaphore(s: Scene) -> list[int]:
    name = f"/hangscope-{os.getpid()}"
    s.undo.append(lambda: Path(f"/dev/shm/sem.{name[1:]}").unlink(missing_ok=True))
    s.start("semaphore_keeper", name, until="ready").wait()
    return pids(s.trainers("take_semaphore", name))


def file_server_sleeps(s: Scene) -> list[int]:
    place = s.folder / "samples"
    place.mkdir()
    s.undo.append(lambda: subprocess.run(["umount", "-l", str(place)], check=False))
    server = s.start("file_server", str(place), until="ready")
    return pids(s.trainers("read_file", str(place / "part-0")), server)


def silent_name_server(s: Scene) -> list[int]:
    address = "127.0.0.77"
    server = s.start("silent_name_server", address, until="ready")
    settings = s.folder / "resolv.conf"
    settings.write_text(f"nameserver {address}\noptions timeout:600 attempts:5\n")
    own = ("unshare", "-m", "sh", "-c", f'mount --bind {settings} /etc/resolv.conf && exec "$@"', "sh")
    return pids(s.trainers("resolve", "samples.example.org", within=((), own)), server)


def ray_actors(s: Scene) -> list[int]:
    driver = s.start("ray_job", str(free_port()), until="fault")
    s.undo.append(
        lambda: subprocess.run([sys.executable, "-m", "ray.scripts.scripts", "stop", "-f"], capture_output=True)
    )
    time.sleep(6.0)
    return [driver.pid]


def two_nodes(s: Scene) -> list[int]:
    """Two network namespaces; on both somebody listens at the same port, and one of these is stopped."""
    names = [f"hs{os.getpid()}{letter}" for letter in "ab"]
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
        s.undo.append(lambda name=name: subprocess.run(["ip", "netns", "del", name], check=False))
    subprocess.run(
        ["ip", "link", "add", "seam", "netns", names[0], "type", "veth", "peer", "name", "seam", "netns", names[1]],
        check=True,
    )
    for number, name in enumerate(names, 1):
        for words in (
            ["addr", "add", f"10.77.0.{number}/24", "dev", "seam"],
            ["link", "set", "seam", "up"],
            ["link", "set", "lo", "up"],
        ):
            subprocess.run(["ip", "-n", name, *words], check=True)
    inside = tuple(("ip", "netns", "exec", name) for name in names)
    port = str(free_port())
    server = s.start("plain_server", "10.77.0.1", port, until="ready", within=inside[0])
    other = s.start("namesake", "10.77.0.2", port, until="ready", within=inside[1])
    os.kill(server.pid, signal.SIGSTOP)
    ranks = s.trainers("ask_at", "10.77.0.1", port, address="10.77.0.1", within=inside)
    return pids(ranks, server, other)


def idle_server(s: Scene) -> list[int]:
    port = str(free_port())
    server = s.start("reward_server", port, until="ready")
    return pids(s.trainers("sleeps", port), server)


def healthy(s: Scene) -> list[int]:
    port = str(free_port())
    server = s.start("reward_server", port, until="ready")
    port_of_both = str(free_port())
    ranks = []
    for rank in (0, 1):
        environ = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port_of_both}
        ranks.append(s.start("trainer", "both_step", port, environ=environ))
    s.wait_for(ranks[1], "fault")
    return pids(ranks, server)


JOBS = (
    Job(
        "http_circle",
        Truth(
            "the trainer asks the engine over HTTP, which waits for the trainer's weights",
            ("trainer", "rollout_engine"),
            "cycle",
        ),
        http_circle,
    ),
    Job(
        "weight_sync",
        Truth(
            "rollout rank 0 waits for weights from another job's rank 0, which sleeps in its checkpoint",
            ("rollout", "trainer"),
            "sleeps",
            "trainer",
            rank=0,
        ),
        weight_sync,
    ),
    Job(
        "reward_server_stopped",
        Truth("the reward server is stopped (SIGSTOP)", ("trainer", "reward_server"), "stopped", "reward_server"),
        reward_server_stopped,
    ),
    Job(
        "zmq_worker_died",
        Truth(
            "a ZMQ router holds the request of a worker that was killed; the router is idle",
            ("trainer", "zmq_router"),
            "idle",
        ),
        zmq_worker_died,
        ("zmq",),
    ),
    Job(
        "store_key",
        Truth("nobody sets the key engine/0/ready of the store", holds="engine/0/ready", rank=None),
        store_key,
    ),
    Job(
        "fifo_without_writer",
        Truth("a FIFO that nobody opens to write", ("trainer",), "no process has opened"),
        fifo_without_writer,
    ),
    Job(
        "compile_cache_lock",
        Truth("a stopped compiler holds the cache's lock", ("trainer", "compiler"), "stopped", "compiler"),
        compile_cache_lock,
    ),
    Job(
        "frozen_data_service",
        Truth(
            "rank 1's data loader worker asks a stopped service over a Unix socket",
            ("trainer", "trainer", "data_service"),
            "stopped",
            "data_service",
        ),
        frozen_data_service,
    ),
    Job(
        "grpc_full_window",
        Truth(
            "a gRPC stream whose receiver writes to disk for ever",
            ("trainer", "rollout_buffer"),
            "sleeps",
            "rollout_buffer",
        ),
        grpc_full_window,
        ("grpc",),
    ),
    Job(
        "postgres_row_lock",
        Truth(
            "a client changed the row and did not end its transaction",
            ("trainer", "postgres", "postgres", "row_keeper"),
            "sleeps",
            "row_keeper",
        ),
        postgres_row_lock,
        ("psycopg", "/postgres"),
    ),
    Job(
        "redis_blpop",
        Truth(
            "rank 1 waits for a list of Redis that nobody fills; the server is idle by right",
            ("trainer", "redis-server"),
            "idle",
        ),
        redis_blpop,
        ("/redis-server",),
    ),
    Job(
        "child_never_ends",
        Truth("rank 1 waits for a child that sleeps", ("trainer", "convert_samples"), "sleeps", "convert_samples"),
        child_never_ends,
    ),
    Job(
        "fork_inherits_lock",
        Truth(
            "a child waits for a lock that another thread held when it was forked", ("trainer", "trainer"), "own|lock"
        ),
        fork_inherits_lock,
    ),
    Job(
        "leaked_semaphore",
        Truth("who took the semaphore was killed", ("trainer",), "no other process"),
        leaked_semaphore,
    ),
    Job(
        "file_server_sleeps",
        Truth("a FUSE file system's server does not answer", ("trainer", "file_server"), "sleeps", "file_server"),
        file_server_sleeps,
        ("root",),
    ),
    Job(
        "silent_name_server",
        Truth(
            "the name server does not answer",
            ("trainer", "silent_name_server"),
            "DNS|name server",
            "silent_name_server",
        ),
        silent_name_server,
        ("root",),
    ),
    Job(
        "ray_actors",
        Truth(
            "one Ray actor waits on a socket for another, which sleeps in compact()",
            ("Learner", "Buffer"),
            "sleeps",
            "Buffer",
            rank=None,
        ),
        ray_actors,
        ("ray",),
    ),
    Job(
        "two_nodes",
        Truth(
            "the server of the first node is stopped, its namesake on the second is not",
            ("trainer", "plain_server"),
            "stopped",
            "plain_server",
        ),
        two_nodes,
        ("root", "/ip"),
    ),
    Job("idle_server", Truth("rank 1 sleeps; its idle server has nothing to do with it"), idle_server),
    Job("healthy", Truth("all work", rank=None, healthy=True), healthy),
)


def lacks(job: Job) -> str:
    for need in job.needs:
        if need == "root" and os.geteuid() != 0:
            return "root"
        if need.startswith("/") and shutil.which(need[1:]) is None:
            return need[1:]
        if not need.startswith("/") and need != "root" and importlib.util.find_spec(need) is None:
            return need
    return ""


@contextlib.contextmanager
def running(job: Job) -> Iterator[tuple[Path, list[int]]]:
    with tempfile.TemporaryDirectory(prefix="programs-") as name:
        scene = Scene(Path(name), [], [])
        try:
            found = job.start(scene)
            time.sleep(SETTLE_S)
            yield Path(name), found
        finally:
            scene.end()


def looked(job: Job, given: list[int], place: Path) -> dict[str, Any]:
    """What `hangscope snapshot` says of it, as JSON."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
    target = ["--ray"] if job.name == "ray_actors" else [str(pid) for pid in given]
    words = [*HANGSCOPE, "snapshot", *target, "--dir", str(place), "--no-diagnose"]
    taken = subprocess.run(words, capture_output=True, text=True, env=environ, timeout=LONGEST_S, check=False)
    if taken.returncode:
        return {"error": taken.stderr.strip()[-300:]}
    said = subprocess.run(
        [*HANGSCOPE, "diagnose", taken.stdout.strip(), "--json"],
        capture_output=True,
        text=True,
        env=environ,
        timeout=LONGEST_S,
        check=False,
    )
    try:
        found: dict[str, Any] = json.loads(said.stdout)
    except ValueError:
        return {"error": said.stderr.strip()[-300:]}
    return found


def judged(truth: Truth, said: dict[str, Any]) -> str:
    """What is wrong with what was said; empty where it is right."""
    if "error" in said:
        return said["error"]
    accused = [culprit.get("rank") for culprit in said["culprits"]]
    if truth.healthy:
        return f"accuses {accused}" if accused or said["hang"] else ""
    if truth.rank is not None and accused != [truth.rank] and (accused or not way_of(said)):
        return f"accuses {accused}"
    if truth.rank is None and said["confidence"] == "high" and accused:
        return f"accuses {accused} at high"
    way = way_of(said)
    words = " ".join([said["summary"], *(text for each in said["why"] for text in (each["text"], *each["detail"]))])
    if len(way) != len(truth.way) and (truth.way or way):
        return f"the way is {way}"
    for word, command in zip(truth.way, way, strict=False):
        if word not in command:
            return f"{word} is not where {command} is"
    if truth.holds and not any(word in words or word in ends_of(said) for word in truth.holds.split("|")):
        return f"does not say {truth.holds}"
    return ""


def way_of(said: dict[str, Any]) -> list[str]:
    """The commands of the programs on the way, in order."""
    commands = {(row["node"], row["pid"]): row["command"] + " " + row["name"] for row in said["processes"]}
    way = []
    for row in said["waits"]:
        for place in ((row["node"], row["pid"]), (row["to"]["node"], row["to"]["pid"]) if row["to"] else None):
            if place is not None and place not in way:
                way.append(place)
    return [commands.get(place, "?") for place in way]


def ends_of(said: dict[str, Any]) -> list[str]:
    return [row["end"] for row in said["waits"] if row["end"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--looks", type=int, default=0)
    parser.add_argument("--cost", action="store_true")
    given = parser.parse_args()
    if given.cost:
        return cost()
    if given.looks:
        return looks(given.looks)
    wrong = 0
    print("| job | what is so | said | |\n|---|---|---|---|", flush=True)
    for job in JOBS:
        if given.names and job.name not in given.names:
            continue
        missing = lacks(job)
        if missing:
            print(f"| {job.name} | {job.truth.says} | left out: there is no {missing} | - |", flush=True)
            continue
        with running(job) as (folder, found):
            said = looked(job, found, (given.keep or folder) / job.name)
        why = judged(job.truth, said)
        wrong += bool(why)
        print(
            f"| {job.name} | {job.truth.says} | {sentence(said)} | {'**no**: ' + why if why else 'yes'} |", flush=True
        )
    return 1 if wrong else 0


def looks(count: int) -> int:
    """So many looks at a healthy job and at one whose servers idle: how many lead from a rank to another program that
    would be named as what holds it up, and how many verdicts accuse anybody."""
    sys.path.insert(0, str(SOURCE))
    from hangscope.diagnosis.waits import program_waits
    from hangscope.sources.process_waits.capture import take
    from hangscope.sources.process_waits.chains import ProcessGraph

    named = []
    jobs = [job for job in JOBS if job.name in ("healthy", "idle_server")]
    for job in jobs:
        with running(job) as (_, given):
            ranks = {pid: rank for rank, pid in enumerate(given[:2])}
            for _ in range(count // len(jobs)):
                graph = ProcessGraph({"": take(given, ranks, time.sleep, 1.0)})
                for rank in (0, 1):
                    place = graph.place_of_rank(rank)
                    chain = graph.follow(place) if place is not None else None
                    said = program_waits.summary(rank, chain) if chain is not None else ""
                    if said:
                        named.append(said)
    for said in named:
        print(said)
    print(f"{len(named)} of {count} looks would name a program")
    return 1 if named else 0


def cost() -> int:
    """Two looks at 500 processes, each with 40 sockets of which it watches 20."""
    import select

    sys.path.insert(0, str(SOURCE))
    from hangscope.sources.process_waits.capture import take

    ready, say = os.pipe()
    children = []
    for _ in range(500):
        child = os.fork()
        if child == 0:
            pairs = [socket.socketpair() for _ in range(20)]
            watched = select.epoll()
            for one, _ in pairs:
                watched.register(one.fileno(), select.EPOLLIN)
            os.write(say, b".")
            watched.poll()
            os._exit(0)
        children.append(child)
    try:
        there = 0
        while there < len(children):
            there += len(os.read(ready, len(children)))
        begun, core = time.monotonic(), time.process_time()
        seen = take([os.getpid()], {}, lambda _: None)
        core, begun = time.process_time() - core, time.monotonic() - begun
        print(f"{len(seen.processes)} processes, {len(seen.waits)} waits: {core:.2f} s of a core, {begun:.1f} s in all")
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return 0


def sentence(said: dict[str, Any]) -> str:
    if "error" in said:
        return "-"
    ranks = ", ".join(str(culprit.get("rank")) for culprit in said["culprits"])
    ends = ", ".join(dict.fromkeys(ends_of(said)))
    return f"{said['outcome']}, {said['kind']} [{ranks}], {said['confidence']}; {' → '.join(way_of(said))} {ends}"


if __name__ == "__main__":
    sys.exit(main())
