"""Hostile inputs over every verb: files, trees, neighbours, bundles and nodes that nobody should have to trust.

``python tests/hostile/hostile_verbs.py --count 20000`` runs the whole; the tests run a sample. An input is made from a
seed and a number alone. A failure is a traceback, more than 5 s or 500 MB, a write outside, or something skipped
without a word.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hangscope
from hangscope.bundle.pack import write_bundle
from hangscope.cli.main import INTERNAL_ERROR, main
from hangscope.errors import HangscopeError
from hangscope.incident.collect import collect, remote_script
from hangscope.incident.collect.gather import CollectOptions
from hangscope.incident.collect.remote_node import Node
from hangscope.recorder.capture import snapshot_job
from hangscope.safeio.walk import survey

sys.path.insert(0, str(Path(__file__).parents[1]))  # also run as a script

from hostile import fuzz_reader, hostile_files
from kits import crowds

SECONDS = 5.0
MEGABYTES = 500
CASES = Path(__file__).parents[1] / "cases"
_WORDS = (
    "[rank3]: ",
    "NCCL INFO ",
    "NCCL WARN ",
    "Traceback (most recent call last):\n",
    '  File "x", line 3, in y\n',
    "\x1b[2J",
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=600000)",
    "\n",
    "\r",
    "password=",
    "-----BEGIN RSA PRIVATE KEY-----\n",
    "kind: Secret\ndata:\n  x: ",
    "gpu-a017:1:1 [0] ",
    "\0" * 50,
    "%22",
    "9" * 400,
    "[" * 300,
    "{" * 300,
    "token: |\n  ",
    "sk-",
    "/home/alice/",
    "Xid (PCI:0000:9d:00): 79",
    "aB3" * 200,
    "\\n",
    "é",
    "# hangscope stacks rank=1 pid=2\n",
    "Thread 0x1 (most recent call first):\n",
    "a@",
    "10.0.0.1",
    "fe80::1",
    "dgx[001-999]",
)


def words(rng: random.Random, most: int = 400) -> bytes:
    return "".join(rng.choice(_WORDS) for _ in range(rng.randrange(most))).encode()


def value(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON, with the keys that our own files have."""
    pick = rng.randrange(9 if depth < 4 else 5)
    if pick < 5:
        return rng.choice(
            [None, True, -1, 5, 1 << 70, 1e300, "", "\x1b[2J", "x" * 5000, "../../x", "\ud800", "2026-11-15"]
        )
    if pick < 7:
        keys = (
            "schema",
            "job",
            "attempt",
            "node",
            "ranks",
            "live",
            "rank",
            "groups",
            "waiting",
            "files",
            "gaps",
            "nodes_present",
            "world_size",
            "captures",
            "ended",
            "settings",
            "versions",
            "stale",
            "entries",
            "pg_config",
            "sha256",
            "at",
            "reason",
        )
        return {rng.choice(keys): value(rng, depth + 1) for _ in range(rng.randrange(8))}
    return [value(rng, depth + 1) for _ in range(rng.randrange(6))]


def _json(rng: random.Random, schema: str) -> bytes:
    made = value(rng)
    if isinstance(made, dict) and rng.random() < 0.8:
        made["schema"] = schema
    return json.dumps(made).encode()


# ---- what is put there -----------------------------------------------------------------------------------------------


def dumps_of(rng: random.Random, root: Path, number: int) -> None:
    for rank in range(rng.randrange(1, 3)):
        _, data = hostile_files.make(number, rank + number * 3)
        (root / f"nccl_trace_rank_{rank}").write_bytes(data)


def logs_of(rng: random.Random, root: Path, number: int) -> None:
    (root / f"rank_{number % 4}.log").write_bytes(words(rng, 3000))
    (root / "dmesg.txt").write_bytes(words(rng))


def incident_of(rng: random.Random, root: Path, number: int) -> None:
    node = root / "nodes" / rng.choice(("gpu-a", "\x1b[31m", "..a", "x" * 200))
    node.mkdir(parents=True)
    (root / "incident.json").write_bytes(_json(rng, "hangscope.incident/1"))
    (root / "run.json").write_bytes(_json(rng, "hangscope.run/1"))
    (root / "stall.json").write_bytes(_json(rng, "x"))
    (node / "node.json").write_bytes(_json(rng, "hangscope.node/1"))
    (node / "status.json").write_bytes(_json(rng, "hangscope.status/1"))
    (root / "redaction.json").write_bytes(_json(rng, "hangscope.redaction/1"))
    if number % 2:
        dumps_of(rng, node, number)


