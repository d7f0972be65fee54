"""`collect` from nodes that lie, stall and flood, ended at any moment: one node's nonsense costs that node's part."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hangscope.cli.main import main
from hangscope.errors import CollectError, SettingsError
from hangscope.incident.collect import collect, job_nodes, pods
from hangscope.incident.collect.directories import Directory
from hangscope.incident.collect.gather import CollectOptions
from hangscope.incident.collect.remote_node import Node

QUICK = CollectOptions(deadline_s=20, retries=0)
SERVER = """
import io, json, re, sys, tarfile, time
script = sys.stdin.read()
files = json.load(open(sys.argv[1]))
out = sys.stdout.buffer
out.write(b"HANGSCOPE-BEGIN\\n")
groups = re.findall(r"^give (\\d+) '([^']*)'(.*)$", script, re.M)
if not groups:
    for path, (size, mtime, _) in files.items():
        out.write(f"I {size} {mtime} - {path}\\n".encode())
    out.write(b"HANGSCOPE-END\\n")
    sys.exit()
for number, folder, names in groups:
    out.write(f"\\nHANGSCOPE-TAR {number}\\n".encode())
    tar = tarfile.open(fileobj=out, mode="w|")
    for path, (size, mtime, text) in files.items():
        above, _, name = path[1:].rpartition("/")
        if above == folder and f"'./{name}'" in names:
            data = text.encode()
            info = tarfile.TarInfo(f"./{name}")
            info.size, info.mtime = len(data), mtime
            tar.addfile(info, io.BytesIO(data))
    tar.close()
"""


def serving(folder: Path, name: str, files: dict[str, str], mtime: int | None = None) -> Node:
    """A node that lists these files, and gives them."""
    (folder / "server.py").write_text(SERVER)
    at = int(time.time()) - 100 if mtime is None else mtime
    described = {path: (len(text.encode()), at, text) for path, text in files.items()}
    (folder / f"{name}.files").write_text(json.dumps(described))
    return Node(name, (sys.executable, str(folder / "server.py"), str(folder / f"{name}.files")))


def saying(folder: Path, name: str, code: str) -> Node:
    """A node that answers every script by this code, after the mark."""
    (folder / f"{name}.py").write_text(
        "import sys, time\nscript = sys.stdin.read()\nlists = 'give 0 ' not in script\n"
        f"out = sys.stdout.buffer\nout.write(b'HANGSCOPE-BEGIN\\n')\n{code}\n"
    )
    return Node(name, (sys.executable, str(folder / f"{name}.py")))


def part(node: str, job: str, **more: object) -> dict[str, str]:
    root = f"/work/hangscope/{job}/0"
    described = {"schema": "hangscope.incident/1", "job": job, "attempt": "0", "captured_at": "2026-01-01T00:00:00Z"}
    return {
        f"{root}/incident.json": json.dumps({**described, **more}),
        f"{root}/nodes/{node}/node.json": json.dumps({"node": node, "job": job, "attempt": "0"}),
        f"{root}/nodes/{node}/dumps/nccl_trace_rank_0": f"dump of {node}",
    }


# ---- one node against the others -------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ("9999-12-31T23:59:59Z", "zzzz", "\u202e", "99999-01-01", "3000-01-01T00:00:00+00:00"))
def test_one_node_does_not_choose_the_incident(at: str, tmp_path: Path) -> None:
    """A node that dates its own incident into the future does not make everybody else's the older one, and is named."""
    nodes = [serving(tmp_path, name, part(name, "48121")) for name in ("a", "b")]
    nodes.append(serving(tmp_path, "evil", part("evil", "evil", captured_at=at)))
    found = collect(tmp_path / "out", nodes, options=QUICK)
    assert found.manifest.job == "48121"
    assert (tmp_path / "out/nodes/a/dumps/nccl_trace_rank_0").read_text() == "dump of a"
    assert any(gap.node == "evil" and "captur" in gap.why for gap in found.manifest.gaps)


@pytest.mark.parametrize("attempt", ("²", "9" * 5000, "-1", "x\x1b"))
def test_an_attempt_that_is_no_number_breaks_nothing(attempt: str, tmp_path: Path) -> None:
    """Attempts are compared as numbers only where they are some."""
    nodes = [serving(tmp_path, "a", part("a", "j")), serving(tmp_path, "b", part("b", "j", attempt=attempt))]
    assert collect(tmp_path / "out", nodes, options=QUICK).manifest.attempt == "0"


