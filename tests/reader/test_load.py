"""`load`: any mix of directories, files and archives becomes one job, whatever the order and the names."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import shutil
import tarfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hangscope.errors import NotFoundError
from hangscope.model import Job
from hangscope.reader.load import load
from hangscope.reader.logs import log_file
from kits.recorded import job_of

CASES = Path(__file__).parents[1] / "cases"
ALL = sorted(path.parent.name for path in CASES.glob("*/truth.json"))
DUMPED = [case for case in ALL if any(p.stat().st_size > 1000 for p in (CASES / case).glob("*/nccl_trace*"))]
"""Those in which PyTorch wrote a dump with entries: it does not where all wait for a communicator."""


def truth(case: str) -> dict[str, Any]:
    return json.loads((CASES / case / "truth.json").read_text())


def first_nccl_log(case: str) -> str:
    """What NCCL wrote first; with NCCL_DEBUG=WARN or unset that is next to nothing."""
    logs = sorted((CASES / case).glob("*/nccl.*.log"))
    return logs[0].read_text() if logs else ""


def copy(case: str, to: Path, keep: str = "**/*", drop: str | None = None) -> Path:
    for path in sorted((CASES / case).glob(keep)):
        if path.is_file() and not (drop and path.match(drop)):
            target = to / path.relative_to(CASES / case)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return to


def shape(job: Job, root: Path | None = None) -> str:
    """Everything a job says, with file names made comparable."""
    quotes = sorted(f"{source}: {quote}" for source, quote in job.facts.quotes.items())
    plain = replace(job.facts, log_ranks=(), quotes={})
    facts = {**asdict(plain), "quotes": quotes}
    rows = [str(op) for op in job.ops]
    told = json.dumps(
        [job.ranks, job.groups, sorted(job.dumps), job.nodes, facts, [asdict(g) for g in job.gaps], rows],
        default=str,
        sort_keys=True,
    )
    return told.replace(str(root), "") if root else told


# ---- the recorded cases ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ALL)
def test_recorded_case_gives_all_ranks_and_nodes(case: str) -> None:
    """Every recorded case has all its ranks, on the nodes where they ran."""
    job = job_of(CASES / case)
    said = truth(case)
    assert job.ranks == tuple(range(said["world_size"]))
    assert {str(rank): node for rank, node in job.nodes.items()} == said["nodes"]
    assert bool(len(job.ops)) == (case in DUMPED)


@pytest.mark.parametrize("case", [case for case in DUMPED if "NCCL INFO" in first_nccl_log(case)])
def test_nodes_are_known_from_nccls_log_alone(case: str, tmp_path: Path) -> None:
    """Without roster and RAS, NCCL's log lines say which rank ran where, also for a rank that left nothing else."""
    job = load([copy(case, tmp_path / "flat", keep="*/nccl.*.log")])
    assert {str(rank): node for rank, node in job.nodes.items()} == truth(case)["nodes"]
    assert len(job.ops) == 0


@pytest.mark.parametrize("case", DUMPED)
def test_directory_named_like_a_known_host_is_its_node(case: str, tmp_path: Path) -> None:
    """Dumps in directories named by host are on that host, once one line anywhere names the host."""
    root = copy(case, tmp_path / "c", keep="*/nccl_trace*")
    (root / "dmesg.txt").write_text(
        "".join(
            f"Nov 15 01:23:34 {h} kernel: NVRM: Xid (PCI:0000:9b:00): 43, x\n"
            for h in set(truth(case)["nodes"].values())
        )
    )
    job = load([root])
    assert job.nodes == {rank: node for rank in job.dumps for r, node in truth(case)["nodes"].items() if int(r) == rank}


def test_directory_that_nobody_calls_a_host_is_no_node(tmp_path: Path) -> None:
    """A directory's name alone never becomes a node."""
    job = load([copy("cpu_stall", tmp_path / "run7", keep="*/nccl_trace*")])
    assert job.nodes == {}


