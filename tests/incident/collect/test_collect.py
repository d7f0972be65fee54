"""Collecting: real sshd on loopback, stand-ins for srun, directories and stores; loss and resumption."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hangscope
from hangscope.cli.main import main
from hangscope.errors import CollectError, InputError, NotFoundError, SettingsError
from hangscope.incident import manifest
from hangscope.incident.collect import collect, job_nodes, remote_script
from hangscope.incident.collect.directories import Directory
from hangscope.incident.collect.gather import CollectOptions
from hangscope.incident.collect.object_stores import Store
from hangscope.incident.collect.remote_node import Node
from hangscope.incident.layout import write_json
from kits import sshd

CASES = Path(__file__).parents[2] / "cases"
QUICK = CollectOptions(deadline_s=20, retries=0)
NOW = int(time.time())


def _put(path: Path, data: bytes | str, *, age_s: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    os.utime(path, (NOW - age_s, NOW - age_s))
    return path


def _files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[sshd.Cluster]:
    if not sshd.HAS_SSHD:
        pytest.skip(sshd.REASON)
    base = tmp_path / "cluster"
    base.mkdir()
    made = sshd.Cluster(base, ("gpu-a", "gpu-b", "gpu-c", "gpu-d"))
    try:
        yield made
    finally:
        made.stop()


def _nodes(cluster: sshd.Cluster, *names: str, patterns: tuple[str, ...] = ()) -> list[Node]:
    return job_nodes.ssh(names or cluster.nodes, patterns=patterns, command=cluster.ssh)


# ---- ssh -------------------------------------------------------------------------------------------------------------


def test_everything_comes_despite_one_down_one_slow_one_that_drops(cluster: sshd.Cluster, tmp_path: Path) -> None:
    """The healthy node is complete, the others are gaps with their reasons, and a second run completes it."""
    big = os.urandom(60_000)
    for rank, node in enumerate(cluster.nodes.values()):
        for part in range(3):
            _put(node.home / f".cache/torch/comm_lib_trace_rank_{rank * 3 + part}", bytes([rank]) + big)
        _put(node.home / f"logs/rank_{rank}.log", f"hello from {node.name}\n")
    for name in ("gpu-a", "gpu-b", "gpu-c"):
        cluster.start(name)  # gpu-d is down
    cluster["gpu-b"].slow(60)
    cluster["gpu-c"].drops_after(100_000)
    out = tmp_path / "out"
    begun = time.monotonic()
    found = collect(out, _nodes(cluster, patterns=("~/logs/*.log",)), options=CollectOptions(deadline_s=4, retries=0))
    assert time.monotonic() - begun < 20
    assert not found.complete
    by_name = {result.name: result for result in found.nodes}
    assert (by_name["gpu-a"].fetched, by_name["gpu-a"].problem) == (4, None)
    assert by_name["gpu-b"].problem == "no answer within 4 s"
    assert "broke off" in str(by_name["gpu-c"].problem)
    assert 0 < by_name["gpu-c"].fetched < 4
    assert "refused" in str(by_name["gpu-d"].problem)
    assert found.manifest.nodes_expected == ("gpu-a", "gpu-b", "gpu-c", "gpu-d")
    assert found.manifest.nodes_present == ("gpu-a", "gpu-c")
    assert {gap.node for gap in found.manifest.gaps} == {"gpu-b", "gpu-c", "gpu-d"}
    assert manifest.verify(out) == []
    assert list(out.rglob("*.part")) == []
    untouched = (out / "nodes/gpu-a/logs").rglob("*.log")
    stamps = {path: path.stat().st_ino for path in untouched}

    cluster["gpu-b"].well_again()
    cluster["gpu-c"].well_again()
    cluster.start("gpu-d")
    again = collect(out, _nodes(cluster, patterns=("~/logs/*.log",)), options=QUICK)
    assert again.complete
    assert again.manifest.gaps == ()
    by_name = {result.name: result for result in again.nodes}
    assert (by_name["gpu-a"].fetched, by_name["gpu-a"].kept) == (0, 4)
    assert by_name["gpu-c"].fetched + by_name["gpu-c"].kept == 4
    assert by_name["gpu-c"].kept > 0
    assert {path: path.stat().st_ino for path in stamps} == stamps
    assert manifest.verify(out) == []
    for rank, node in enumerate(cluster.nodes.values()):
        where = "mnt" if cluster.private else str(node.home).lstrip("/")
        dump = out / f"nodes/{node.name}/dumps/{where}/_cache/torch/comm_lib_trace_rank_{rank * 3}"
        assert dump.read_bytes() == bytes([rank]) + big
        assert _files(node.home)  # nothing is deleted at the source
    third = collect(out, _nodes(cluster, patterns=("~/logs/*.log",)), options=QUICK)
    assert sum(result.fetched for result in third.nodes) == 0


def test_a_transfer_that_breaks_is_tried_again_for_the_rest(cluster: sshd.Cluster, tmp_path: Path) -> None:
    """Whole files of a broken transfer stay, and every retry asks only for what is still missing."""
    node = cluster["gpu-a"]
    for rank in range(4):
        _put(node.home / f".cache/torch/comm_lib_trace_rank_{rank}", os.urandom(60_000))
    cluster.start("gpu-a")
    node.drops_after(100_000)
    found = collect(
        tmp_path / "out", _nodes(cluster, "gpu-a"), options=CollectOptions(deadline_s=20, retries=4, pause_s=0.1)
    )
    assert found.complete
    assert found.nodes[0].fetched == 4


def test_a_recorded_case_is_diagnosed_after_collecting(cluster: sshd.Cluster, tmp_path: Path) -> None:
    """Dumps in PyTorch's default places and logs in given ones, on two nodes, give the verdict of the whole."""
    for name, case_node in (("gpu-a", "gpu-worker-6"), ("gpu-b", "gpu-worker-7")):
        for path in (CASES / "sigkill" / case_node).iterdir():
            dump = path.name.startswith("nccl_trace")
            _put(cluster[name].home / (".cache/torch" if dump else "job 7/logs") / path.name, path.read_bytes())
        cluster.start(name)
    nodes = _nodes(cluster, "gpu-a", "gpu-b", patterns=("~/job 7/logs/*",))
    collect(tmp_path / "out", nodes, options=QUICK)
    verdict = hangscope.diagnose(hangscope.load(tmp_path / "out"))
    assert verdict.hang
    assert [culprit.rank for culprit in verdict.culprits] == [3]