def tree_of(rng: random.Random, root: Path, number: int) -> None:
    """Links, loops, pipes, sockets, devices, clashes of case, depth, and names that no terminal should see."""
    (root / "rank_0.log").write_bytes(b"gpu-a017:1:1 [0] NCCL INFO x\n")
    for index in range(rng.randrange(1, 12)):
        place = root
        for _ in range(rng.randrange(4)):
            place = place / rng.choice(
                ("Llama", "llama", "LLAMA", "a b", "ü", "é", "-rf", "x" * 120, "con", "a:b", "\x1b[2J")
            )
        place.mkdir(parents=True, exist_ok=True)
        name = rng.choice(
            (f"rank_{index}.log", f"Rank_{index}.log", f"nccl_trace_rank_{index}", "\udcff.log", "y" * 200)
        )
        path = place / name
        with contextlib.suppress(OSError):
            _one_thing(rng, path, root)
    if number % 50 == 0:
        deep = root
        with contextlib.suppress(OSError):
            for _ in range(150):
                deep = deep / "d"
                deep.mkdir()


def _one_thing(rng: random.Random, path: Path, root: Path) -> None:
    pick = rng.randrange(9)
    if os.path.lexists(path):
        return
    if pick == 0:
        os.mkfifo(path)
    elif pick == 1:
        path.symlink_to(rng.choice(("/etc/passwd", "/dev/zero", "/", str(path), "..", str(root), "/nonexistent")))
    elif pick == 2:
        with socket.socket(socket.AF_UNIX) as listening:
            os.chdir(path.parent)
            listening.bind(path.name[:100])
    elif pick == 3 and os.geteuid() == 0:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    elif pick == 4:
        path.mkdir(exist_ok=True)
        os.chmod(path, 0)
    else:
        path.write_bytes(words(rng))