@pytest.mark.parametrize("case", ["cpu_stall", "sigkill", "exception", "multi_pg", "link_stall"])
def test_logs_alone_make_a_job_without_operations(case: str, tmp_path: Path) -> None:
    """A folder of training logs alone gives empty operations, all facts, and one gap about the dumps."""
    job = load([copy(case, tmp_path / "logs", keep="*/rank_*.log")])
    assert len(job.ops) == 0 and job.groups == ()
    assert job.ranks == (0, 1, 2, 3)
    assert {w.rank for w in job.facts.watchdog if w.kind == "timeout"}
    assert [gap.what for gap in job.gaps] == ["flight recorder dumps"]


def test_line_about_a_disabled_recorder_counts_only_without_a_recording(tmp_path: Path) -> None:
    """PyTorch prints it also where a stack took too long, so a dump, or one stack in the log, proves the opposite."""
    assert load([CASES / "cpu_stall"]).facts.recorder_off == ()
    lone = tmp_path / "lone"
    lone.mkdir()
    shutil.copy(CASES / "cpu_stall/gpu-worker-6/rank_0.log", lone)
    (source,) = load([lone]).facts.recorder_off
    assert source.place == "line 7"


@pytest.mark.parametrize("case", DUMPED)
def test_missing_dump_is_a_gap_with_its_reason(case: str) -> None:
    """A rank without a dump is named once, with what is known about it."""
    job = job_of(CASES / case)
    gaps = [gap for gap in job.gaps if gap.what.startswith("no dump of rank")]
    assert sorted(gap.rank for gap in gaps if gap.rank is not None) == sorted(set(job.ranks) - set(job.dumps))
    reasons = {
        "sigkill": "its process was killed by signal 9",
        "exception": "it ended with ValueError",
        "sigstop": "its process was still running and wrote none",
    }
    assert all(gap.why and gap.node == job.nodes[gap.rank or 0] for gap in gaps)
    assert case not in reasons or [gap.why for gap in gaps] == [reasons[case]]


# ---- order, names, forms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["multi_pg", "sigkill", "coalesced", "exception"])
def test_order_of_files_does_not_matter(case: str, tmp_path: Path) -> None:
    """The same files given one by one, in any order, make the same job."""
    paths = sorted(path for path in (CASES / case).rglob("*") if path.is_file())
    first = shape(load(paths))
    for seed in range(4):
        random.Random(seed).shuffle(paths)
        assert shape(load(paths)) == first


@pytest.mark.parametrize("case", ["multi_pg", "sigkill", "cpu_stall", "broadcast_link"])
def test_names_beyond_the_rank_do_not_matter(case: str, tmp_path: Path) -> None:
    """Files under other names in other directories say the same: logs by content, dumps by the number in the name."""
    flat = tmp_path / "x"
    flat.mkdir()
    for index, path in enumerate(
        sorted(p for p in (CASES / case).rglob("*") if p.is_file() and p.name != "truth.json")
    ):
        number = path.name.rsplit("_", 1)[1] if path.name.startswith("nccl_trace") else ""
        shutil.copy(path, flat / (f"dump-{number}" if number else f"file{index:03d}"))
    told, plain = load([flat]), load([CASES / case])
    assert (told.ranks, told.nodes, sorted(told.dumps)) == (plain.ranks, plain.nodes, sorted(plain.dumps))
    kinds = sorted((w.rank, w.kind, w.seq or 0, w.group_name) for w in plain.facts.watchdog)
    assert sorted((w.rank, w.kind, w.seq or 0, w.group_name) for w in told.facts.watchdog) == kinds
    assert sorted((e.rank, e.text) for e in told.facts.transport) == sorted(
        (e.rank, e.text) for e in plain.facts.transport
    )