def test_what_an_earlier_run_left_is_not_fetched(cluster: sshd.Cluster, tmp_path: Path) -> None:
    """A dump that is days older than the others stays where it is, with the reason; a named path is always fetched."""
    _put(cluster["gpu-a"].home / ".cache/torch/comm_lib_trace_rank_0", "new")
    _put(cluster["gpu-b"].home / ".cache/torch/comm_lib_trace_rank_1", "old", age_s=3 * 86400)
    for name in ("gpu-a", "gpu-b"):
        cluster.start(name)
    found = collect(tmp_path / "out", _nodes(cluster, "gpu-a", "gpu-b"), options=QUICK)
    assert sum("comm_lib" in name for name in found.manifest.files) == 1
    (gap, nothing) = sorted(found.manifest.gaps, key=lambda gap: gap.what)
    assert "72.0 h older than the newest dump" in gap.why
    assert nothing.why == "nothing was found there"
    nodes = _nodes(cluster, "gpu-a", "gpu-b", patterns=("~/.cache/torch/*_rank_*",))
    assert len(collect(tmp_path / "out2", nodes, options=QUICK).manifest.files) == 2


def test_a_node_has_its_own_tmp(cluster: sshd.Cluster, tmp_path: Path) -> None:
    """Dumps in /tmp, where torch 2.2 to 2.6 leave them, come from each node's own."""
    if not cluster.private:
        pytest.skip("needs mount namespaces, to give each node its own /tmp")
    for rank, name in enumerate(("gpu-a", "gpu-b")):
        _put(cluster[name].tmp / f"nccl_trace_rank_{rank}", f"dump {rank}")
        cluster.start(name)
    collect(tmp_path / "out", _nodes(cluster, "gpu-a", "gpu-b"), options=QUICK)
    assert (tmp_path / "out/nodes/gpu-b/dumps/tmp/nccl_trace_rank_1").read_text() == "dump 1"


def test_nothing_at_all_is_an_error(cluster: sshd.Cluster, tmp_path: Path) -> None:
    """Where no node answers, or none has anything, the error says why for each and leaves no incident behind."""
    with pytest.raises(CollectError, match=r"gpu-a: .*refused"):
        collect(tmp_path / "out", _nodes(cluster, "gpu-a", "gpu-b"), options=QUICK)
    assert not (tmp_path / "out").exists()


# ---- incidents of `hangscope run` ------------------------------------------------------------------------------------


def _part(root: Path, node: str, *, job: str = "48121", attempt: str = "0", at: str = "2026-11-15T02:30:11Z") -> None:
    folder = root / "nodes" / node
    _put(folder / f"dumps/nccl_trace_rank_{'ab'.index(node[-1])}", f"dump of {node} {attempt}")
    write_json(folder / "node.json", {"schema": "hangscope.node/1", "node": node, "job": job, "attempt": attempt})
    given = manifest.Manifest(job=job, attempt=attempt, reason="stall", detail="rank 1", captured_at=at, world_size=2)
    manifest.write(root, manifest.build(root, given))
    write_json(root / "run.json", {"schema": "hangscope.run/1", "job": job, "attempt": attempt})


