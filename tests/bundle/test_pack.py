"""The support file: one folder in one .tar.gz, streamed, with verdict, ticket and manifest, within a size."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import bench_bundle
import hangscope
from hangscope.bundle.pack import Cleaner, Reports, write_bundle
from hangscope.bundle.parallel_gzip import GzipWriter
from hangscope.bundle.shrink import Involved, item
from hangscope.bundle.unpack import extract, verify
from hangscope.cli.main import main
from hangscope.errors import InputError, NotFoundError

HERE = Path(__file__).parents[1]


def _noise(size: int, seed: int) -> str:
    """Log lines that pack to about a third."""
    noise = random.Random(seed)
    lines = []
    while size > 0:
        lines.append(f"step {noise.getrandbits(60):x} loss {noise.random()}")
        size -= len(lines[-1]) + 1
    return "\n".join(lines) + "\n"


def _incident(root: Path, *, ranks: int = 4, log: int = 400_000) -> Path:
    """Two nodes with every kind of evidence; rank 1 on node a will be the culprit."""
    for rank in range(ranks):
        node = root / "nodes" / ("a" if rank < ranks // 2 else "b")
        files = {
            "node.json": "{}",
            f"dumps/nccl_trace_rank_{rank}": "x",
            f"logs/rank_{rank}.log": _noise(log, rank),
            f"logs/nccl.{node.name}.{1000 + rank}.log": _noise(log, 100 + rank),
            f"stacks/rank_{rank}.1.txt": _noise(20_000, 200 + rank),
            f"stacks/rank_{rank}.2.txt": _noise(20_000, 300 + rank),
            "kernel/messages.txt": _noise(100_000, 400 + rank),
            "gpu/nvidia-smi.txt": _noise(50_000, 500 + rank),
            "ras/ras.1.json": "{}",
        }
        for name, text in files.items():
            (node / name).parent.mkdir(parents=True, exist_ok=True)
            (node / name).write_text(text)
        (node / f"dumps/nccl_trace_rank_{rank}").write_bytes(b"\x80\x02]." + b"")
    return root


def _reports(verdict: str) -> Callable[[Cleaner], Reports]:
    """Reports that say so, and whose ticket lists the files."""
    return lambda clean: Reports(clean(verdict), clean(verdict), lambda: clean(verdict), "\n".join)


CULPRIT = Involved(ranks=frozenset({1}), nodes=frozenset({"a"}), pids=frozenset({1001}))


def _names(path: Path) -> list[str]:
    with tarfile.open(path) as tar:
        return tar.getnames()


def test_a_bundle_holds_evidence_verdict_ticket_and_manifest(tmp_path: Path) -> None:
    """Everything of the incident is in one folder, with verdict.json, ticket.md and checksums, and it verifies."""
    source = _incident(tmp_path / "inc", log=1000)
    bundle = write_bundle(source, tmp_path / "job-7.tar.gz", reports=_reports('{"hang": true}\n'))
    opened = verify(bundle.path)
    assert opened.name == "job-7"
    assert bundle.size == bundle.path.stat().st_size
    assert opened.manifest.reason == "collected"
    evidence = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    reports = {"verdict.json", "verdict.txt", "verdict.html", "ticket.md"}
    assert set(opened.manifest.files) == evidence | reports | {"redaction.json"}
    extract(bundle.path, tmp_path / "out")
    assert (tmp_path / "out/verdict.json").read_text() == '{"hang": true}\n'
    listed = (tmp_path / "out/ticket.md").read_text().splitlines()
    assert set(listed) == evidence | reports - {"ticket.md"}
    assert _names(bundle.path)[-1] == "job-7/incident.json"


def test_other_tools_read_it_too(tmp_path: Path) -> None:
    """GNU tar lists and unpacks a bundle, and no owner, mode or time of the packing is in it."""
    source = _incident(tmp_path / "inc", log=1000)
    os.chmod(source / "nodes/a/node.json", 0o600)
    bundle = write_bundle(source, tmp_path / "x.tar.gz")
    subprocess.run(["tar", "xzf", bundle.path, "-C", tmp_path], check=True)
    assert (tmp_path / "x/nodes/a/logs/rank_0.log").read_bytes() == (source / "nodes/a/logs/rank_0.log").read_bytes()
    with tarfile.open(bundle.path) as tar:
        for member in tar:
            assert (member.uid, member.gid, member.uname, member.gname, member.mode) == (0, 0, "", "", 0o644)
        inside, outside = tar.getmember("x/nodes/a/node.json"), source / "nodes/a/node.json"
        assert inside.mtime == int(outside.stat().st_mtime)


def test_an_incident_keeps_its_manifest(tmp_path: Path) -> None:
    """Job, attempt, reason, nodes and gaps of the incident are in the bundle's manifest; checksums are the bundle's."""
    source = _incident(tmp_path / "inc", log=1000)
    given = {"schema": "hangscope.incident/1", "job": "48121", "attempt": "2", "reason": "stall", "detail": "rank 1",
             "nodes_expected": ["a", "b", "c"], "nodes_present": ["a", "b"], "world_size": 6, "cluster": "north",
             "gaps": [{"what": "node c", "why": "down"}], "files": {"gone": {"size": 1}}}  # fmt: skip
    (source / "incident.json").write_text(json.dumps(given))
    (source / "verdict.json").write_text('{"old": true}')
    manifest = verify(write_bundle(source, tmp_path / "x.tar.gz", reports=_reports('{"new": true}')).path).manifest
    assert (manifest.job, manifest.attempt, manifest.reason, manifest.world_size) == ("48121", "2", "stall", 6)
    assert manifest.nodes_expected == ("a", "b", "c")
    assert manifest.extra["cluster"] == "north"
    assert [gap.what for gap in manifest.gaps] == ["node c"]
    assert manifest.files["verdict.json"]["sha256"] == hashlib.sha256(b'{"new": true}').hexdigest()


def test_a_single_file_and_a_plain_folder_can_be_bundled(tmp_path: Path) -> None:
    """People who never used `run` bundle what they have; an empty or missing place is a clear error."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one/slurm-7.out").write_text("hello\n")
    assert list(verify(write_bundle(tmp_path / "one/slurm-7.out", tmp_path / "a.tar.gz").path).manifest.files) == [
        "redaction.json",
        "slurm-7.out",
    ]
    assert "slurm-7.out" in verify(write_bundle(tmp_path / "one", tmp_path / "b.tgz").path).manifest.files
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match="nothing to bundle"):
        write_bundle(tmp_path / "empty", tmp_path / "c.tar.gz")
    with pytest.raises(NotFoundError, match="no such file or directory"):
        write_bundle(tmp_path / "none", tmp_path / "c.tar.gz")