def bundle_of(rng: random.Random, root: Path, number: int) -> None:
    """A bundle, cut or with bytes changed."""
    data = bytearray(_good_bundle())
    for _ in range(rng.randrange(4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    if number % 3 == 0:
        del data[rng.randrange(len(data)) :]
    (root / "x.tar.gz").write_bytes(bytes(data))


_bundle: list[bytes] = []


def _good_bundle() -> bytes:
    if not _bundle:
        with tempfile.TemporaryDirectory() as folder:
            _bundle.append(write_bundle(CASES / "skipped", Path(folder) / "x.tar.gz").path.read_bytes())
    return _bundle[0]


def json_of(rng: random.Random, root: Path, number: int) -> None:
    """JSON that is small on disk and large in memory, or deep, or of endless numbers, under the names that are read."""
    name = ("x.json", "incident.json", "node.json", "nccl_trace_rank_0.json", "ras.json", "run.json")[number % 6]
    front = rng.choice(("", '{"schema": "hangscope.incident/1", "x": ', '{"pg_config": {}, "entries": ', '{"ranks": '))
    piece = rng.choice(("[],", "{},", '{"rank": 1},', '"",', "1e5,", "NaN,", "[", '{"a":', "9" * 50, "\\u2028"))
    (root / name).write_text(front + "[" + piece * rng.choice((10, 5_000, 300_000)))
    (root / "rank_0.log").write_bytes(words(rng))


def crowd_of(rng: random.Random, root: Path, number: int) -> None:
    """More files than are taken unseen, in one of the shapes of tests/kits/crowds.py."""
    crowds.SHAPES[sorted(crowds.SHAPES)[number % len(crowds.SHAPES)]](str(root / "crowd"), rng.choice((50, 3000)))


MAKERS: tuple[tuple[float, Callable[[random.Random, Path, int], None]], ...] = (
    (3, dumps_of),
    (4, logs_of),
    (5, incident_of),
    (5, tree_of),
    (2, bundle_of),
    (1, json_of),
    (0.2, crowd_of),
)


# ---- what is asked ---------------------------------------------------------------------------------------------------


def _verbs(root: Path, out: Path, single: Path | None) -> list[list[str]]:
    given = str(single or root)
    verbs = [
        ["diagnose", given],
        ["diagnose", given, "--json"],
        ["show", given],
        ["report", given, "-o", f"{out}/r.md"],
        ["report", given, "-o", f"{out}/r.json"],
        ["report", given, "-o", f"{out}/r.html", "-o", f"{out}/r.perfetto-trace"],
        ["report", given, "-o", f"{out}/r.txt", "-v"],
        ["bundle", given, "-o", f"{out}/b.tar.gz"],
        ["bundle", given, "-o", f"{out}/b.tar.gz", "--only-evidence"],
        ["watch", str(root), "--once"],
        ["bundle", given, "-o", f"{out}/b.tar.gz", "--pseudonymise"],
        ["collect", "--from", given, "-o", f"{out}/c"],
        ["bundle", given, "-o", f"{out}/b.tar.gz", "--no-redact", "--max-size", "20kB"],
        ["snapshot", str(root)],
        ["collect", "--hostfile", given, "-o", f"{out}/c"],
    ]
    if single is not None:
        verbs += [["bundle", given, "--verify"], ["bundle", given, "--unpack", f"{out}/u"]] * 3
    return verbs


_VALUES = (
    "",
    "0",
    "-1",
    "1",
    "9" * 400,
    "1e9",
    "nan",
    "true",
    "\x1b[2J",
    "a\nb",
    "../../x",
    "/dev/zero",
    "/nonexistent",
    "$(touch x)",
    "'; touch x; '",
    "%h.%p%%",
    "é" * 300,
    "\udcff",
    "dgx[001-999]",
    "2.8",
    "2.13.0a0+git",
    "nccl,gloo",
    "cpu:gloo,cuda:nccl",
)
_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_ERROR_FILE",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_PROFILER_PLUGIN",
    "NCCL_RAS_ADDR",
    "HANGSCOPE_DIR",
    "HANGSCOPE_BLACKBOX_DIR",
    "HANGSCOPE_BLACKBOX_BYTES",
    "HOSTNAME",
    "USER",
    "HOME",
    "XDG_CACHE_HOME",
    "CUDA_VISIBLE_DEVICES",
    "COLUMNS",
    "TERM",
)


def _of_settings(rng: random.Random, root: Path, out: Path, number: int) -> list[str]:
    """`doctor`, `env` and `simulate`, with options that nobody means well."""

    def some() -> str:
        return rng.choice((*_VALUES, str(root), str(root / "rank_0.log"))).replace("\0", "")

    verb = ("doctor", "simulate", "env", "doctor", "env")[number // 8 % 5]
    if verb == "simulate":
        asked = ["simulate", "-o", rng.choice((f"{out}/s", str(root), "/dev/null/x")), "--ranks", rng.choice("1248")]
        options = ("--layout", "--variant", "--culprit", "--entries", "--steps", "--clock-skew-ms", "--gpus-per-node")
        fault = rng.choice(("none", "absent", "dead", "frozen", "gpu", "mismatch", "deadlock", "network", "slow"))
        asked += ["--fault", fault, "--seed", str(rng.randrange(99))]
        few = ("-1", "0", "1", "7", "x", "nan", "dp=9,tp=0", "tp=2", "99999999999999999999", "skipped", "1,1,1")
        return [
            *asked,
            *(word for option in rng.sample(options, rng.randrange(3)) for word in (option, rng.choice(few))),
        ]
    options = ("--torch", "--backend", "--dir")
    asked = [verb]
    if verb == "env":
        options += ("--job", "--attempt", "--node", "--entries")
        asked += ["--format", rng.choice(("shell", "docker", "kubernetes", "slurm", "torchrun"))]
    elif rng.random() < 0.5:
        asked.append("--json")
    else:
        options += ("--world-size", "--python")
    return [*asked, *(word for option in rng.sample(options, rng.randrange(3)) for word in (option, some()))]


def _environment(rng: random.Random, root: Path) -> dict[str, str]:
    chosen = rng.sample(_VARIABLES, rng.randrange(8))
    return {name: rng.choice((*_VALUES, str(root), str(root / "rank_0.log"))) for name in chosen}


def _started(rng: random.Random, root: Path, out: Path, verb: str) -> tuple[str, str]:
    """`run` in a directory that others filled, and `demo` beside a torch that is none: in processes of their own."""
    fake = out / "fake"
    (fake / "torch").mkdir(parents=True)
    broken = ("raise ImportError('x')", "import os; os._exit(3)", "def", "raise SystemExit(0)", "__version__ = 5")
    (fake / "torch" / "__init__.py").write_text(rng.choice(broken))
    words_of = (
        ["demo", "--dir", str(root)] if verb == "demo" else ["run", "--dir", str(root), "--", "sh", "-c", "exit 7"]
    )
    source = str(Path(hangscope.__file__).parents[1])
    environment = {**os.environ, **_environment(rng, root), "PYTHONPATH": f"{fake}:{source}", "TMPDIR": str(out)}
    environment = {name: value for name, value in environment.items() if "\0" not in value}
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hangscope", *words_of], env=environment, capture_output=True, timeout=120, cwd=out
        )
    except subprocess.TimeoutExpired:
        return verb, "did not come back within 120 s"
    said = (done.stdout + done.stderr).decode("utf-8", "replace")
    if done.returncode == INTERNAL_ERROR or "mistake in hangscope" in said or "hangscope/recorder" in said:
        return verb, f"traceback: {said[-1500:]}"
    if verb == "run" and done.returncode not in (7, 2):
        return verb, f"status {done.returncode} after {time.monotonic() - begun:.0f} s: {said[-500:]}"
    return verb, ""


class Watch:
    """Sees every file that is opened for writing, and where it lies."""

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] = ()
        self.outside: list[str] = []
        sys.addaudithook(self._see)

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.allowed or event not in ("open", "os.mkdir", "os.rename", "os.symlink", "os.link"):
            return
        if event == "open":
            path, _, flags = arguments
            writing = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writing and (flags & os.O_TMPFILE == os.O_TMPFILE or os.path.isdir(path)):
                return  # a file without a name, to see whether a directory can be written: it leaves nothing
            if not writing or not isinstance(path, (str, bytes, os.PathLike)):
                return
        else:
            path = arguments[1] if event in ("os.rename", "os.symlink", "os.link") else arguments[0]
        text = os.fsdecode(path)
        # A name without a directory is below a handle, which was opened without following a link.
        if "/" in text and not os.path.realpath(os.path.dirname(text)).startswith(
            (*self.allowed, "/dev", "/proc/self")
        ):
            self.outside.append(text)