def test_parts_of_nodes_become_one_incident(cluster: sshd.Cluster, tmp_path: Path) -> None:
    """Each node's part of the newest attempt is merged; older attempts, other hangs and default dumps stay."""
    for name in ("gpu-a", "gpu-b"):
        home = cluster[name].home / "hangscope/48121"
        _part(home / "0", name, attempt="0", at="2026-11-14T02:30:11Z")
        _part(home / "1", name, attempt="1")
        _put(cluster[name].home / ".cache/torch/comm_lib_trace_rank_7", "from before")
        cluster.start(name)
    found = collect(tmp_path / "out", _nodes(cluster, "gpu-a", "gpu-b"), options=QUICK)
    assert (found.manifest.job, found.manifest.attempt, found.manifest.reason) == ("48121", "1", "stall")
    assert found.manifest.captured_at == "2026-11-15T02:30:11Z"
    assert found.manifest.nodes_present == ("gpu-a", "gpu-b")
    assert _files(tmp_path / "out") == {
        "incident.json", "run.json", "nodes/gpu-a/node.json", "nodes/gpu-b/node.json",
        "nodes/gpu-a/dumps/nccl_trace_rank_0", "nodes/gpu-b/dumps/nccl_trace_rank_1",
    }  # fmt: skip
    assert (tmp_path / "out/nodes/gpu-b/dumps/nccl_trace_rank_1").read_text() == "dump of gpu-b 1"
    assert len(found.others) == 1 if cluster.private else 2
    assert "attempt 0" in found.others[0]
    older = collect(tmp_path / "older", _nodes(cluster, "gpu-a", "gpu-b"), options=QUICK, attempt="0")
    assert older.manifest.attempt == "0"
    with pytest.raises(InputError, match="holds attempt 1 of job 48121"):
        collect(tmp_path / "out", _nodes(cluster, "gpu-a", "gpu-b"), options=QUICK, attempt="0")
    with pytest.raises(CollectError, match="no incident of job 9"):
        collect(tmp_path / "none", _nodes(cluster, "gpu-a"), options=QUICK, job="9")


@pytest.mark.parametrize("later", ["0/hang-2", "0.hang-2"])  # the latter as versions before called it
def test_a_shared_directory_is_fetched_once(later: str, tmp_path: Path) -> None:
    """Nodes that see the same files give them once; a later hang of the same attempt is another incident."""
    home = tmp_path / "home"
    _part(home / "hangscope/7/0", "gpu-a", job="7")
    _part(home / "hangscope/7/0", "gpu-b", job="7")
    _part(home / "hangscope/7" / later, "gpu-a", job="7", at="2026-11-15T09:00:00Z")
    nodes = [Node(name, ("env", f"HOME={home}", "sh", "-s")) for name in ("gpu-a", "gpu-b")]
    found = collect(tmp_path / "out", nodes, options=QUICK)
    assert _files(tmp_path / "out/nodes") == {"gpu-a/node.json", "gpu-a/dumps/nccl_trace_rank_0"}
    shutil.rmtree(home / "hangscope/7" / later)
    found = collect(tmp_path / "out2", nodes, options=QUICK)
    assert sum(result.fetched for result in found.nodes) == 5
    assert found.manifest.nodes_present == ("gpu-a", "gpu-b")


def test_a_job_that_nothing_named_is_one_job(tmp_path: Path) -> None:
    """Without a scheduler each node makes a name of its own: parts captured together are one incident all the same."""
    for name, job, at in (
        ("gpu-a", "20261115-023000-77", "2026-11-15T02:30:11Z"),
        ("gpu-b", "20261115-023004-78", "2026-11-15T02:30:14Z"),
    ):
        _part(tmp_path / f"{name}/hangscope/{job}/0", name, job=job, at=at)
        old = "20261101-000000-5"
        _part(tmp_path / f"{name}/hangscope/{old}/0", name, job=old, at="2026-11-01T00:00:00Z")
    nodes = [Node(name, ("env", f"HOME={tmp_path / name}", "sh", "-s")) for name in ("gpu-a", "gpu-b")]
    found = collect(tmp_path / "out", nodes[1:], options=QUICK)
    assert found.manifest.nodes_present == ("gpu-b",)
    found = collect(tmp_path / "out", nodes, options=QUICK)
    assert found.manifest.nodes_present == ("gpu-a", "gpu-b")
    assert found.manifest.captured_at == "2026-11-15T02:30:11Z"
    assert len(found.others) == 2


# ---- directories -----------------------------------------------------------------------------------------------------


def test_directories_of_people_who_never_used_run(tmp_path: Path) -> None:
    """Plain folders are brought together as they are, and give the verdict that they gave apart."""
    for name in ("gpu-worker-6", "gpu-worker-7"):
        shutil.copytree(CASES / "cpu_stall" / name, tmp_path / "mnt" / name)
    _put(tmp_path / "mnt/gpu-worker-6/model.safetensors", "x" * 1000)
    _put(tmp_path / "mnt/gpu-worker-6/.git/config", "private")
    roster = CASES / "cpu_stall/roster.json"
    sources = [Directory(tmp_path / "mnt" / name) for name in ("gpu-worker-6", "gpu-worker-7")] + [Directory(roster)]
    found = collect(tmp_path / "out", sources, options=QUICK)
    assert found.manifest.reason == "collected"
    assert not [name for name in found.manifest.files if "safetensors" in name or ".git" in name]
    verdict = hangscope.diagnose(hangscope.load(tmp_path / "out"))
    assert [(culprit.rank, culprit.node) for culprit in verdict.culprits] == [(2, "gpu-worker-7")]
    assert verdict.kind == "absent"
    again = collect(tmp_path / "out", sources, options=QUICK)
    assert sum(result.fetched for result in again.nodes) == 0


def test_parts_in_directories_are_merged(tmp_path: Path) -> None:
    """Parts that somebody copied from the nodes by hand, under any name, become one incident."""
    _part(tmp_path / "one", "gpu-a")
    _part(tmp_path / "two", "gpu-b", at="2026-11-15T02:31:00Z")
    found = collect(tmp_path / "out", [Directory(tmp_path / "one"), Directory(tmp_path / "two")], options=QUICK)
    assert found.manifest.nodes_present == ("gpu-a", "gpu-b")
    assert (found.manifest.captured_at, found.manifest.detail) == ("2026-11-15T02:30:11Z", "rank 1")
    assert manifest.verify(tmp_path / "out") == []