def test_the_bundle_never_swallows_itself(tmp_path: Path) -> None:
    """Bundling a folder into itself, twice, leaves the bundle and its map out."""
    source = _incident(tmp_path / "inc", log=1000)
    for _ in range(2):
        bundle = write_bundle(source, source / "x.tar.gz", pseudonymise=True)
        assert not [name for name in _names(bundle.path) if name.endswith((".tar.gz", ".part", "aliases.json"))]
    assert not list(source.glob(".*"))


def test_odd_names_are_made_safe_and_stay_apart(tmp_path: Path) -> None:
    """Names that unpacking would refuse are changed when packing, and two never become one."""
    (tmp_path / "inc/sub").mkdir(parents=True)
    for name in (
        "rank:0.log",
        "rank-0.log",
        "RANK-0.log",
        "a\\b.log",
        "bell\x07.log",
        "end. ",
        "sub/nccl_trace_rank_3",
    ):
        (tmp_path / "inc" / name).write_text(name)
    (tmp_path / "inc/SUB").mkdir()
    (tmp_path / "inc/SUB/nccl_trace_rank_3").write_text("other")
    opened = verify(write_bundle(tmp_path / "inc", tmp_path / "x.tar.gz").path)
    assert len(opened.manifest.files) == 9
    assert sum(name.endswith("nccl_trace_rank_3") for name in opened.manifest.files) == 2