@pytest.mark.parametrize("mtime", (10**18, 2**62, -5, 0))
def test_a_time_that_cannot_be_costs_nothing(mtime: int, tmp_path: Path) -> None:
    """A file whose time no disk can hold is taken, without that time; the others are as they were."""
    nodes = [serving(tmp_path, "a", part("a", "j")), serving(tmp_path, "b", part("b", "j"), mtime)]
    found = collect(tmp_path / "out", nodes, options=QUICK)
    assert found.complete
    for name in ("a", "b"):
        assert (tmp_path / f"out/nodes/{name}/dumps/nccl_trace_rank_0").read_text() == f"dump of {name}"


def test_a_node_speaks_for_its_own_part(tmp_path: Path) -> None:
    """A node that lists another's files, newer than that one's own, does not replace them."""
    forged = {**part("b", "j"), **{name: text.replace("dump of a", "forged") for name, text in part("a", "j").items()}}
    for order in (0, 1):
        nodes = [serving(tmp_path, "a", part("a", "j")), serving(tmp_path, "b", forged, int(time.time()))]
        collect(tmp_path / f"out{order}", nodes[::-1] if order else nodes, options=QUICK)
        assert (tmp_path / f"out{order}/nodes/a/dumps/nccl_trace_rank_0").read_text() == "dump of a"
        assert (tmp_path / f"out{order}/nodes/b/dumps/nccl_trace_rank_0").read_text() == "dump of b"


def test_a_node_speaks_for_no_other(tmp_path: Path) -> None:
    """A part of another node is left out and named: of one that was asked, of one that gave nothing, of one unknown."""
    lies = {
        f"/work/hangscope/48121/0/nodes/{name}/logs/rank_9.log": f"lies about {name}" for name in ("a", "b", "stranger")
    }
    nodes = [
        serving(tmp_path, "a", part("a", "48121")),
        Node("b", ("false",)),
        serving(tmp_path, "evil", {**part("evil", "48121"), **lies}, mtime=int(time.time())),
    ]
    found = collect(tmp_path / "out", nodes, options=QUICK)
    text = "".join(path.read_text() for path in (tmp_path / "out/nodes").rglob("*") if path.is_file())
    assert "lies" not in text
    assert "dump of evil" in text
    whats = {gap.what for gap in found.manifest.gaps if gap.node == "evil"}
    assert {"1 files of nodes/a", "1 files of nodes/b", "1 files of nodes/stranger"} <= whats


def test_nodes_that_share_a_directory_bring_the_part_of_one_that_is_gone(tmp_path: Path) -> None:
    """What two of them list alike is taken, and of nodes with a domain, an address or several agents their own part."""
    both = {**part("a", "48121"), **part("b", "48121"), **part("gone", "48121"), **part("a-2", "48121")}
    at = int(time.time()) - 50
    nodes = [serving(tmp_path, name, both, mtime=at) for name in ("a.cluster.local", "b")]
    nodes.append(serving(tmp_path, "10.0.0.7", part("worker-7", "48121")))
    collect(tmp_path / "out", nodes, options=QUICK)
    for name in ("a", "a-2", "b", "gone", "worker-7"):
        assert (tmp_path / f"out/nodes/{name}/dumps/nccl_trace_rank_0").read_text() == f"dump of {name}"