def test_a_changed_file_is_fetched_again(tmp_path: Path) -> None:
    """A log that grew since is fetched again, alone; a local copy that was damaged too."""
    _put(tmp_path / "in/rank_0.log", "one\n", age_s=100)
    _put(tmp_path / "in/rank_1.log", "one\n", age_s=100)
    _put(tmp_path / "in/rank_2.log", "one\n", age_s=100)
    collect(tmp_path / "out", [Directory(tmp_path / "in")], options=QUICK)
    _put(tmp_path / "in/rank_0.log", "one\ntwo\n")
    (tmp_path / "out/files/in/rank_1.log").write_text("on")
    found = collect(tmp_path / "out", [Directory(tmp_path / "in")], options=QUICK)
    assert (found.nodes[0].fetched, found.nodes[0].kept) == (2, 1)
    assert (tmp_path / "out/files/in/rank_0.log").read_text() == "one\ntwo\n"
    assert (tmp_path / "out/files/in/rank_1.log").read_text() == "one\n"


def test_two_folders_of_one_name_stay_apart(tmp_path: Path) -> None:
    """Folders with the same last name do not overwrite each other."""
    _put(tmp_path / "a/dumps/nccl_trace_rank_0", "a")
    _put(tmp_path / "b/dumps/nccl_trace_rank_0", "b")
    collect(tmp_path / "out", [Directory(tmp_path / "a/dumps"), Directory(tmp_path / "b/dumps")], options=QUICK)
    assert (tmp_path / "out/files/dumps/nccl_trace_rank_0").read_text() == "a"
    assert (tmp_path / "out/files/dumps-2/nccl_trace_rank_0").read_text() == "b"


def test_a_directory_of_other_things_is_not_written_into(tmp_path: Path) -> None:
    """Collecting into a folder that holds something else is refused before anything is fetched."""
    _put(tmp_path / "in/rank_0.log", "x")
    _put(tmp_path / "out/thesis.txt", "mine")
    with pytest.raises(InputError, match="not empty, and not an incident"):
        collect(tmp_path / "out", [Directory(tmp_path / "in")], options=QUICK)
    assert _files(tmp_path / "out") == {"thesis.txt"}


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    """A path that does not exist is named before anything is fetched."""
    with pytest.raises(NotFoundError, match="no such file or directory"):
        Directory(tmp_path / "none")


def test_progress_reaches_its_total(tmp_path: Path) -> None:
    """The progress callback ends with everything done, and never goes beyond the total."""
    for rank in range(5):
        _put(tmp_path / f"in/rank_{rank}.log", "x" * 100_000)
    seen: list[tuple[int, int]] = []
    collect(
        tmp_path / "out",
        [Directory(tmp_path / "in")],
        options=QUICK,
        progress=lambda done, total, _: seen.append((done, total)),
    )
    assert seen[-1] == (500_000, 500_000)
    assert all(done <= total for done, total in seen)


# ---- what a remote node must have ------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path) -> tuple[str, ...]:
    """A shell whose PATH holds sh and tar, and nothing else."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "tar"):
        (tools / name).symlink_to(shutil.which(name) or "")
    return ("env", "-i", f"PATH={tools}", f"HOME={tmp_path / 'home'}", str(tools / "sh"), "-s")


def test_sh_and_tar_are_enough(bare: tuple[str, ...], tmp_path: Path) -> None:
    """A node without stat, wc, cksum, find or hostname is collected from all the same."""
    _put(tmp_path / "home/.cache/torch/nccl_trace_rank_0", b"\x00dump")
    _put(tmp_path / "home/a b/it's.log", "hello")
    nodes = [Node("bare", bare, ("~/a b/*.log",))]
    collect(tmp_path / "out", nodes, options=QUICK)
    root = tmp_path / "out/nodes/bare"
    home = str(tmp_path / "home").lstrip("/")
    assert (root / "dumps" / home / "_cache/torch/nccl_trace_rank_0").read_bytes() == b"\x00dump"
    assert (root / "logs" / home / "a b/it's.log").read_text() == "hello"


@pytest.mark.parametrize("program", ["sh", "bash", "dash", "busybox", "ksh"])
def test_the_script_runs_in_every_shell(program: str, tmp_path: Path) -> None:
    """Listing gives the same files, sizes and times in every shell that is installed here."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed here")
    command = (found, "sh", "-s") if program == "busybox" else (found, "-s")
    home = tmp_path / "home"
    expected = {}
    for name in ("logs/a.log", "logs/sub dir/b.log", "logs/.hidden/c.log", "logs/q'uote\".log", "logs/st*r.log"):
        path = _put(home / name, name * 3)
        expected[str(path)] = (len(name) * 3, NOW)
    (home / "logs/loop").symlink_to(home)
    os.mkfifo(home / "logs/pipe")
    node = Node("x", ("env", f"HOME={home}", *command), ("~/logs",), defaults=False)
    from hangscope.incident.collect.fetch_sources import Deadline

    listing = node.listing(Deadline(20))
    assert {entry.path: (entry.size, entry.mtime) for entry in listing.entries} == expected