def test_stale_dumps_are_named(tmp_path: Path) -> None:
    """A dump that an earlier run left is in the bundle, and the manifest says that it is stale."""
    source = _incident(tmp_path / "inc", log=1000)
    os.utime(source / "nodes/a/dumps/nccl_trace_rank_0", (1_700_000_000, 1_700_000_000))
    manifest = verify(write_bundle(source, tmp_path / "x.tar.gz").path).manifest
    assert [item.file for item in manifest.stale] == ["nodes/a/dumps/nccl_trace_rank_0"]


def test_a_failure_leaves_the_old_bundle_and_no_rest(tmp_path: Path) -> None:
    """When making a bundle fails half way, the file that was there before is still there, and no other."""
    source = _incident(tmp_path / "inc", log=1000)
    target = tmp_path / "out/x.tar.gz"
    target.parent.mkdir()
    target.write_bytes(b"the old one")

    def reports(clean: Cleaner) -> Reports:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        write_bundle(source, target, reports=reports)
    assert [path.name for path in target.parent.iterdir()] == ["x.tar.gz"]
    assert target.read_bytes() == b"the old one"


def test_a_file_that_cannot_be_read_is_a_gap(tmp_path: Path) -> None:
    """A file that vanishes meanwhile does not stop the bundle; the manifest says what is missing and why."""
    source = _incident(tmp_path / "inc", log=1000)

    def progress(done: int, total: int, what: str) -> None:
        if what == "nodes/a/logs/rank_0.log":
            (source / what).unlink(missing_ok=True)

    bundle = write_bundle(source, tmp_path / "x.tar.gz", progress=progress)
    assert [(gap.what, "cannot be read" in gap.why) for gap in bundle.left_out] == [("nodes/a/logs/rank_0.log", True)]
    assert "nodes/a/logs/rank_0.log" in [gap.what for gap in verify(bundle.path).manifest.gaps]


def test_links_that_lead_outside_are_not_followed(tmp_path: Path) -> None:
    """A link in somebody's folder does not bring a file of this machine into the bundle; it is a gap."""
    (tmp_path / "private.txt").write_text("do not take this along")
    source = _incident(tmp_path / "inc", log=1000)
    (source / "nodes/a/logs/rank_9.log").symlink_to(tmp_path / "private.txt")
    manifest = verify(write_bundle(source, tmp_path / "x.tar.gz").path).manifest
    assert "nodes/a/logs/rank_9.log" not in manifest.files
    assert ("nodes/a/logs/rank_9.log", "a link that leads outside, not followed") in [
        (gap.what, gap.why) for gap in manifest.gaps
    ]


def test_a_broken_manifest_is_a_gap(tmp_path: Path) -> None:
    """An incident whose manifest was damaged can still be bundled, and the bundle says so."""
    source = _incident(tmp_path / "inc", log=1000)
    (source / "incident.json").write_text('{"schema": "hangsc')
    manifest = verify(write_bundle(source, tmp_path / "x.tar.gz").path).manifest
    assert "incident.json" in [gap.what for gap in manifest.gaps]


def test_archives_among_the_evidence_are_redacted_file_by_file(tmp_path: Path) -> None:
    """Tarballs that somebody made of each node are looked into, and the verdict stays the same."""
    case = HERE / "cases/sigkill"
    source = tmp_path / "tarballs"
    source.mkdir()
    for node in ("gpu-worker-6", "gpu-worker-7"):
        with tarfile.open(source / f"{node}.tar.gz", "w:gz") as tar:
            tar.add(case / node, node)
            info = tarfile.TarInfo(f"{node}/secrets.txt")
            info.size = len(b"password=Zx81abc /home/alice/x\n")
            tar.addfile(info, io.BytesIO(b"password=Zx81abc /home/alice/x\n"))
    shutil.copy(case / "roster.json", source)
    truth = hangscope.diagnose(hangscope.load(case))
    bundle = write_bundle(source, tmp_path / "x.tar.gz")
    assert bundle.left_out == ()
    extract(bundle.path, tmp_path / "out")
    text = (tmp_path / "out/gpu-worker-6/gpu-worker-6/secrets.txt").read_text()
    assert text == "password=[redacted:password] /home/user-1/x\n"
    found = hangscope.diagnose(hangscope.load(bundle.path))
    assert (found.kind, [c.rank for c in found.culprits]) == (truth.kind, [c.rank for c in truth.culprits])
    assert found.nodes == truth.nodes