HERE = ("/bin/sh", "-s")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user beside")
@pytest.mark.parametrize("what", ["shared/mal", "shared/mal/logs", "shared/mal/logs/rank_0.log"])
def test_a_swap_between_listing_and_sending_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """On a node, too: a folder or file that was listed is a link by the time it is asked for."""
    for place in ("shared/mal/logs", "root/logs"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "shared/mal/logs/rank_0.log").write_text("RuntimeError: theirs")
    (tmp_path / "shared/mal/logs/rank_1.log").write_text("RuntimeError: theirs")
    for place in ("root/logs/rank_0.log", "root/rank_0.log", "root/logs/rank_1.log", "root/rank_1.log"):
        (tmp_path / place).write_text("RuntimeError: secret-of-root")
    node = Node("n", HERE, (f"{tmp_path}/shared/mal",), defaults=False)
    real = Node.fetch

    def swapped(self: Node, *args: Any) -> None:
        if not (tmp_path / what).is_symlink():
            (tmp_path / what).rename(tmp_path / "moved")
            target = "root/logs/rank_0.log" if what.endswith(".log") else f"root/{'logs' if 'logs' in what else ''}"
            (tmp_path / what).symlink_to(tmp_path / target)
            os.chown(tmp_path / what, 12345, 12345, follow_symlinks=False)
        real(self, *args)

    monkeypatch.setattr(Node, "fetch", swapped)
    with suppress(CollectError):
        collect(tmp_path / "out", [node], options=QUICK)
    text = "".join(path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert "secret-of-root" not in text


def test_links_of_ours_on_the_way_are_gone_along(tmp_path: Path) -> None:
    """A home that is a link, as on many clusters, and names that a shell takes for something else."""
    odd = tmp_path / "real" / "-a b'c$(x)"
    odd.mkdir(parents=True)
    for name in ("-rf.log", "*.log", "x y.log"):
        (odd / name).write_text(f"RuntimeError: {name}")
    (tmp_path / "home").symlink_to(tmp_path / "real")
    found = collect(tmp_path / "out", [Node("n", HERE, (f"{tmp_path}/home",), defaults=False)], options=QUICK)
    assert found.complete
    assert found.nodes[0].fetched == 3


def test_a_flood_of_complaints_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node's command says on stderr is read as it comes, and only its end is kept, for the message."""
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda *_, **__: pytest.fail("it went to the disk"))
    flood = "for _ in range(400): sys.stderr.write('x' * 65536 + '\\n')\nsys.stderr.write('the last words\\n')"
    good = serving(tmp_path, "good", part("good", "48121"))
    evil = Node("evil", (sys.executable, "-c", f"import sys\n{flood}\nsys.exit(3)"))
    found = collect(tmp_path / "out", [good, evil], options=QUICK)
    problem = next(node.problem for node in found.nodes if node.name == "evil")
    assert problem is not None
    assert "the last words" in problem
    assert len(problem) < 2100


def test_paths_that_are_too_deep_cost_no_time(tmp_path: Path) -> None:
    """A node that lists twenty thousand of nineteen hundred levels each: they are left out, and named."""
    path = "/" + "d/" * 1900
    lists = f"[out.write(b'G 1 1 - {path}%d.log\\n' % n) for n in range(8000)]; out.write(b'HANGSCOPE-END\\n')"
    evil = saying(tmp_path, "evil", f"if lists: {lists}")
    begun = time.process_time()
    found = collect(tmp_path / "out", [serving(tmp_path, "good", part("good", "48121")), evil], options=QUICK)
    assert time.process_time() - begun < 5
    assert any("levels down" in gap.why for gap in found.manifest.gaps)


def test_a_name_is_shortened_below_whose_it_is(tmp_path: Path) -> None:
    """A path so long that its beginning would be cut off stays with the node that sent it."""
    long = "/".join(["nodes/a/logs", *["d" * 100] * 14, "nodes", "innocent", "logs", "rank_3.log"])
    deep = "/".join(["nodes/evil/logs", *["d"] * 80, "nodes", "innocent", "logs", "rank_4.log"])
    files = {f"/work/hangscope/48121/0/{name}": "lies" for name in (long.replace("/a/", "/evil/", 1), deep)}
    node = serving(tmp_path, "evil", {**part("evil", "48121"), **files})
    plain = serving(tmp_path, "other", {f"/tmp/{long}": "RuntimeError: lies", "/tmp/nccl_trace_rank_0": "d"})
    collect(tmp_path / "out", [node, plain], options=QUICK)
    assert sorted(os.listdir(tmp_path / "out/nodes")) in (["evil"], ["evil", "other"])
    assert len([path for path in (tmp_path / "out/nodes/evil").rglob("*.log") if path.is_file()]) == 2