def test_checksums_stand_in_for_times(tmp_path: Path, bare: tuple[str, ...]) -> None:
    """Where a node has cksum and no stat, a second run still fetches only what changed."""
    (tmp_path / "bin/cksum").symlink_to(shutil.which("cksum") or "")
    _put(tmp_path / "home/logs/a.log", "one")
    _put(tmp_path / "home/logs/b.log", "one")
    nodes = [Node("bare", bare, ("~/logs",))]
    assert collect(tmp_path / "out", nodes, options=QUICK).nodes[0].fetched == 2
    _put(tmp_path / "home/logs/b.log", "two")
    found = collect(tmp_path / "out", nodes, options=QUICK)
    assert (found.nodes[0].fetched, found.nodes[0].kept) == (1, 1)


def test_a_shell_that_starts_at_the_root_names_files_once() -> None:
    """As in a container: its working directory is /, and a file has one name."""
    script = remote_script.list_script(("etc/passwd", "/etc/passwd"), defaults=False)
    done = subprocess.run(["sh", "-s"], input=script, capture_output=True, text=True, cwd="/", check=True)
    names = {line.rpartition(" ")[2] for line in done.stdout.splitlines() if line.startswith("G ")}
    assert names == {"/etc/passwd"}


def test_variables_of_the_node_say_where_dumps_are(tmp_path: Path) -> None:
    """Dump prefixes and NCCL's log file that the node's environment names are found, patterns and all."""
    _put(tmp_path / "d/fr_host_3", "dump")
    _put(tmp_path / "n/nccl.gpu-a.77.log", "log")
    environ = (f"TORCH_FR_DUMP_TEMP_FILE={tmp_path}/d/fr_host_", f"NCCL_DEBUG_FILE={tmp_path}/n/nccl.%h.%p.log")
    nodes = [Node("x", ("env", f"HOME={tmp_path}/none", *environ, "sh", "-s"))]
    found = collect(tmp_path / "out", nodes, options=QUICK)
    assert sum(name.endswith(("fr_host_3", "nccl.gpu-a.77.log")) for name in found.manifest.files) == 2


@pytest.mark.parametrize(
    "pattern",
    ["/x/$(touch {0}/owned)", "/x/`touch {0}/owned`", "/x/a;touch {0}/owned", "/x/'\n touch {0}/owned",
     "[;touch {0}/owned;]", "/x/[`touch {0}/owned`]*", "[$(touch {0}/owned)]", "/x/[!a;touch {0}/owned;]"],
)  # fmt: skip
def test_a_pattern_runs_no_command(pattern: str, tmp_path: Path) -> None:
    """Whatever a pattern holds, on the remote node it is a name and not a command."""
    from hangscope.incident.collect.fetch_sources import Deadline

    node = Node("x", ("sh", "-s"), (pattern.format(tmp_path),), defaults=False)
    assert node.listing(Deadline(10)).entries == ()
    assert not (tmp_path / "owned").exists()


def test_noise_of_a_login_shell_does_no_harm(tmp_path: Path) -> None:
    """What a node prints when one logs in is not taken for the answer."""
    _put(tmp_path / "home/logs/a.log", "hello")
    _put(tmp_path / "noisy", 'echo "Welcome!"; echo; printf "\\001\\002"; echo oops >&2; exec sh -s')
    node = Node("x", ("env", f"HOME={tmp_path}/home", "sh", str(tmp_path / "noisy")), ("~/logs",))
    found = collect(tmp_path / "out", [node], options=QUICK)
    assert found.complete


def test_a_node_cannot_write_outside(tmp_path: Path) -> None:
    """A node that answers with other files than asked, with links or with ways up, gives nothing of it."""
    evil = _put(
        tmp_path / "evil.py",
        "import io, sys, tarfile\n"
        "script = sys.stdin.read()\n"
        "print('HANGSCOPE-BEGIN', flush=True)\n"
        "if 'give 0 ' not in script:\n"
        "    print('G 4 1 - /logs/a.log'); print('G 4 1 - /logs/../../../up.log'); print('HANGSCOPE-END'); sys.exit()\n"
        "print('HANGSCOPE-TAR', script.partition(\" 'logs' \")[0].split()[-1], flush=True)\n"
        "out = tarfile.open(fileobj=sys.stdout.buffer, mode='w|')\n"
        "for name, kind in (('../../owned', b'0'), ('./a.log', b'2'), ('/tmp/owned', b'0'), ('./a.log', b'0'),\n"
        "                   ('logs/../../../up.log', b'0')):\n"
        "    info = tarfile.TarInfo(name); info.type = kind; info.linkname = '/etc/passwd'\n"
        "    info.size = 4 if kind == b'0' else 0\n"
        "    out.addfile(info, io.BytesIO(b'data'))\n"
        "out.close()\n",
    )
    before = set(tmp_path.rglob("*"))
    collect(tmp_path / "out", [Node("x", (sys.executable, str(evil)))], options=QUICK)
    new = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert {str(path.relative_to(tmp_path)) for path in new} <= {
        "out/incident.json", "out/nodes/x/logs/logs/a.log", "out/nodes/x/logs/logs/_/_/_/up.log",
    }  # fmt: skip
    assert (tmp_path / "out/nodes/x/logs/logs/a.log").read_text() == "data"