# ---- size ------------------------------------------------------------------------------------------------------------


def test_the_least_useful_evidence_goes_first(tmp_path: Path) -> None:
    """The tighter the limit, the more goes, in the documented order; never the culprit's evidence nor all dumps."""
    source = _incident(tmp_path / "inc")
    whole = write_bundle(source, tmp_path / "x.tar.gz").size
    order = ["GPU and kernel text", "NCCL logs", "second stack", "the middle of logs", "stacks of", "logs of"]
    went: list[set[str]] = []
    for share in (1.01, 0.95, 0.8, 0.62, 0.45, 0.41):
        limit = int(whole * share)
        bundle = write_bundle(source, tmp_path / "x.tar.gz", max_bytes=limit, involved=CULPRIT)
        assert bundle.size <= limit
        manifest = verify(bundle.path).manifest
        went.append({word for word in order for what in bundle.dropped if what.startswith(word)})
        for name in (
            "logs/rank_1.log",
            "logs/nccl.a.1001.log",
            "stacks/rank_1.2.txt",
            "kernel/messages.txt",
            "node.json",
        ):
            kept = manifest.files[f"nodes/a/{name}"]["size"]
            assert kept == (source / "nodes/a" / name).stat().st_size
        assert sum("nccl_trace_rank" in name for name in manifest.files) == 4
        said = manifest.extra["bundle"]
        gone = {str(p.relative_to(source)) for p in source.rglob("*") if p.is_file()} - set(manifest.files)
        assert gone == set(said["dropped"])
        assert bool(bundle.dropped) == bool(said["dropped"] or said["shortened"])
        assert len([gap for gap in manifest.gaps if "keep the bundle small" in gap.why]) == len(bundle.dropped)
    assert went[0] == set()
    for earlier, later in pairwise(went):
        assert earlier <= later
    for found in went:  # whatever goes, everything in front of it in the order went before it
        last = max((order.index(word) for word in found), default=-1)
        assert found >= set(order[: max(0, min(last, 3))])


def test_shortened_logs_keep_their_beginning_and_end(tmp_path: Path) -> None:
    """What is left of a long log are whole lines from both ends, with a line that says what is missing."""
    (tmp_path / "inc").mkdir()
    text = _noise(3_000_000, 1)
    (tmp_path / "inc/rank_0.log").write_text(text)
    (tmp_path / "inc/rank_1.log").write_text("short\n")
    bundle = write_bundle(tmp_path / "inc", tmp_path / "x.tar.gz", max_bytes=400_000, redact=False)
    extract(bundle.path, tmp_path / "out")
    left = (tmp_path / "out/rank_0.log").read_text().splitlines()
    assert left[0] == text.splitlines()[0]
    assert left[-1] == text.splitlines()[-1]
    marks = [line for line in left if line.startswith("[hangscope: ")]
    assert len(marks) == 1
    assert set(left) - set(marks) <= set(text.splitlines())
    assert (tmp_path / "out/rank_1.log").read_text() == "short\n"