slowest = [(0.0, "")]


def one(seed: int, number: int, base: Path, watch: Watch) -> tuple[str, str]:
    """Make one input, ask one verb about it. Gives (verb, what is wrong, or nothing)."""
    rng = random.Random(f"{seed}/{number}")
    root, out = base / "in", base / "out"
    for folder in (root, out, base / "tmp"):
        folder.mkdir()
    tempfile.tempdir = str(base / "tmp")
    maker = rng.choices([make for _, make in MAKERS], [weight for weight, _ in MAKERS])[0]
    maker(rng, root, number)
    os.chdir(out)
    if number % 10 == 9:
        verb, problem = _node(rng, root, out)
        return f"{verb} {maker.__name__}", problem
    if number % 200 in (7, 47):
        verb, problem = _started(rng, root, out, "run" if number % 200 == 7 else "demo")
        return f"{verb} {maker.__name__}", f"{verb}: {problem}" if problem else ""
    single = root / "x.tar.gz" if maker is bundle_of else None
    of_settings = number % 8 == 3
    words_of = _of_settings(rng, root, out, number) if of_settings else rng.choice(_verbs(root, out, single))
    written = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    before = dict(os.environ)
    if of_settings:
        os.environ.update(_environment(rng, root))
    watch.allowed, watch.outside = (str(base),), []
    begun = os.times()
    try:
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
            status = main(words_of)
    finally:
        os.environ.clear()
        os.environ.update(before)
    spent = sum(os.times()[:4]) - sum(begun[:4])
    slowest[0] = max(slowest[0], (spent, f"{words_of[0]} {maker.__name__} {seed}/{number}"))
    watch.allowed = ()
    problem = ""
    written.flush()
    said = written.detach().getvalue().decode("utf-8", "replace")
    if status == INTERNAL_ERROR or ("Traceback (most" in said and "mistake in hangscope" in said):
        problem = f"traceback: {said[-1500:]}"
    elif spent > SECONDS:
        problem = f"took {spent:.1f} s"
    elif watch.outside:
        problem = f"wrote outside: {watch.outside[:3]}"
    elif "\x1b" in said and words_of[0] != "env":  # which gives a shell the directory as it is
        problem = f"an escape reached the terminal: {said[:300]!r}"
    elif words_of[0] == "bundle" and maker is tree_of and status == 0:
        problem = _unnamed(root, out)
    return f"{words_of[0]} {maker.__name__}", f"{' '.join(words_of)}: {problem}" if problem else ""


def _unnamed(root: Path, out: Path) -> str:
    """What a bundle skipped without a word."""
    import tarfile

    with tarfile.open(out / "b.tar.gz") as bundle:
        (name,) = [name for name in bundle.getnames() if name.endswith("/incident.json") and name.count("/") == 1]
        stream = bundle.extractfile(name)
        assert stream is not None
        said = len(json.loads(stream.read())["gaps"])
    return f"{len(survey(root).skipped)} things skipped, {said} said" if said < len(survey(root).skipped) else ""