def test_an_interrupt_ends_the_commands(tmp_path: Path) -> None:
    """Stopping a node ends what was started for it, at once."""
    from hangscope.incident.collect.fetch_sources import Deadline, Unreachable

    node = Node("x", ("sh", "-c", "sleep 600"))
    timer = threading.Timer(0.5, node.stop)
    timer.start()
    begun = time.monotonic()
    with pytest.raises(Unreachable):
        node.listing(Deadline(60))
    assert time.monotonic() - begun < 10


def test_default_places_cover_every_torch_version() -> None:
    """The places where torch 2.2 to 2.15 leave dumps, with and without HOME and XDG_CACHE_HOME, are all asked for."""
    script = remote_script.list_script(())
    for place in (
        "/tmp/nccl_trace_rank_", "/.cache/torch/nccl_trace_rank_", "/.cache/torch/comm_lib_trace_rank_",
        "/tmp/.cache/torch/comm_lib_trace_rank_", "${XDG_CACHE_HOME}", "${TORCH_FR_DUMP_TEMP_FILE}",
        "${TORCH_NCCL_DEBUG_INFO_TEMP_FILE}", "NCCL_DEBUG_FILE", "/tmp/hccl_trace_rank_",
    ):  # fmt: skip
        assert place in script


# ---- hosts, Slurm, Kubernetes ----------------------------------------------------------------------------------------


def test_hosts_are_read_in_every_form(tmp_path: Path) -> None:
    """Commas, Slurm's ranges, user names and hostfiles with slots give the same hosts, each once."""
    assert job_nodes.hosts_of("a,b,a") == ["a", "b"]
    assert job_nodes.hosts_of("gpu-a[017-019,31],login") == ["gpu-a017", "gpu-a018", "gpu-a019", "gpu-a31", "login"]
    assert job_nodes.hosts_of("r[1-2]n[1-2]") == ["r1n1", "r1n2", "r2n1", "r2n2"]
    file = _put(tmp_path / "hosts", "# nodes\ngpu-1 slots=8\nme@gpu-2:8\n\ngpu-[3-4]  # two\n")
    assert job_nodes.hosts_in(file) == ["gpu-1", "me@gpu-2", "gpu-3", "gpu-4"]
    (node,) = job_nodes.ssh(["me@gpu-2"])
    assert node.name == "gpu-2"
    assert node.command[-2:] == ("me@gpu-2", "sh -s")
    for bad in ("-oProxyCommand=x", "a b", "a;b", "$(x)"):
        with pytest.raises(SettingsError, match="not a host name"):
            job_nodes.ssh([bad])


