"""Hostile inputs over every verb: files, trees, neighbours, bundles and nodes that nobody should have to trust.

``python tests/hostile_verbs.py --count 20000`` runs the whole; the tests run a sample. An input is made from a seed and
a number alone. A failure is a traceback, more than 5 s or 500 MB, a write outside, or something skipped without a word.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
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

import hostile
from hangscope.cli.main import INTERNAL_ERROR, main
from hangscope.errors import HangscopeError
from hangscope.incident.bundle import write_bundle
from hangscope.incident.collect import collect, shell
from hangscope.incident.collect.gather import Limits
from hangscope.incident.collect.remote import Node
from hangscope.incident.layout import survey
from hangscope.recorder import snapshot

SECONDS = 5.0
MEGABYTES = 500
CASES = Path(__file__).parent / "cases"
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
        _, data = hostile.make(number, rank + number * 3)
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


MAKERS: tuple[tuple[int, Callable[[random.Random, Path, int], None]], ...] = (
    (3, dumps_of),
    (4, logs_of),
    (5, incident_of),
    (5, tree_of),
    (2, bundle_of),
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
    single = root / "x.tar.gz" if maker is bundle_of else None
    words_of = rng.choice(_verbs(root, out, single))
    said = io.StringIO()
    watch.allowed, watch.outside = (str(base),), []
    begun = time.process_time()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(words_of)
    spent = time.process_time() - begun
    watch.allowed = ()
    problem = ""
    if status == INTERNAL_ERROR or ("Traceback (most" in said.getvalue() and "mistake in hangscope" in said.getvalue()):
        problem = f"traceback: {said.getvalue()[-1500:]}"
    elif spent > SECONDS:
        problem = f"took {spent:.1f} s"
    elif watch.outside:
        problem = f"wrote outside: {watch.outside[:3]}"
    elif words_of[0] in ("watch", "diagnose", "show", "bundle", "collect") and "\x1b" in said.getvalue():
        problem = f"an escape reached the terminal: {said.getvalue()[:300]!r}"
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
    answer = f"{shell.BEGIN}\n" + "\n".join(rows) + f"\n{shell.END}\n"
    data = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    (root.parent / "answer").write_bytes(answer.encode("utf-8", "surrogateescape") + data[:1_000_000])
    begun = time.process_time()
    try:
        collect(out / "c", [Node("n", ("cat", str(root.parent / "answer")))], limits=Limits(deadline_s=5, retries=0))
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
    snapshot.AGENTS_S = 0.1  # a status that lies about living agents would be waited for
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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if peak > MEGABYTES:
        failures.append(f"{seed}/{first}…: {peak:.0f} MB")
    return {"failures": failures, "verbs": dict(verbs), "megabytes": peak}


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
        peak = max(peak, result["megabytes"])
        print(f"{first + size} inputs, {len(failures)} failures, {peak:.0f} MB", file=sys.stderr)
    print("\n".join(failures[:50]))
    print(f"{sum(total.values())} inputs over {len(total)} kinds of question, {len(failures)} failures, {peak:.0f} MB")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main_program())