def _node(rng: random.Random, root: Path, out: Path) -> tuple[str, str]:
    """A node that answers with nonsense: `cat` of a listing and of whatever the input was."""
    paths = ["/x/nccl_trace_rank_0", "/../../y", "/A/b", "/a/B", "/" + "z" * 3000, "/\x1b[2J", "rel/x", "/x/y\udcff"]
    rows = [
        f"{rng.choice('GDIS?')} {rng.choice(('5', '-', '9' * 30, '-1', 'x'))} {rng.choice(('5', '-', '9' * 30))} - {p}"
        for p in rng.choices(paths, k=rng.randrange(9))
    ]
    answer = f"{remote_script.BEGIN}\n" + "\n".join(rows) + f"\n{remote_script.END}\n"
    data = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    (root.parent / "answer").write_bytes(answer.encode("utf-8", "surrogateescape") + data[:1_000_000])
    begun = time.process_time()
    try:
        collect(
            out / "c",
            [Node("n", ("cat", str(root.parent / "answer")))],
            options=CollectOptions(deadline_s=5, retries=0),
        )
    except HangscopeError:
        pass
    except Exception as error:
        return "node", f"{type(error).__name__}: {error} for {rows}"
    outside = [str(path) for path in root.parent.iterdir() if path.name not in ("in", "out", "tmp", "answer")]
    slow = time.process_time() - begun > SECONDS
    return "node", f"wrote {outside}" if outside else "took too long" if slow else ""


def run(seed: int, first: int, count: int) -> dict[str, Any]:
    """Some inputs in this process."""
    watch = Watch()
    snapshot_job.AGENTS_S = 0.1  # a status that lies about living agents would be waited for
    failures: list[str] = []
    verbs: Counter[str] = Counter()
    here = os.getcwd()
    for number in range(first, first + count):
        tempfile.tempdir = None
        base = Path(tempfile.mkdtemp(prefix="hostile-"))
        try:
            verb, problem = one(seed, number, base, watch)
            verbs[verb] += 1
            if problem:
                failures.append(f"{seed}/{number} {problem}")
        finally:
            os.chdir(here)
            tempfile.tempdir = None
            for folder, names, _ in os.walk(base):
                for name in names:
                    if not os.path.islink(os.path.join(folder, name)):  # a link may lead to the real root
                        os.chmod(os.path.join(folder, name), 0o700)
            shutil.rmtree(base, ignore_errors=True)
    peak = fuzz_reader.peak_kb() / 1024
    if peak > MEGABYTES:
        failures.append(f"{seed}/{first}…: {peak:.0f} MB")
    return {"failures": failures, "verbs": dict(verbs), "megabytes": peak, "slowest": slowest[0]}


def _by_verb(total: Counter[str]) -> Counter[str]:
    verbs: Counter[str] = Counter()
    for name, count in total.items():
        verbs[name.partition(" ")[0]] += count
    return verbs


def main_program() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=20261115)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--inner", action="store_true")
    asked = parser.parse_args()
    if asked.inner:
        print(json.dumps(run(asked.seed, asked.first, asked.count)))
        return 0
    total: Counter[str] = Counter()
    failures: list[str] = []
    peak = 0.0
    worst = (0.0, "")
    for first in range(asked.first, asked.first + asked.count, asked.batch):
        size = min(asked.batch, asked.first + asked.count - first)
        words_of = [sys.executable, __file__, "--inner", "--seed", str(asked.seed), "--first", str(first)]
        done = subprocess.run([*words_of, "--count", str(size)], capture_output=True, text=True)
        if done.returncode != 0:
            failures.append(f"batch {first}: {done.stderr[-2000:]}")
            continue
        result = json.loads(done.stdout.splitlines()[-1])
        total.update(result["verbs"])
        failures += result["failures"]
        print("\n".join(result["failures"]), end="\n" if result["failures"] else "", file=sys.stderr)
        peak = max(peak, result["megabytes"])
        worst = max(worst, (result["slowest"][0], result["slowest"][1]))
        print(f"{first + size} inputs, {len(failures)} failures, {peak:.0f} MB", file=sys.stderr)
    print("\n".join(failures[:50]))
    print(f"{sum(total.values())} inputs over {len(total)} kinds of question, {len(failures)} failures, {peak:.0f} MB")
    print(f"slowest: {worst[0]:.2f} s of CPU, {worst[1]}")
    print(", ".join(f"{verb} {count}" for verb, count in sorted(_by_verb(total).items())))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main_program())