def _stand_in(folder: Path, name: str, body: str) -> None:
    """An executable that writes down how it was called, and then does `body`."""
    path = _put(folder / name, f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >>"{folder}/calls"\n{body}\n')
    path.chmod(0o755)


def test_slurm_nodes_are_reached_by_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """squeue and scontrol name the nodes, and srun runs a step beside the job on each, with the script on its input."""
    tools = tmp_path / "tools"
    _stand_in(tools, "squeue", "echo '48121|N/A|gpu-a[1-2]|48121'")
    _stand_in(tools, "scontrol", 'test "$1 $2 $3" = "show hostnames gpu-a[1-2]" && printf "gpu-a1\\ngpu-a2\\n"')
    _stand_in(
        tools,
        "srun",
        f'for a in "$@"; do case $a in --nodelist=*) n=${{a#*=}};; esac; done; HOME={tmp_path}/$n exec sh -s',
    )
    for rank, name in enumerate(("gpu-a1", "gpu-a2")):
        _put(tmp_path / name / f".cache/torch/comm_lib_trace_rank_{rank}", f"dump {rank}")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    found = collect(tmp_path / "out", job_nodes.slurm("48121"), options=QUICK)
    assert found.complete
    assert found.manifest.nodes_present == ("gpu-a1", "gpu-a2")
    calls = (tools / "calls").read_text().splitlines()
    assert calls[0] == "squeue --noheader --jobs 48121 --format %A|%K|%N|%i"
    assert "srun --jobid=48121 --overlap --nodes=1 --ntasks=1 --quiet --nodelist=gpu-a2 sh -s" in calls
    _stand_in(tools, "squeue", "printf '48121|3|gpu-a1|48121_3\\n48125|1|gpu-a2|48121_1\\n'")
    with pytest.raises(SettingsError, match="is an array") as array:
        job_nodes.slurm("48121")
    assert array.value.hint == "give 48121_1"
    _stand_in(tools, "squeue", "true")
    with pytest.raises(CollectError, match="is not running") as raised:
        job_nodes.slurm("48121")
    assert "--hosts" in str(raised.value.hint)
    _stand_in(tools, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    with pytest.raises(CollectError, match="Invalid job id"):
        job_nodes.slurm("7")
    with pytest.raises(SettingsError, match="not a Slurm job id"):
        job_nodes.slurm("7; rm")


def test_components_of_a_heterogeneous_job_are_reached_by_the_first_ones_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun knows the others by --het-group alone; 48121+1 is one component, and a task of an array is one job."""
    tools = tmp_path / "tools"
    _stand_in(tools, "squeue", "printf '48121|N/A|gpu-a1|48121+0\\n48122|N/A|cpu-b7|48121+1\\n'")
    _stand_in(tools, "scontrol", 'echo "$3"')
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    commands = [node.command for node in job_nodes.slurm("48121")]
    assert [command[:4] for command in commands] == [
        ("srun", "--jobid=48121", f"--het-group={group}", "--overlap") for group in (0, 1)
    ]
    assert [(part.nodes, part.group) for part in job_nodes.slurm_parts("48121+1")] == [(("cpu-b7",), 1)]
    _stand_in(tools, "squeue", "echo '48125|1|gpu-a2|48121_1'")
    assert job_nodes.slurm_parts("48121_1") == [job_nodes.SlurmPart("48125", ("gpu-a2",))]


def test_a_step_of_ours_does_not_inherit_what_the_batch_script_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun takes SLURM_NTASKS, SLURM_EXPORT_ENV and the like for options: inside a job it gets none of them."""
    tools = tmp_path / "tools"
    _stand_in(tools, "squeue", "echo '48121|N/A|gpu-a1|48121'")
    _stand_in(tools, "scontrol", "echo gpu-a1")
    _stand_in(tools, "srun", f"env > {tmp_path}/seen; exec sh -s")
    _put(tmp_path / "hang/dump", "x")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    for name in ("SLURM_NTASKS", "SLURM_EXPORT_ENV", "SLURM_HET_SIZE", "SLURM_CONF", "NCCL_DEBUG"):
        monkeypatch.setenv(name, "7")
    collect(tmp_path / "out", job_nodes.slurm("48121", patterns=[f"{tmp_path}/hang/*"], defaults=False), options=QUICK)
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines() if "=" in line)
    assert {name for name in seen if name.startswith(("SLURM_", "NCCL_"))} == {"SLURM_CONF", "NCCL_DEBUG"}


# ---- object stores ---------------------------------------------------------------------------------------------------


def test_a_store_is_read_through_fsspec(tmp_path: Path) -> None:
    """A prefix in a store, here in memory and on disk, is collected; a second run fetches nothing again."""
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    for path in (CASES / "cpu_stall").rglob("*"):
        if path.is_file():
            store.pipe(f"/bucket/hangs/{path.relative_to(CASES / 'cpu_stall')}", path.read_bytes())
    try:
        source = Store("memory://bucket/hangs")
        found = collect(tmp_path / "out", [source], options=QUICK)
        assert found.complete
        assert [c.rank for c in hangscope.diagnose(hangscope.load(tmp_path / "out")).culprits] == [2]
        assert collect(tmp_path / "out", [source], options=QUICK).nodes[0].fetched == 0
    finally:
        store.rm("/bucket", recursive=True)
    found = collect(tmp_path / "out2", [Store(f"file://{CASES}/cpu_stall")], options=QUICK)
    assert [c.rank for c in hangscope.diagnose(hangscope.load(tmp_path / "out2")).culprits] == [2]
    with pytest.raises(CollectError, match="nothing is there"):
        collect(tmp_path / "out3", [Store("memory://nowhere")], options=QUICK)


def test_without_fsspec_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fsspec, or the package for one store, is missing, the error says what to install."""
    pytest.importorskip("fsspec")
    with pytest.raises(CollectError, match="nonesuch"):
        Store("nonesuch://x")
    for name in list(sys.modules):
        if name.split(".")[0] == "fsspec":
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CollectError, match="fsspec is not installed") as raised:
        Store("s3://bucket/x")
    assert raised.value.hint == "pip install 'hangscope[objectstore]'"


# ---- the command line ------------------------------------------------------------------------------------------------


def test_the_command_collects_and_tells(
    cluster: sshd.Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`collect` prints the incident's directory alone, says on stderr what is missing, and ends with 0, 1 or 2."""
    _put(cluster["gpu-a"].home / "logs/rank_0.log", "hello")
    _put(tmp_path / "here/rank_1.log", "hello")
    cluster.start("gpu-a")
    hostfile = _put(tmp_path / "hosts", "gpu-a slots=8\n")
    common = ["collect", "-o", str(tmp_path / "out"), "--ssh", " ".join(cluster.ssh), "--deadline", "10s"]
    common += ["--retries", "0", "--path", "~/logs/*", "--no-defaults", "--from", str(tmp_path / "here")]
    assert main([*common, "--hostfile", str(hostfile), "--hosts", "gpu-b"]) == 1
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'out'}\n"
    assert "gpu-a: 1 file" in said.err
    assert "missing: evidence of gpu-b" in said.err
    assert main([*common, "--hostfile", str(hostfile)]) == 0
    assert "1 already here" in capsys.readouterr().err
    assert main(["collect", "-o", str(tmp_path / "none")]) == 2
    assert "nothing to collect from" in capsys.readouterr().err
    assert main(["collect", "-o", str(tmp_path / "none"), "--from", str(tmp_path / "nowhere")]) == 2
    assert main(["collect", "-o", str(tmp_path / "x"), "--deadline", "soon", "--from", str(tmp_path)]) == 2


# ---- a node's nonsense -----------------------------------------------------------------------------------------------