def test_dumps_go_last_and_never_all(tmp_path: Path) -> None:
    """When only dumps are left to give up, some go, the culprit's stays, and below that it is a clear error."""
    bench_bundle.write_dumps(tmp_path / "inc", dumps=6, entries=300)
    whole = write_bundle(tmp_path / "inc", tmp_path / "x.tar.gz").size
    involved = Involved(ranks=frozenset({4}))
    bundle = write_bundle(tmp_path / "inc", tmp_path / "x.tar.gz", max_bytes=whole // 2, involved=involved)
    left = [name for name in verify(bundle.path).manifest.files if "trace" in name]
    assert 0 < len(left) < 6
    assert any(name.endswith("rank_4") for name in left)
    with pytest.raises(InputError, match="what the verdict rests on takes"):
        write_bundle(tmp_path / "inc", tmp_path / "y.tar.gz", max_bytes=5000, involved=involved)
    with pytest.raises(InputError):
        write_bundle(tmp_path / "inc", tmp_path / "y.tar.gz", max_bytes=5000)
    assert not (tmp_path / "y.tar.gz").exists()


@pytest.mark.parametrize(
    ("name", "head", "kind", "rank"),
    [
        ("nodes/a/node.json", b"{}", "node", None),
        ("nodes/a/dumps/gloo_rank_3.pickle", b"\x80\x02", "dump", 3),
        ("dumps/nccl_trace_rank_17", b"\x80\x02", "dump", 17),
        ("weird", b"\x80\x02", "dump", None),
        ("nodes/a/logs/rank_3.log", b"hi", "log", 3),
        ("nodes/a/logs/nccl.a.77.log", b"", "NCCL log", None),
        ("out/job.txt", b"a:1:1 [0] NCCL INFO x", "NCCL log", None),
        ("nodes/a/stacks/rank_3.2.txt", b"", "stack", 3),
        ("nodes/a/ras/ras.2.json", b"", "ras", None),
        ("nodes/a/kernel/messages.txt", b"", "kernel", None),
        ("notes.md", b"", "other", None),
    ],
)
def test_kinds_of_evidence_are_told_apart(name: str, head: bytes, kind: str, rank: int | None) -> None:
    """What a file is, and whose, is told by the incident's layout, by usual names, or by its first bytes."""
    found = item(name, 10, head)
    assert (found.kind, found.rank) == (kind, rank)


# ---- speed and memory ------------------------------------------------------------------------------------------------


def test_bundling_keeps_up_with_tar(tmp_path: Path) -> None:
    """With redaction that has something to do in every dump, at least half the speed of `tar czf` in the same run."""
    bench_bundle.write_dumps(tmp_path / "dumps", dumps=24, entries=2000)
    theirs, ours = bench_bundle.compare(tmp_path / "dumps", tmp_path, rounds=3)
    assert theirs / ours > 0.5, f"tar czf {theirs:.2f} s, bundle {ours:.2f} s"
    with tarfile.open(tmp_path / "b0.tar.gz") as tar:
        dump = tar.extractfile("b0/node-000/nccl_trace_rank_3")
        assert dump is not None
        assert b"/home/user-1/project" in dump.read()


_MEASURE = """
import sys
from pathlib import Path
from hangscope.bundle.pack import Cleaner, Reports, write_bundle
write_bundle(Path(sys.argv[1]), Path(sys.argv[2]), pseudonymise=True)
print(next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM')))
"""


def test_memory_does_not_grow_with_the_evidence(tmp_path: Path) -> None:
    """A log of 150 MB and a dump of 60 MB are bundled in the memory that small ones take, and some buffers."""

    def peak(name: str, scale: int) -> int:
        folder = tmp_path / name
        folder.mkdir()
        with (folder / "rank_0.log").open("w") as log:
            piece = _noise(500_000, 1) + "gpu-a017:1:1 [0] NCCL INFO password=Zx81 /home/alice/x\n"
            for _ in range(scale):
                log.write(piece)
        string = b"X\x10\x00\x00\x00/home/alice/x.py"
        row = b"(J\x00\x00\x00\x00" * 20 + b"t" * 20
        (folder / "nccl_trace_rank_0").write_bytes(b"\x80\x02](" + (string + row * 10) * (50 * scale) + b"e.")
        code = [sys.executable, "-c", _MEASURE, str(folder), str(tmp_path / f"{name}.tar.gz")]
        environ = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
        return int(subprocess.run(code, check=True, capture_output=True, text=True, env=environ).stdout) << 10

    small, large = peak("small", 2), peak("large", 60)
    # The dump is mapped, not read; pages of it that are in memory count all the same.
    assert large - small < 40e6 + (tmp_path / "large/nccl_trace_rank_0").stat().st_size
    assert (tmp_path / "large/rank_0.log").stat().st_size > 30e6


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 20, (1 << 20) + 1, 3_500_000])
def test_parallel_compression_gives_one_ordinary_gzip(size: int) -> None:
    """Whatever the size, the stream is a single gzip member that zlib, Python and gzip unpack."""
    data = random.Random(size).randbytes(size // 2) + b"a" * (size - size // 2)
    out = io.BytesIO()
    with GzipWriter(out, threads=3) as packer:
        for start in range(0, size, 300_000):
            packer.write(data[start : start + 300_000])
    assert packer.written == len(out.getvalue())
    machine = zlib.decompressobj(31)
    assert machine.decompress(out.getvalue()) == data
    assert machine.eof
    assert machine.unused_data == b""
    assert gzip.decompress(out.getvalue()) == data
    assert subprocess.run(["gzip", "-dc"], input=out.getvalue(), capture_output=True, check=True).stdout == data


# ---- the command line ------------------------------------------------------------------------------------------------


def test_the_command_makes_a_bundle_with_verdict_and_ticket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`bundle .` prints the bundle's name alone; the verdict and ticket inside name files as the bundle does."""
    shutil.copytree(HERE / "cases/sigkill", tmp_path / "hang")
    (tmp_path / "hang/gpu-worker-6/rank_0.log").open("a").write("export HF_TOKEN=hf_" + "aB3" * 12 + "\n")
    monkeypatch.chdir(tmp_path / "hang")
    assert main(["bundle", ".", "-o", "../x.tar.gz"]) == 0
    said = capsys.readouterr()
    assert said.out == "../x.tar.gz\n"
    assert "lines of 2 logs are not evidence and stay here; --all-lines includes them" in said.err
    assert "replaced" not in said.err
    assert main(["bundle", ".", "-o", "../all.tar.gz", "--all-lines"]) == 0
    said = capsys.readouterr()
    assert "replaced: 1 huggingface-token" in said.err
    assert "stay here" not in said.err
    extract(tmp_path / "x.tar.gz", tmp_path / "out")
    verdict = json.loads((tmp_path / "out/verdict.json").read_text())
    assert [culprit["rank"] for culprit in verdict["culprits"]] == [3]
    assert verdict["inputs"] == ["."]
    ticket = (tmp_path / "out/ticket.md").read_text()
    for text in (json.dumps(verdict), ticket, (tmp_path / "out/verdict.txt").read_text()):
        assert str(tmp_path) not in text
    assert "| gpu-worker-6/nccl_trace_rank_0 |" in ticket
    assert main(["diagnose", str(tmp_path / "x.tar.gz")]) == 1


def test_the_page_in_a_bundle_is_redacted_and_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """verdict.html in a bundle has no host, user or path of the place it was made at, and its script is still its own;
    an older page of the incident is replaced, and left out where no new one is made."""
    case = tmp_path / "hang"
    shutil.copytree(HERE / "cases/sigkill", case)
    (case / "incident.json").write_text('{"schema": "hangscope.incident/1"}')
    (case / "verdict.html").write_text("an older page of gpu-worker-6")
    assert main(["bundle", str(case), "-o", str(tmp_path / "x.tar.gz"), "--pseudonymise"]) == 0
    extract(tmp_path / "x.tar.gz", tmp_path / "out")
    page = (tmp_path / "out/verdict.html").read_text()
    assert "gpu-worker" not in page
    assert str(tmp_path) not in page
    assert "rank 3" in page
    script = page.split("<script>")[1].split("</script>")[0]
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{checksum}'" in page
    assert main(["bundle", str(case), "-o", str(tmp_path / "y.tar.gz"), "--no-verdict"]) == 0
    extract(tmp_path / "y.tar.gz", tmp_path / "bare")
    assert not (tmp_path / "bare/verdict.html").exists()


def test_the_command_keeps_the_culprits_evidence_below_a_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --max-size what goes is said on stderr, the culprit's and the first reporter's evidence stays."""
    target = tmp_path / "x.tar.gz"
    case = HERE / "cases/sigkill8"
    assert main(["bundle", str(case), "-o", str(target)]) == 0
    limit = target.stat().st_size * 6 // 10
    assert main(["bundle", str(case), "-o", str(target), "--max-size", str(limit), "--force"]) == 0
    assert target.stat().st_size <= limit
    assert "left out to keep the bundle small: NCCL logs of ranks" in capsys.readouterr().err
    files = verify(target).manifest.files
    truth = json.loads((case / "truth.json").read_text())
    roster = {row["rank"]: row for row in json.loads((case / "roster.json").read_text())}
    assert main(["diagnose", str(target)]) == 1
    for rank in truth["culprits"]:
        host, pid = roster[rank]["host"], roster[rank]["pid"]
        assert f"{host}/nccl.{host}.{pid}.log" in files
        assert f"{host}/rank_{rank}.log" in files


def test_the_command_verifies_unpacks_and_redacts_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--verify and --unpack open a bundle safely; bundling a bundle redacts what is in it."""
    target = tmp_path / "x.tar.gz"
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rank_0.log").write_text("password=Zx81\n")
    assert main(["bundle", str(tmp_path / "in"), "-o", str(target), "--no-redact"]) == 0
    assert main(["bundle", str(target), "--verify"]) == 0
    assert "all names and checksums match" in capsys.readouterr().err
    assert main(["bundle", str(target), "-o", str(tmp_path / "y.tar.gz"), "--all-lines"]) == 0
    assert main(["bundle", str(tmp_path / "y.tar.gz"), "--unpack", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out/rank_0.log").read_text() == "password=[redacted:password]\n"
    target.write_bytes(target.read_bytes()[:-30])
    assert main(["bundle", str(target), "--verify"]) == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--no-redact", "--pseudonymise"], "--no-redact and --pseudonymise contradict"),
        (["--no-redact", "--only-evidence"], "--no-redact and --only-evidence contradict"),
        (["--all-lines", "--only-evidence"], "--all-lines and --only-evidence contradict"),
        (["--max-size", "many"], "not a size such as"),
        (["--max-size", "10"], "more than the 10 allowed"),
    ],
)
def test_the_command_explains_what_cannot_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    """Options that contradict, sizes that are none and limits that are too tight are errors with exit status 2."""
    case = str(HERE / "cases/sigkill")
    assert main(["bundle", case, "-o", str(tmp_path / "x.tar.gz"), *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "x.tar.gz").exists()


def test_only_evidence_keeps_a_copied_sys_tree(tmp_path: Path) -> None:
    """A port's counters that somebody copied as files are evidence by their path, and stay; a note beside them goes."""
    port = tmp_path / "in/gpu-a017/sys/class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True)
    (port / "counters/link_downed").write_text("3\n")
    (port / "counters/notes").mkdir()
    (port / "counters/notes/private.txt").write_text("our customer's name\n")
    (tmp_path / "in/rank_0.log").write_text("gpu-a017:1:1 [0] NCCL INFO x\n")
    out = tmp_path / "x.tar.gz"
    assert main(["bundle", str(tmp_path / "in"), "-o", str(out), "--only-evidence", "--no-verdict"]) == 0
    extract(out, tmp_path / "out")
    kept = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert "link_downed" in kept
    assert "private.txt" not in kept


def test_a_gzip_of_zeros_is_given_up(tmp_path: Path) -> None:
    """A compressed log that unpacks to far more than its size is left out of a bundle, and named."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rank_0.log.gz").write_bytes(gzip.compress(bytes(70 << 20), 1))
    (tmp_path / "in/rank_1.log").write_text("NCCL INFO x\n")
    made = write_bundle(tmp_path / "in", tmp_path / "x.tar.gz")
    assert [gap.what for gap in made.left_out] == ["rank_0.log.gz"]
    assert "150 times" in made.left_out[0].why