@pytest.mark.parametrize("raw", (b"{broken", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"schema": "other/1"}'))
def test_a_broken_manifest_is_named(raw: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An incident.json that cannot be used costs what it would have said, and is said; the evidence beside it comes."""
    (tmp_path / "in/nodes/a/dumps").mkdir(parents=True)
    (tmp_path / "in/incident.json").write_bytes(raw)
    (tmp_path / "in/nodes/a/dumps/nccl_trace_rank_0").write_text("dump")
    assert main(["collect", "--from", str(tmp_path / "in"), "-o", str(tmp_path / "out")]) in (0, 1)
    assert (tmp_path / "out/nodes/a/dumps/nccl_trace_rank_0").read_text() == "dump"
    gaps = json.loads((tmp_path / "out/incident.json").read_text())["gaps"]
    assert any(gap["what"] == "incident.json" and "cannot be used" in gap["why"] for gap in gaps)
    assert "incident.json" in capsys.readouterr().err


FLOODS = {
    "roots": "[out.write(b'I 5 5 - /r/%d/incident.json\\n' % n) for n in range(60000)] if lists else 0;"
    "out.write(b'HANGSCOPE-END\\n')",
    "entries": "[out.write(b'G 5 5 - /x/%d/nccl_trace_rank_0\\n' % n) for n in range(1500000)] if lists else 0;"
    "out.write(b'HANGSCOPE-END\\n')",
    "skipped": "[out.write(b'S /x/%d: a link\\n' % n) for n in range(2000000)] if lists else 0;"
    "out.write(b'HANGSCOPE-END\\n')",
    "endless": "while True: out.write(b'G 5 5 - /x/y\\n' * 1000)",
    "one line": "while True: out.write(b'x' * 100000)",
    "drip": "out.flush()\nwhile True: out.write(b'x'); out.flush(); time.sleep(0.1)",
    "nuls": "out.write(b'G 5 5 - /x\\0/rank_0.log\\nG 5 5 - \\0\\nHANGSCOPE-END\\n')",
    "nothing": "time.sleep(600)",
    "manifests": "out.write(b'G 9 5 - /r/incident.json\\nHANGSCOPE-END\\n') if lists else"
    " [out.write(b) for b in __import__('itertools').repeat(bytes(1 << 20))]",
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_is_cut_off(kind: str, tmp_path: Path) -> None:
    """A list without end, a million files, a byte at a time: it costs that node, seconds and megabytes."""
    (tmp_path / "good").mkdir()
    (tmp_path / "good/nccl_trace_rank_1").write_text("dump")
    sources = [Directory(tmp_path / "good"), saying(tmp_path, "evil", FLOODS[kind])]
    before, used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    begun = time.monotonic()
    found = collect(tmp_path / "out", sources, options=CollectOptions(deadline_s=4, retries=0))
    assert time.monotonic() - begun < 30
    assert time.process_time() - used < 6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10
    assert (tmp_path / "out/files/good/nccl_trace_rank_1").read_text() == "dump"
    assert any("evil" in (gap.node or "") + gap.what for gap in found.manifest.gaps)


# ---- hosts -----------------------------------------------------------------------------------------------------------

BAD_HOSTS = (
    "-oProxyCommand=touch owned", "-oProxyCommand=x", "a -oProxyCommand=x", "u@-oProxyCommand=x", "a;b", "a\nb\0",
    "$(x)",
    "`x`", "a|b", "a/../b", "\x1b[2J", "\u202e", "a[0-99999][0-99999]", "a[0-9][0-9][0-9][0-9][0-9][0-9][0-9]",
    "a[1-²]", "a[5-99999999999999999999]", "x" * 400, "[" * 5000,
)  # fmt: skip


@pytest.mark.parametrize("host", BAD_HOSTS, ids=range(len(BAD_HOSTS)))
@pytest.mark.parametrize("way", ("hosts", "hostfile"))
def test_a_host_is_a_name_and_nothing_else(
    host: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options, commands and ranges without end in the place of a host are refused in words, before anything starts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text(host)
    given = ["--hosts", host] if way == "hosts" else ["--hostfile", "file"]
    used = time.process_time()
    status = main(["collect", "-o", "out", "--ssh", "false", "--retries", "0", *given])
    assert status == 2
    assert time.process_time() - used < 3
    assert not (tmp_path / "owned").exists()
    assert capsys.readouterr().err.replace("\n", "").isprintable()


def test_ten_thousand_hosts_are_read_at_once() -> None:
    """A long list is read in the time of its length, in every form."""
    names = [f"gpu-a{number:05d}" for number in range(50_000)]
    used = time.process_time()
    assert job_nodes.hosts_of(",".join(names)) == names
    assert job_nodes.hosts_of("gpu-a[00000-49999]") == names
    assert job_nodes.hosts_of("a[1,3-4]b, c d[1, 2]") == ["a1b", "a3b", "a4b", "c", "d1", "d2"]
    assert time.process_time() - used < 2


@pytest.mark.parametrize("name", ("--kubeconfig=/x", "-x", "a b", "../x", "\x1b[2J", ""))
def test_names_that_a_scheduler_gives_are_checked(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod or node of a name that kubectl or srun would take for an option is refused."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "answer").write_text(json.dumps({"items": [{"metadata": {"name": name}, "status": {"phase": "Running"}}]}))
    (tools / "names").write_text(f"{name}\n")
    (tools / "jobs").write_text(f"7|N/A|{name}\n")
    for tool, what in (("kubectl", "answer"), ("squeue", "jobs"), ("scontrol", "names")):
        (tools / tool).write_text(f"#!/bin/sh\ncat {tools}/{what}\n")
        (tools / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    with pytest.raises((CollectError, SettingsError)):
        pods.kubernetes("app=x")
    if name and " " not in name:
        with pytest.raises((CollectError, SettingsError)):
            job_nodes.slurm("7")


# ---- ended, again, together, full ------------------------------------------------------------------------------------


def _tree(place: Path, files: int, size: int) -> dict[str, bytes]:
    made = {f"d{n % 3}/nccl_trace_rank_{n}": os.urandom(size + n) for n in range(files)}
    for name, data in made.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return made


def _same(out: Path, made: dict[str, bytes], label: str) -> None:
    for name, data in made.items():
        assert (out / "files" / label / name).read_bytes() == data
    assert not list(out.rglob(".*.part"))
    assert json.loads((out / "incident.json").read_text())["files"].keys() == {f"files/{label}/{name}" for name in made}


def test_ended_at_any_moment_it_can_be_run_again(tmp_path: Path) -> None:
    """Twenty times ended at a random moment, by each signal; a last run brings everything, whole."""
    made = _tree(tmp_path / "in", 40, 200_000)
    chance = random.Random(7)
    code = "import sys, time; from hangscope.incident.collect import gather\n"
    code += "read = gather._read\ngather._read = lambda content: (time.sleep(0.01), read(content))[1]\n"
    code += "from hangscope.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["collect", "--from", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    for number in range(20):
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        time.sleep(chance.uniform(0.1, 1.2))
        process.send_signal((signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[number % 3])
        _, said = process.communicate(timeout=20)
        assert b"Traceback" not in said or b"KeyboardInterrupt" in said  # before Python has come to our code
    assert main(words) == 0
    _same(tmp_path / "out", made, "in")


def test_two_at_once_do_not_spoil_each_other(tmp_path: Path) -> None:
    """A second collect into a directory where one is at work says so; the first brings everything."""
    made = _tree(tmp_path / "in", 10, 1000)
    begun, go = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        begun.set()
        go.wait(20)

    first = threading.Thread(
        target=lambda: collect(tmp_path / "out", [Directory(tmp_path / "in")], options=QUICK, progress=wait)
    )
    first.start()
    assert begun.wait(10)
    words = [sys.executable, "-m", "hangscope", "collect", "--from", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    second = subprocess.run(words, capture_output=True, text=True, timeout=30)
    go.set()
    first.join(20)
    assert second.returncode == 2
    assert "another collect is writing to it" in second.stderr
    _same(tmp_path / "out", made, "in")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk")
def test_a_full_disk_is_said_and_goes_on_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the disk fills up, the error says so and no half file counts; with more room a second run completes it."""
    made = _tree(tmp_path / "in", 8, 300_000)
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        words = ["collect", "--from", str(tmp_path / "in"), "-o", str(disk / "out")]
        assert main(words) == 2
        assert "No space left" in capsys.readouterr().err
        assert not list(disk.rglob(".*.part"))
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert main(words) == 0
        _same(disk / "out", made, "in")
    finally:
        subprocess.run(["umount", str(disk)], check=False)