def packed(case: str, form: str, to: Path) -> Path:
    if form == "gz files":
        for path in (CASES / case).rglob("*"):
            if path.is_file():
                target = to / "gz" / path.relative_to(CASES / case)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.with_name(target.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        return to / "gz"
    name = to / f"bundle.{form}"
    with tarfile.open(name, "w:gz" if form.endswith("gz") else "w") as archive:
        archive.add(CASES / case, "case")
    return name


@pytest.mark.parametrize("form", ["tar", "tar.gz", "tgz", "gz files"])
@pytest.mark.parametrize("case", ["sigkill", "multi_pg"])
def test_packed_evidence_reads_like_the_directory(case: str, form: str, tmp_path: Path) -> None:
    """A tar, a compressed tar and single compressed files make the same job as the files themselves."""
    told, plain = load([packed(case, form, tmp_path)]), load([CASES / case])
    assert (told.ranks, told.nodes, told.groups) == (plain.ranks, plain.nodes, plain.groups)
    assert [str(op) for op in told.ops] == [str(op) for op in plain.ops]
    assert len(told.facts.watchdog) == len(plain.facts.watchdog)
    assert len(told.facts.communicators) == len(plain.facts.communicators)
    assert [(gap.what, gap.why) for gap in told.gaps] == [(gap.what, gap.why) for gap in plain.gaps]


def test_source_in_an_archive_names_archive_and_member(tmp_path: Path) -> None:
    """What was read in an archive says in which, and where in it."""
    job = load([packed("exception", "tar.gz", tmp_path)])
    (error,) = job.facts.errors
    assert str(error.source) == f"{tmp_path}/bundle.tar.gz!case/gpu-worker-6/rank_1.log line 2"


def test_damaged_archive_is_a_gap_and_the_rest_is_read(tmp_path: Path) -> None:
    """An archive that breaks off gives what was whole, and a gap."""
    whole = packed("sigkill", "tar", tmp_path).read_bytes()
    (tmp_path / "half").mkdir()
    (tmp_path / "half/bundle.tar").write_bytes(whole[: len(whole) // 2 + 100])
    (tmp_path / "half/roster.json").write_bytes((CASES / "sigkill/roster.json").read_bytes())
    job = load([tmp_path / "half"])
    assert job.ranks == (0, 1, 2, 3)
    assert any("archive" in gap.what or "archive" in gap.why for gap in job.gaps)


def test_one_log_of_all_ranks_beside_the_dumps(tmp_path: Path) -> None:
    """One merged log of the whole job gives every rank's reports."""
    root = copy("link_stall", tmp_path / "m", keep="*/nccl_trace*")
    logs = [path.read_text() for path in sorted((CASES / "link_stall").glob("*/rank_*.log"))]
    (root / "slurm-481.out").write_text("".join(logs))
    told, plain = load([root]), load([CASES / "link_stall"])
    assert sorted((w.rank, w.kind, w.seq or 0) for w in told.facts.watchdog) == sorted(
        (w.rank, w.kind, w.seq or 0) for w in plain.facts.watchdog
    )
    assert {rank for rank, _ in told.facts.log_ranks} == {w.rank for w in plain.facts.watchdog}


def test_nccl_lines_inside_a_ranks_log_are_read(tmp_path: Path) -> None:
    """Without NCCL_DEBUG_FILE the lines sit in the rank's own output: they still give node, GPU and edges."""
    for path in (CASES / "multi_pg").glob("*/rank_*.log"):
        rank = int(path.stem.split("_")[1])
        pid = load([CASES / "multi_pg"]).processes[rank].pid
        (nccl,) = path.parent.glob(f"nccl.*.{pid}.log")
        (tmp_path / f"out{rank}").write_text(nccl.read_text() + path.read_text())
    job = load([tmp_path])
    assert {str(rank): node for rank, node in job.nodes.items()} == truth("multi_pg")["nodes"]
    assert job.processes[3].gpu == "0000:00:06.0"
    assert {rank for rank, _ in job.facts.log_ranks} == {0, 1, 2, 3}


# ---- what must not be read ------------------------------------------------------------------------------------------


def test_truth_and_verdicts_are_never_evidence(tmp_path: Path) -> None:
    """A truth file under any name, and an earlier verdict, change nothing."""
    root = copy("sigkill", tmp_path / "c", drop="truth.json")
    before = shape(load([root]), root)
    for name in ("truth.json", "notes.json", "zzz"):
        shutil.copy(CASES / "sigkill/truth.json", root / name)
    verdict = {"schema": "hangscope.diagnosis/1", "hang": True, "culprits": [{"rank": 0, "pid": 1}], "ranks": []}
    (root / "verdict.json").write_text(json.dumps(verdict))
    (root / "old.json").write_text(json.dumps(verdict))
    (root / "verdict.txt").write_text("HANG   rank 0\n[rank0]: Traceback (most recent call last):\nValueError: no\n")
    (root / "README.md").write_text("[rank0]: CUDA out of memory. Tried to allocate 1 GiB\n")
    (root / ".hidden.log").write_text("[rank0]: CUDA out of memory. Tried to allocate 1 GiB\n")
    (root / "rank_0.log.part").write_text("[rank0]: CUDA out of memory. Tried to allocate 1 GiB\n")
    assert shape(load([root]), root) == before


def test_links_out_of_the_tree_are_not_followed(tmp_path: Path) -> None:
    """A link to a file or directory elsewhere is passed over and named; a loop ends."""
    root = copy("healthy", tmp_path / "c")
    before = shape(replace(load([root]), gaps=()), root)
    (tmp_path / "secret.log").write_text("[rank0]: CUDA out of memory. Tried to allocate 1 GiB\n")
    (root / "link.log").symlink_to(tmp_path / "secret.log")
    (root / "dir").symlink_to(tmp_path)
    (root / "loop").symlink_to(root)
    (root / "itself.log").symlink_to(root / "itself.log")
    job = load([root])
    assert shape(replace(job, gaps=()), root) == before
    named = {gap.what.removeprefix(f"file {root}/"): gap.why for gap in job.gaps}
    assert named["link.log"] == named["dir"] == "a link that leads outside, not followed"
    assert named["itself.log"] == "a link that leads nowhere"


def test_unknown_files_are_passed_over_quietly(tmp_path: Path) -> None:
    """Configurations, images, checkpoints and pickles of something else give neither facts nor gaps."""
    root = copy("healthy", tmp_path / "c")
    before = shape(load([root]), root)
    (root / "config.yaml").write_text("lr: 0.1\n")
    (root / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (root / "model.json").write_text('{"layers": 12}')
    (root / "list.json").write_text("[1, 2, 3]")
    (root / "weights").write_bytes(bytes(range(256)) * 10)
    assert shape(load([root]), root) == before


@pytest.mark.parametrize("cut", [10, 200, 2000])
def test_damaged_dump_is_a_gap_and_no_dump(cut: int, tmp_path: Path) -> None:
    """A file that begins like a dump and breaks off leaves a gap that names it; the other ranks are read."""
    root = copy("cpu_stall", tmp_path / "c")
    path = root / "gpu-worker-7/nccl_trace_rank_3"
    path.write_bytes(path.read_bytes()[:cut])
    job = load([root])
    assert {0, 1, 2} <= set(job.dumps)
    assert any(gap.source is not None and gap.source.file == str(path) for gap in job.gaps)


def test_empty_dump_is_a_gap_and_an_empty_log_still_names_its_rank(tmp_path: Path) -> None:
    """A dump of no bytes was never finished; a log of no bytes is that of a rank that never spoke."""
    root = copy("cpu_stall", tmp_path / "c", keep="*/nccl_trace_rank_[01]")
    (root / "nccl_trace_rank_2").write_bytes(b"")
    (root / "rank_9.log").write_bytes(b"")
    job = load([root])
    assert [gap.rank for gap in job.gaps if gap.why == "the file is empty"] == [2]
    assert 9 in job.ranks
    assert 2 not in job.dumps


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_a_gap(tmp_path: Path) -> None:
    """A file that may not be read is named, and the rest is read."""
    root = copy("healthy", tmp_path / "c")
    (root / "roster.json").chmod(0)
    assert any("cannot be read" in gap.why for gap in load([root]).gaps)


def test_nothing_usable_says_what_was_looked_for(tmp_path: Path) -> None:
    """A folder without evidence, and a path that is not there, are errors with a hint."""
    (tmp_path / "config.yaml").write_text("lr: 0.1\n")
    with pytest.raises(NotFoundError, match="nothing usable") as caught:
        load([tmp_path])
    assert caught.value.hint is not None and "flight recorder dumps" in caught.value.hint
    with pytest.raises(NotFoundError, match="no such file"):
        load([tmp_path / "nowhere"])
    with pytest.raises(NotFoundError):
        load([])


def test_one_path_needs_no_list() -> None:
    """A single path may be given as it is, and a single file too."""
    assert load(str(CASES / "healthy")).ranks == (0, 1, 2, 3)
    assert load(CASES / "exception/gpu-worker-6/rank_1.log").facts.errors[0].rank == 1


def test_middle_of_a_huge_log_is_skipped_with_true_line_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log beyond the limit both ends are read, the line numbers stay right, and a gap says so."""
    monkeypatch.setattr(log_file, "HEAD_BYTES", 1 << 20)
    monkeypatch.setattr(log_file, "TAIL_BYTES", 2 << 20)
    error = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "a.py", line 1, in f\n[rank1]: KeyError: {}\n'
    filler = "step 1 loss 0.25 and nothing else to say about it today\n" * 150_000
    (tmp_path / "rank_1.log").write_text(error.format(1) + filler + error.format(2))
    job = load([tmp_path])
    assert [(e.message, e.source.place) for e in job.facts.errors] == [("1", "line 1"), ("2", f"line {150_000 + 4}")]
    assert any(gap.what.startswith("the middle of") for gap in job.gaps)


def test_two_sources_of_a_pid_that_disagree_are_told(tmp_path: Path) -> None:
    """A roster that NCCL's log contradicts wins, and the contradiction is a gap."""
    root = copy("healthy", tmp_path / "c")
    rows = json.loads((root / "roster.json").read_text())
    rows[0]["rank"], rows[1]["rank"] = 1, 0
    (root / "roster.json").write_text(json.dumps(rows))
    job = load([root])
    assert job.processes[1].pid == rows[0]["pid"]
    assert [gap.what for gap in job.gaps if gap.what.startswith("rank of pid")]


def test_pods_and_machines_are_two_names_of_one_node(tmp_path: Path) -> None:
    """In a container NCCL logs the pod's name: where it always goes with one machine, the roster's name is shown."""
    for rank in range(4):
        pod, pid = f"pod-{rank // 2}", 7 + rank % 2
        text = f"{pod}:{pid}:{pid} [0] NCCL INFO Bootstrap: Using eth0:10.0.0.{rank // 2}<0>\n"
        (tmp_path / f"nccl{rank}").write_text(text + nccl_init(pod, pid, rank, 4, "0x1", "01:00:00"))
    with (tmp_path / "nccl3").open("a") as log:
        log.write("pod-1:8:9 [0] NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.0<4711>\n")
    rows = [{"rank": rank, "host": f"gpu-a01{rank // 2}", "pid": 5000 + rank} for rank in range(4)]
    (tmp_path / "roster.json").write_text(json.dumps(rows))
    job = load([tmp_path])
    assert job.nodes == {0: "gpu-a010", 1: "gpu-a010", 2: "gpu-a011", 3: "gpu-a011"}
    assert [gap.what for gap in job.gaps] == ["flight recorder dumps"]
    assert [(e.rank, e.node, e.peer_node) for e in job.facts.transport] == [(3, "gpu-a011", "gpu-a010")]
    (tmp_path / "roster.json").write_text(json.dumps([{**row, "host": f"gpu-{row['rank']}"} for row in rows]))
    assert [gap.rank for gap in load([tmp_path]).gaps if gap.what.startswith("node of")] == [0, 1, 2, 3]


def test_job_of_two_directories_is_one_job(tmp_path: Path) -> None:
    """Each node's directory may be given by itself, dumps here and logs there."""
    whole = load([CASES / "multi_pg"])
    parts = [CASES / "multi_pg/gpu-worker-7", CASES / "multi_pg/gpu-worker-6", CASES / "multi_pg/roster.json"]
    job = load(parts)
    assert (job.ranks, job.nodes, job.groups) == (whole.ranks, whole.nodes, whole.groups)
    assert len(job.ops) == len(whole.ops)


def test_tar_of_hostile_names_stays_inside(tmp_path: Path) -> None:
    """Names that lead up or out are only names; nothing is written anywhere."""
    data = (CASES / "exception/gpu-worker-6/rank_1.log").read_bytes()
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        for name in ("../../../etc/rank_1.log", "/rank_1.log"):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    before = sorted(tmp_path.rglob("*"))
    assert {e.rank for e in load([tmp_path / "evil.tar"]).facts.errors} == {1}
    assert sorted(tmp_path.rglob("*")) == before


def test_mutated_evidence_never_breaks_the_reader(tmp_path: Path) -> None:
    """Logs, answers and rosters with bytes changed, cut and mixed give a job or "nothing usable", and no other end."""
    kinds = ("*/*.log", "ras.*", "roster.json", "*/stacks/*.txt")
    paths = [path for case in ALL[:12] for kind in kinds for path in sorted((CASES / case).glob(kind))]
    seeds = [data for path in paths if (data := path.read_bytes()[:12_000])]
    pieces = [b"9" * 7, b"9" * 25, b"9" * 5000, b"-1", b"0x", b"\n", b"[rank", b"NCCL INFO ", b"null", b"{", b"1e999"]
    chance = random.Random(7)
    ends: set[type] = set()
    for _ in range(150):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(1, 25)):
            at = chance.randrange(len(data) + 1)
            kind = chance.randrange(4)
            if kind == 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            elif kind == 1:
                del data[at : at + chance.randrange(1, 200)]
            elif kind == 2:
                data[at:at] = chance.choice(pieces)
            else:
                other = chance.choice(seeds)
                start = chance.randrange(len(other))
                data[at:at] = other[start : start + 2000]
        (tmp_path / "rank_1").write_bytes(bytes(data))
        try:
            ends.add(type(load([tmp_path])))
        except NotFoundError:
            ends.add(NotFoundError)
    assert ends == {Job, NotFoundError}, "both ends were tried"


def test_absurd_numbers_are_not_believed(tmp_path: Path) -> None:
    """A rank of a billion, a communicator of a billion and a world of a billion cost neither memory nor time."""
    (tmp_path / "a.log").write_text("[rank999999999]: Traceback (most recent call last):\nValueError: x\n")
    (tmp_path / "b.log").write_text(nccl_init("n0", 1, 999999999, 2000000000, "0x1", "01:00:00"))
    (tmp_path / "incident.json").write_text('{"schema": "hangscope.incident/1", "world_size": 1000000000000}')
    rows = [{"rank": 10**12, "host": "n0", "pid": 1}, {"rank": 3, "host": "n0", "pid": 2, "ended_at": 1e999}]
    (tmp_path / "roster.json").write_text(json.dumps(rows))
    assert load([tmp_path]).ranks == (3,)


# ---- several attempts -----------------------------------------------------------------------------------------------


def timeout(rank: int, at: str, seq: int) -> str:
    work = f"WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)"
    return (
        f"[rank{rank}]:[E1115 {at}.1 ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: {work} ran for 600123 milliseconds before timing out.\n"
    )


def test_earlier_attempt_in_an_appended_log_is_left_out(tmp_path: Path) -> None:
    """A log that a restarted job went on writing counts from the newest attempt on; the rest is a gap."""
    crash = '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "a.py", line 1, in f\n'
    crash += "[rank{0}]: KeyError: {1}\n"
    for rank in range(2):
        text = (
            crash.format(rank, 1) + timeout(rank, "01:00:00", 7) + timeout(rank, "04:30:00", 99) + crash.format(rank, 2)
        )
        (tmp_path / f"rank_{rank}.log").write_text(text)
    job = load([tmp_path])
    assert [(w.rank, w.seq) for w in job.facts.watchdog] == [(0, 99), (1, 99)]
    assert [(e.rank, e.message) for e in job.facts.errors] == [(0, "2"), (1, "2")]
    assert [gap.rank for gap in job.gaps if gap.what.startswith("an older attempt")] == [0, 1]


def test_late_second_failure_of_another_rank_is_the_same_attempt(tmp_path: Path) -> None:
    """Ranks that report hours apart, each once, are one attempt: nothing is thrown away."""
    (tmp_path / "a.log").write_text(timeout(0, "01:00:00", 7) + timeout(1, "04:30:00", 7))
    assert len(load([tmp_path]).facts.watchdog) == 2


def nccl_init(host: str, pid: int, rank: int, size: int, ident: str, at: str) -> str:
    return (
        f"[2026-11-15T{at}] {host}:{pid}:{pid} [0] NCCL INFO comm 0x1 rank {rank} nranks {size} cudaDev 0 nvmlDev 0 "
        f"busId 9b000 commId {ident} - Init START\n"
    )


def test_nccl_logs_of_an_older_attempt_are_left_out(tmp_path: Path) -> None:
    """Processes of an earlier attempt beside those of the newest do not confuse who is who."""
    for attempt, (at, base) in enumerate((("01:00:00", 100), ("02:00:00", 200))):
        for rank in range(4):
            text = nccl_init(f"n{rank // 2}", base + rank, (rank + attempt) % 4, 4, f"0x{attempt + 1}", at)
            (tmp_path / f"nccl.n{rank // 2}.{base + rank}.log").write_text(text)
    job = load([tmp_path])
    assert {rank: p.pid for rank, p in job.processes.items()} == {0: 203, 1: 200, 2: 201, 3: 202}
    assert {c.comm_id for c in job.facts.communicators} == {"0x2"}
    assert [gap.what for gap in job.gaps if "older attempt" in gap.what] == ["NCCL logs of an older attempt"]


def test_roster_says_which_attempt_is_meant(tmp_path: Path) -> None:
    """A roster of the earlier attempt makes that one the job, though newer logs lie beside it."""
    for attempt, (at, base) in enumerate((("01:00:00", 100), ("02:00:00", 200))):
        for rank in range(2):
            (tmp_path / f"f{base + rank}").write_text(nccl_init("n0", base + rank, rank, 2, f"0x{attempt + 1}", at))
    rows = [{"rank": rank, "host": "n0", "pid": 100 + rank, "exit": 1} for rank in range(2)]
    (tmp_path / "roster.json").write_text(json.dumps(rows))
    assert {c.pid for c in load([tmp_path]).facts.communicators} == {100, 101}


def test_two_halves_that_start_together_are_one_attempt(tmp_path: Path) -> None:
    """Equal communicators of different processes that begin at the same time are groups of one job."""
    for half in range(2):
        for rank in range(2):
            text = nccl_init("n0", 100 + 2 * half + rank, rank, 2, f"0x{half + 1}", f"01:00:0{half}")
            (tmp_path / f"f{half}{rank}").write_text(text)
    assert len(load([tmp_path]).facts.communicators) == 4


def test_progress_counts_every_file(tmp_path: Path) -> None:
    """Logs count as dumps do: of a hundred thousand of them somebody who waits sees how far it is."""
    for dump in (CASES / "skipped").rglob("*"):
        if dump.is_file() and "truth" not in dump.name:
            shutil.copy(dump, tmp_path)
    told: list[tuple[int, int, str]] = []
    load(tmp_path, progress=lambda done, total, what: told.append((done, total, what)))
    sizes = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[-1][:2] == (sizes, sizes)
    assert {Path(what).name for _, _, what in told} == {path.name for path in tmp_path.iterdir()}