def _answering(tmp_path: Path, name: str, listing: str) -> Node:
    """A node whose listing says whatever it likes, and which then sends nothing."""
    script = tmp_path / f"{name}.sh"
    script.write_text(
        f"cat >/dev/null\nprintf '%s\\n' '' {remote_script.BEGIN}\n"
        f"cat <<'EOF'\n{listing}\nEOF\necho {remote_script.END}\n"
    )
    return Node(name, ("sh", str(script)))


NONSENSE = (
    "G 99999999999999999999999999 1 - /x/nccl_trace_rank_0",
    "G 5 99999999999999999999 - /x/nccl_trace_rank_0",
    "G 5 17592186044416 - /x/nccl_trace_rank_0",
    "G -1 -1 - /x/nccl_trace_rank_0",
    "G ٣ ٣ - /x/nccl_trace_rank_0",
    "G 5 5 - ../../../../etc/cron.d/x",
    "G 5 5 - /" + "a" * 5000,
    "G 5 5 - /" + "/".join("d" * 50),
    "G 5 5 - /x/\x1b[2J\udce4",
    "\n".join(f"G 5 5 - /{'Aa'[n % 2]}x/{'Bb'[n % 2]}y/nccl_trace_rank_{n % 3}" for n in range(300)),
)


@pytest.mark.parametrize("listing", NONSENSE, ids=range(len(NONSENSE)))
def test_one_nodes_nonsense_is_contained(listing: str, tmp_path: Path) -> None:
    """Absurd sizes, times and names of one node cost that node's part; another's evidence comes, and soon."""
    _put(tmp_path / "good/nccl_trace_rank_1", b"dump")
    bad = _answering(tmp_path, "bad", listing.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    begun = time.monotonic()
    found = collect(tmp_path / "out", [Directory(tmp_path / "good"), bad], options=QUICK)
    assert time.monotonic() - begun < 15
    assert not found.complete or found.manifest.gaps
    assert (tmp_path / "out/files/good/nccl_trace_rank_1").read_bytes() == b"dump"
    assert not (tmp_path / "etc").exists()


def test_a_dump_from_the_future_ages_nobody(tmp_path: Path) -> None:
    """A node whose clock is years ahead does not make the others' dumps old, and is named."""
    nodes = []
    for name, ahead in (("now", 0), ("ahead", 4 * 365 * 86400)):
        home = tmp_path / name
        _put(home / "nccl_trace_rank_3", b"dump", age_s=-ahead)
        script = f'HOME={home}; export HOME; sed "s#/tmp/#{home}/#g" | sh -s'
        nodes.append(Node(name, ("sh", "-c", script)))
    found = collect(tmp_path / "out", nodes, options=QUICK)
    assert sorted(path.parts[-3] for path in (tmp_path / "out/nodes").rglob("nccl_trace_rank_3"))
    assert len(list((tmp_path / "out/nodes").rglob("nccl_trace_rank_3"))) == 2
    assert any("dated in the future" in gap.why for gap in found.manifest.gaps)


def test_an_interrupted_collect_can_be_run_again(tmp_path: Path) -> None:
    """Ended by SIGTERM or SIGKILL in the middle, a second run completes it, and no half-written file stays."""
    for rank in range(4):
        _put(tmp_path / f"in/nccl_trace_rank_{rank}", os.urandom(3_000_000))
    slow = "import sys, time; from hangscope.incident.collect import gather\n"
    slow += "read = gather._read\ngather._read = lambda content: (time.sleep(0.3), read(content))[1]\n"
    slow += "from hangscope.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["collect", "--from", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen([sys.executable, "-c", slow, *words], stderr=subprocess.DEVNULL)
        time.sleep(2.0)
        process.send_signal(number)
        process.wait(timeout=20)
        if number == signal.SIGTERM:
            assert not list((tmp_path / "out").rglob(".*.part"))
    assert main(words) == 0
    assert len(list((tmp_path / "out").rglob("nccl_trace_rank_*"))) == 4
    assert not list((tmp_path / "out").rglob(".*.part"))
    assert "collecting_since" not in (tmp_path / "out/incident.json").read_text()


def test_no_link_is_followed_on_a_node(tmp_path: Path) -> None:
    """Over a remote shell, as from a directory: a link is named and not followed, nor is anything sent for it."""
    (tmp_path / "secret").write_text("secret")
    _put(tmp_path / "home/run/nccl_trace_rank_0", b"dump")
    (tmp_path / "home/run/nccl_trace_rank_1").symlink_to(tmp_path / "secret")
    (tmp_path / "home/run/away").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "home/run/rank_2.log")
    node = Node("n", ("sh", "-s"), (f"{tmp_path}/home/run", f"{tmp_path}/home/run/nccl*"), defaults=False)
    found = collect(tmp_path / "out", [node], options=QUICK)
    assert b"secret" not in b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    said = {gap.what.rpartition("/")[2]: gap.why for gap in found.manifest.gaps}
    assert said["nccl_trace_rank_1"] == said["away"] == "a link, not followed"
    assert "rank_2.log" in said


def test_a_hostfile_in_no_encoding_is_an_error_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes that are no text name no host, and the message says so."""
    (tmp_path / "hosts").write_bytes(b"\xff\xfe\x00gpu\n")
    assert main(["collect", "--hostfile", str(tmp_path / "hosts"), "-o", str(tmp_path / "out")]) == 2
    assert "is not a host name" in capsys.readouterr().err
