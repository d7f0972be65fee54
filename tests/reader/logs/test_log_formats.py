"""Every format of docs/log-formats.md in the reader's own terms: who, which kind, which peer, which operation."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

import hangscope
from hangscope.errors import DamagedError, NotFoundError
from hangscope.model import Failure, FailureKind, Job
from hangscope.model.values import short_name
from hangscope.reader.logs import line_prefixes, log_lines, unwrap
from hangscope.reader.logs.log_file import TextFile

EXCERPTS = sorted((Path(__file__).parents[2] / "excerpts").glob("*.txt"))
NAMES = [path.stem for path in EXCERPTS]


def load(tmp_path: Path, text: str, name: str = "paste.txt") -> Job:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return hangscope.load(path)


def only(tmp_path: Path, text: str, name: str = "paste.txt") -> Failure:
    (found,) = load(tmp_path, text, name).facts.failures
    return found


def truth(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return value


# ---- the excerpts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXCERPTS, ids=NAMES)
def test_what_shows_a_failure_is_never_refused(path: Path) -> None:
    """Every excerpt is read, shows a failure or that all is well, and shows the ranks that it names and no other."""
    job = hangscope.load(path)
    facts = job.facts
    want = truth(path)
    assert facts.failures or facts.watchdog or facts.errors or (want["outcome"] == "ok" and facts.progress)
    # a thread's expert also counts ranks that follow from what is said: a local rank, a ring
    assert set(job.ranks) <= set(want["ranks_seen"])
    assert "source" in want or list(job.ranks) == want["ranks_seen"]
    assert {failure.kind for failure in facts.failures} <= set(FailureKind)


@pytest.mark.parametrize("path", EXCERPTS, ids=NAMES)
def test_node_peer_and_operation_are_in_the_facts(path: Path) -> None:
    """The host, the peer and the operation that the text names stand in the facts, and not only in its words."""
    job, want = hangscope.load(path), truth(path)
    facts = job.facts
    if want["node"]:
        nodes = [item.node for item in (*facts.failures, *facts.errors, *facts.kernel)] + list(job.nodes.values())
        assert short_name(want["node"]) in {short_name(node) for node in nodes if node}
    if want["peer"]:
        peers = {short_name(f.peer_node) for f in facts.failures if f.peer_node}
        peers |= {f"rank {f.peer_rank}" for f in facts.failures if f.peer_rank is not None}
        assert short_name(want["peer"]) in peers
    if want["operation"]:
        named = {(item.operation, item.seq) for item in (*facts.watchdog, *facts.failures)}
        assert (want["operation"]["name"], want["operation"]["seq"]) in named


FILLER = b"".join(b"step=%d loss=%.4f lr=1e-4\n" % (step, 2 + step % 7) for step in range(16_000))


@pytest.mark.parametrize("path", EXCERPTS, ids=NAMES)
def test_an_excerpt_buried_in_a_long_log_reads_the_same(path: Path, tmp_path: Path) -> None:
    """Passing over stretches of loss values loses no line of failure."""
    if "- Running" in path.read_text(encoding="utf-8"):
        pytest.skip("a table of pods is no part of a log")
    buried = tmp_path / "long.txt"
    buried.write_bytes(FILLER + path.read_bytes() + FILLER)
    assert _said(hangscope.load(buried)) == _said(hangscope.load(path)) or "labelled" in _why_not(path)


def _said(job: Job) -> tuple[Any, ...]:
    """Facts without their places, which move."""
    lasting = [f for f in job.facts.failures if "throughput: " not in f.text]  # what a log's last lines alone say
    failures = sorted((f.kind, f.text, f.effect, f.code or 0) for f in lasting)
    return (
        failures,
        sorted((r.kind, str(r.seq), str(r.operation), str(r.group_name)) for r in job.facts.watchdog),
        sorted((e.type, e.message.split("\n", 1)[0]) for e in job.facts.errors),
    )


def _why_not(path: Path) -> str:
    """Prefixes that count only where nearly every line has one: among other lines they are the text's own."""
    bare = path.stem.split("_", 1)[0] in {"13", "52", "69", "77"}
    return "labelled lines" if bare else ""


# ---- prefixes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "tag", "task", "host", "text"),
    [
        ("[rank3]: hello", 3, None, "", "hello"),
        ("[rank: 3] hello", 3, None, "", "hello"),
        ("[default0]:[rank12]:[E x", 12, None, "", "[E x"),
        ("3: hello", None, 3, "", "hello"),
        ("[1,3]<stderr>:hello", None, 3, "", "hello"),
        ("[3]<stderr>:hello", None, 3, "", "hello"),
        ("[3] hello", None, 3, "", "hello"),
        ("[80746] [rank0]:[E x", 0, None, "", "[E x"),
        ("(Worker pid=88, ip=10.0.0.3) hello", None, None, "10.0.0.3", "hello"),
        ("(VllmWorker rank=2 pid=88) hello", None, 2, "", "hello"),
        ("\x1b[36m(Worker pid=88)\x1b[0m [rank1]: hello", 1, None, "", "hello"),
        ("[36m(Worker pid=88)[0m [rank1]: hello", 1, None, "", "hello"),
        ("[pod/train-worker-1/pytorch] [rank5]: hello", 5, None, "", "hello"),
        ("train-worker-1 pytorch [rank5]: hello", 5, None, "", "hello"),
        ("gpu004: hello", None, None, "gpu004", "hello"),
        ("[2026-11-15T21:35:32.106313Z] fa88a9df || hello", None, None, "", "hello"),
        ("[2026-11-15 08:52:43 TP5] hello", None, None, "", "hello"),
        ("2026-11-15T12:37:42.149692541Z (W pid=66) [rank1]: hello", 1, None, "", "hello"),
        ("``` rank0]:[E x", 0, None, "", "[E x"),
        ("[4] NCCL WARN cut", None, None, "", "[4] NCCL WARN cut"),
    ],
)
def test_prefixes_come_off_and_tell_the_writer(
    raw: str, tag: int | None, task: int | None, host: str, text: str
) -> None:
    """What a launcher put in front is taken off, and what it says about the writer is kept."""
    line = line_prefixes.split_prefix(1, raw)
    assert (line.tag, line.task, line.host, line.text) == (tag, task, host, text)


def test_a_host_in_front_of_few_lines_names_no_host(tmp_path: Path) -> None:
    """``step1:`` looks like pdsh's host; only where nearly every line has one is it believed."""
    text = "loss 2\nloss 3\nloss 4\nstep1: RuntimeError: CUDA error: unspecified launch failure\n"
    assert only(tmp_path, text).node is None


def test_numbers_that_count_the_lines_are_no_ranks(tmp_path: Path) -> None:
    """A viewer's line numbers in front of every line are not taken for srun's labels."""
    body = ["nothing"] * 30 + ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB."]
    found = only(tmp_path, "".join(f"{number}: {row}\n" for number, row in enumerate(body, 100)))
    assert (found.kind, found.rank) == ("gpu_oom", None)


def test_a_rank_in_a_subgroup_is_no_global_rank(tmp_path: Path) -> None:
    """``[PG 3 Rank 5]`` counts within that group: the timeout is told without a rank, with its operation."""
    text = (
        "[E ProcessGroupNCCL.cpp:607] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n"
        "[E ProcessGroupNCCL.cpp:1664] [PG 3 Rank 5] Exception (either an error or timeout) detected by watchdog at "
        "work: 9, last enqueued NCCL work: 9, last completed NCCL work: 8.\n"
    )
    job = load(tmp_path, text)
    (failure,) = job.facts.failures
    assert job.facts.watchdog == () and job.ranks == ()
    assert (failure.operation, failure.seq, failure.group_name, failure.effect) == ("all_reduce", 9, "3", True)


def test_a_bare_watchdog_line_is_booked_to_no_group(tmp_path: Path) -> None:
    """``[Rank 0] Watchdog caught`` names no group, and none is made up for it."""
    text = (
        "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL("
        "SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600020 milliseconds before "
        "timing out.\n"
    )
    (report,) = load(tmp_path, text).facts.watchdog
    assert (report.group_name, report.group_rank, report.rank) == (None, 0, 0)


@pytest.mark.parametrize("name", ["node_rank_2.log", "local_rank_2.log"])
def test_other_ranks_in_a_file_name_are_no_global_rank(tmp_path: Path, name: str) -> None:
    """A file named by node rank or local rank says nothing about the global rank."""
    assert only(tmp_path, "RuntimeError: CUDA error: device-side assert triggered\n", name).rank is None


def test_the_file_tells_whose_error_it_is(tmp_path: Path) -> None:
    """A line without any prefix in a file named by its rank is that rank's."""
    found = only(tmp_path, "RuntimeError: CUDA error: device-side assert triggered\n", "rank_7.err")
    assert (found.kind, found.rank) == ("cuda_error", 7)


# ---- mending ---------------------------------------------------------------------------------------------------------

MESSAGE = (
    "[rank0]:[E327 17:04:16.986381360 ProcessGroupNCCL.cpp:565] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=12, NumelOut=12, Timeout(ms)=1000) ran for 1099 milliseconds before "
    "timing out."
)


def unwrapped(text: str) -> list[tuple[int, str]]:
    return [(number, row) for number, row, _ in unwrap.unwrapped(log_lines.raw_lines(io.BytesIO(text.encode())))]


@pytest.mark.parametrize("width", range(60, 150, 7))
def test_a_message_cut_at_any_width_is_one_again(width: int) -> None:
    """Cut by a terminal, in the middle of words, the message reads as it was."""
    cut = "\n".join(MESSAGE[start : start + width] for start in range(0, len(MESSAGE), width))
    assert unwrapped(cut + "\n")[0] == (1, MESSAGE)


@pytest.mark.parametrize("width", range(60, 150, 7))
def test_a_message_wrapped_at_words_is_one_again(width: int) -> None:
    """Wrapped between words, with or without indentation, the message reads as it was."""
    rows = [""]
    for word in MESSAGE.split(" "):
        rows = [*rows[:-1], f"{rows[-1]} {word}".strip()] if len(rows[-1]) + len(word) < width else [*rows, word]
    wrapped = "\n   ".join(rows)
    found = unwrapped(wrapped + "\n")
    assert MESSAGE in [row for _, row in found] or _watchdog_of(wrapped) == _watchdog_of(MESSAGE)


def _watchdog_of(text: str) -> list[tuple[Any, ...]]:
    log = TextFile("x.log")
    data = (text + "\n").encode()
    log.read(io.BytesIO(data), len(data))
    return [(r.tag, r.report.seq, r.report.operation, r.report.elapsed_ms) for r in log.torch.reports]


def test_lines_that_nothing_finishes_stay_as_they_are() -> None:
    """A message that looks unfinished is given back untouched where no line below ends it."""
    text = "[rank0]:[E ProcessGroupNCCL.cpp:1] something new\nloss 1\nloss 2\n"
    assert unwrapped(text) == list(enumerate(text.splitlines(), 1))


def test_quotes_fences_and_entities_come_off() -> None:
    """A reply by e-mail, a code fence and a page's source read like the log."""
    assert unwrapped("> ```\n> [rank0]: a &lt;b&gt;\n```\n")[1] == (2, "[rank0]: a <b>")


# ---- one line each ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("srun: error: n1: task 3: Killed", "signal", {"rank": 3, "node": "n1", "code": -9}),
        ("srun: error: n1: task 3: Segmentation fault (core dumped)", "signal", {"rank": 3, "code": -11}),
        ("srun: error: n1: task 3: Exited with exit code 1", "exit", {"rank": 3, "code": 1}),
        ("srun: error: n1: task 3: Exited with exit code 137", "signal", {"rank": 3, "code": -9}),
        ("srun: error: n1: tasks 0-2,5: Killed", "signal", {"rank": None, "ranks": (0, 1, 2, 5), "code": -9}),
        ("slurmstepd: error: Detected 2 oom-kill event(s) in step 375.batch cgroup.", "host_oom", {"code": -9}),
        ("srun: error: Node failure on cn131", "node_failed", {"node": "cn131"}),
        ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-15T18:04:42 ***", "cancelled", {"effect": True}),
        ("MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD", "exit", {"rank": 3}),
        ("run.sh: line 28:  8156 Killed                  python3 main.py", "signal", {"pid": 8156, "code": -9}),
        ("Segmentation fault (core dumped)", "signal", {"code": -11}),
        ("process 1 terminated with exit code 1", "exit", {"local_rank": 1, "code": 1, "rank": None}),
        ("Process 2 exit with status code 139.", "signal", {"rank": 2, "code": -11}),
        (
            "(raylet) The node with node id: ab12 and address: 10.0.0.9 and node name: 10.0.0.9 has been marked dead "
            "because the detector has missed too many heartbeats from it.",
            "node_lost",
            {"node": "10.0.0.9"},
        ),
        (
            "(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed. ip: 10.0.0.9",
            "host_oom",
            {"node": "10.0.0.9"},
        ),
        ("    Reason:       OOMKilled", "host_oom", {"code": -9}),
        ("The node was low on resource: memory. Container pytorch was using 300Gi", "evicted", {"node": None}),
        ("!!!!!!! Segfault encountered !!!!!!!", "signal", {"code": -11}),
        ("NCCL failure common.cu:958 'internal error - please report this issue'", "nccl_internal_error", {}),
        (
            "n1:11:12 [0] NCCL WARN NET/IB : mlx5_3:1 Got async event : port error",
            None,
            {},
        ),
        (
            "n1:11:12 [0] proxy.cc:1119 NCCL WARN [Proxy Service 9] Failed to execute operation Connect from rank 9, "
            "retcode 6",
            "nccl_internal_error",
            {"node": "n1", "pid": 11, "effect": True},
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer "
            "[18.25.6.30]:28048",
            "socket_error",
            {"peer_node": "18.25.6.30", "effect": True},
        ),
        (
            "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no "
            "error",
            "socket_error",
            {"effect": False},
        ),
        (
            "[3]: params[0] in this process with sizes [4] appears not to match sizes of the same param in process 0.",
            "mismatch",
            {"rank": 3, "peer_rank": 0, "ranks": (0, 3)},
        ),
        (
            "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/0",
            "store_timeout",
            {"effect": True},
        ),
        (
            "F1115 02:00:00.000000 8 nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress",
            None,
            {},
        ),
        (
            "[2026-11-15 13:11:27,879] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 13266",
            "launcher_kill",
            {"pid": 13266, "effect": True},
        ),
        ("[rank: 2] Received SIGTERM: 15", "launcher_kill", {"rank": 2, "effect": True}),
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", "host_oom", {"effect": False}),
        ("=>> PBS: job killed: walltime 86435 exceeded limit 86400", "launcher_kill", {"effect": True}),
        (
            "EI0002: [PID: 29] 2026-11-15-15:09:34.713.335 The wait execution of the Notify register times out. "
            "Reason: The Notify register has not received the Notify record from remote rank: [24]. base information: "
            "[streamID:[1], taskID[3], tag[AllReduce_group_name_1654], x]",
            "wait_timeout",
            {"peer_rank": None, "operation": "AllReduce", "effect": True},  # 24 is its number in the group
        ),
        (
            "[ERROR] 2026-11-15-15:09:34 (PID:2969, Device:0, RankID:101) ERR00100 PTA call acl api failed.",
            "other",
            {"rank": 101, "pid": 2969},
        ),
        ("[FATAL ERROR]: HIP failure: 'invalid device pointer'", "cuda_error", {"detail": "invalid device pointer"}),
        (
            "n1:2:3 [1] hipify/src/transport/p2p.cc:220 NCCL WARN hipIpcGetMemHandle failed : invalid argument",
            "cuda_error",
            {"node": "n1"},
        ),
        ("OSError: [Errno 28] No space left on device", "exception", {"detail": "OSError", "effect": False}),
        (
            "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
            "(node-a, 29500).",
            "store_unreachable",
            {"effect": True, "peer_node": "node-a"},
        ),
        (
            "n2:3:3 [1] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-8aVbFk to 9637892 bytes",
            "node_resource",
            {"node": "n2", "pid": 3, "effect": False},
        ),
        (
            "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error",
            "gpu_lost",
            {"detail": "0000:03:00.0"},
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:72] Timed out waiting 1800000ms "
            "for recv operation to complete",
            "wait_timeout",
            {"effect": True, "operation": "recv"},
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_one_line_is_one_failure(text: str, kind: str | None, values: dict[str, Any], tmp_path: Path) -> None:
    """Each wording gives its kind and what it says about whom, and nothing more."""
    if kind is None:
        try:
            found = load(tmp_path, text + "\n").facts.failures
        except NotFoundError:
            return
        assert all(failure.kind in {"other", "ib_error", "xid"} for failure in found)
        return
    failure = only(tmp_path, text + "\n")
    assert failure.kind == kind
    assert {name: getattr(failure, name) for name in values} == values


def test_under_torchrun_a_task_is_no_rank(tmp_path: Path) -> None:
    """Where torchrun speaks, srun's task is a node's launcher: it is named, and taken for no rank."""
    text = (
        "E1115 03:11:09.420000 47 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) "
        "local_rank: 3 (pid: 4723) of binary: /opt/env/bin/python\nsrun: error: n7: task 1: Exited with exit code 1\n"
    )
    exits = [failure for failure in load(tmp_path, text).facts.failures if failure.kind == "exit"]
    assert [(failure.rank, failure.node, failure.detail) for failure in exits] == [(None, "n7", "task 1")]


def test_an_abort_by_the_watchdog_is_an_effect(tmp_path: Path) -> None:
    """SIGABRT of a rank that reported a timeout is how its watchdog ended it; without a report it is a failure."""
    table = "  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 5122)\n"
    (alone,) = load(tmp_path, "  time      : 2026-11-15_03:11:09\n" + table).facts.failures
    (after,) = load(tmp_path, MESSAGE + "\n  time      : 2026-11-15_03:11:09\n" + table).facts.failures
    assert (alone.effect, after.effect) == (False, True)


def test_whom_the_launcher_stopped_did_not_die_by_itself(tmp_path: Path) -> None:
    """SIGKILL of a process that torchrun had asked to close is an effect; of the first that failed it is not."""
    text = (
        "W1115 03:11:09.120000 47 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 4720 closing "
        "signal SIGTERM\n  time      : 2026-11-15_03:11:09\n  host      : n1\n  rank      : 0 (local_rank: 0)\n"
        "  exitcode  : -9 (pid: 4720)\n  time      : 2026-11-15_03:11:08\n  host      : n1\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 4721)\n"
    )
    ends = {f.rank: f.effect for f in load(tmp_path, text).facts.failures if f.kind == "signal"}
    assert ends == {0: True, 1: False}


def test_a_summary_whose_line_ends_are_lost_still_names_the_rank(tmp_path: Path) -> None:
    """A form that joins torchrun's rows, and takes blanks and underscores, leaves the rank, its pid and its signal."""
    text = "Root Cause (first observed failure) :\nrank3 (local rank: 1)exitcode: -9 (pid: 4721)error file: <N/A>\n"
    (failure,) = load(tmp_path, text).facts.failures
    assert (failure.rank, failure.local_rank, failure.pid, failure.code) == (3, 1, 4721, -9)


def test_another_container_s_error_is_not_the_tagged_rank_s(tmp_path: Path) -> None:
    """Where one writer is known by its prefix, an untagged line behind another prefix is somebody else's."""
    text = f"node-1  | ValueError: bad shape\nnode-0  | {MESSAGE}\n"
    assert only(tmp_path, text).rank is None


@pytest.mark.parametrize("coding", ["utf-16", "utf-8-sig"])
def test_text_as_windows_saves_it_is_read(tmp_path: Path, coding: str) -> None:
    """A log that went through PowerShell, or was saved with a mark in front, reads like any other."""
    (tmp_path / "paste.txt").write_bytes(f"{MESSAGE}\r\n".encode(coding))
    (report,) = hangscope.load(tmp_path).facts.watchdog
    assert (report.rank, report.seq) == (0, 2)


@pytest.mark.parametrize(
    ("text", "rank", "status"),
    [
        ("[rank: 1] Child process with PID 48 terminated with code -9. Forcefully terminating all other", 1, -9),
        ("Process 2 exit with status code 139.", 2, -11),
        ("mpirun noticed that process rank 5 with PID 363 on node node-b exited on signal 9 (Killed).", 5, -9),
    ],
)
def test_a_death_notice_says_how_the_process_ended(tmp_path: Path, text: str, rank: int, status: int) -> None:
    """What a framework or launcher says about the end of a rank is that rank's process in the job."""
    job = load(tmp_path, text + "\n")
    assert job.processes[rank].exit_status == status


def test_an_end_without_a_rank_is_a_gap_that_says_whose(tmp_path: Path) -> None:
    """A local rank alone is no rank: the job says that it ended, and that nobody knows which rank it was."""
    text = "[ERROR] [launch.py:434:sigkill_handler] ['python', 'main.py', '--local_rank=1'] exits with return code = -9"
    job = load(tmp_path, text + "\n")
    assert job.processes == {}
    assert [gap.what for gap in job.gaps][:1] == ["rank of local rank 1"]


def test_each_failure_is_told_once(tmp_path: Path) -> None:
    """The same line in a rank's log and in its node's, and torchrun's line beside its summary, are one failure."""
    row = "[rank2]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
    (tmp_path / "rank_2.log").write_text(row)
    (tmp_path / "node.log").write_text(row)
    assert len(hangscope.load(tmp_path).facts.failures) == 1


def test_a_healthy_log_has_no_line_of_failure(tmp_path: Path) -> None:
    """Loss values, warnings of other libraries and NCCL's setup are no failures."""
    text = (
        "NCCL version 2.21.5+cuda12.4\n"
        "n1:11:12 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.4<0>\n"
        "n1:11:12 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation\n"
        "UserWarning: Failed to load image Python extension: libtorch_cuda_cu.so\n"
        "[rank0]: step=10 loss=2.5 error=0.31 timeout=600\n"
        "INFO failed_requests=0 retry after exit=False\n"
    )
    assert load(tmp_path, text).facts.failures == ()


@pytest.mark.parametrize("start", ["NCCL WARN", "NCCL error", "CollectiveFingerPrint(", "CalledProcessError: Command "])
@pytest.mark.parametrize("fill", ["a", "1, ", "(", " but Rank 1"])
def test_no_line_costs_more_than_its_length(start: str, fill: str) -> None:
    """Lines made to be slow to match are read about as quickly as others: twenty of them within a second."""
    data = f"{start}{fill * 8000}"[:8000].encode() + b"\n"
    log = TextFile("x.log")
    began = time.process_time()
    log.read(io.BytesIO(data * 20), len(data) * 20)
    assert time.process_time() - began < 1


# ---- scopes, signs of life, refusals ---------------------------------------------------------------------------------


def test_an_excerpt_shows_neither_beginning_nor_end(tmp_path: Path) -> None:
    """Lines out of the middle testify to nothing before and after them."""
    (scope,) = load(tmp_path, MESSAGE + "\n").facts.logs
    assert (scope.ranks, scope.from_start, scope.to_end, scope.lines) == ((0,), False, False, 1)
    assert scope.local_time and scope.first_ns == scope.last_ns is not None


def test_a_launcher_s_banner_and_summary_show_both_ends(tmp_path: Path) -> None:
    """torchrun's first and last words bound what the log shows."""
    text = (
        "W1115 00:00:00.1 7 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each\n"
        "loss 1\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-15_03:11:09\n  host      : n1\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 9)\n"
    )
    (scope,) = load(tmp_path, text).facts.logs
    assert (scope.from_start, scope.to_end) == (True, True)


def test_files_named_by_rank_side_by_side_are_whole(tmp_path: Path) -> None:
    """Nobody cuts one excerpt a rank: several files named by rank are the job's own, unless one breaks off."""
    (tmp_path / "rank_0.log").write_text(f"loss 1\n{MESSAGE}\n")
    (tmp_path / "rank_1.log").write_text("loss 1\nlos")
    scopes = {scope.ranks: (scope.from_start, scope.to_end) for scope in hangscope.load(tmp_path).facts.logs}
    assert scopes == {(0,): (True, True), (1,): (True, False)}


def test_any_line_of_a_rank_is_a_sign_of_its_life(tmp_path: Path) -> None:
    """A tag, a label, and the answer to a dump signal each show that the process spoke, and where it did last."""
    text = (
        "[rank4]: step 1\n[rank4]: step 2\n"
        "[E ProcessGroupNCCL.cpp:1153] [PG 0 Rank 1] ProcessGroupNCCL preparing to dump debug info.\n" + MESSAGE + "\n"
    )
    signs = load(tmp_path, text).facts.signs_of_life
    assert {rank: source.place for rank, source in signs.items()} == {0: "line 4", 1: "line 3", 4: "line 2"}


def test_refused_dumps_are_gaps_of_their_ranks_and_no_logs(tmp_path: Path) -> None:
    """Six hostile dumps: each is a gap with the rank of its name, and none is read as a log."""
    hostile = (
        b"cos\nsystem\n(S'echo hi'\ntR.",
        b"\x80\x02cos\nsystem\nq\x00X\x02\x00\x00\x00hiq\x01\x85R.",
        b"(dp0\nS'entries'\np1\n(lp2\ns.",
        b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
        b"just text\n[1, 2\n",
        bytes(range(1, 256)) * 20,
    )
    for rank, data in enumerate(hostile):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(data)
    with pytest.raises(DamagedError, match="could be used"):
        hangscope.load(tmp_path)  # nothing else is there
    (tmp_path / "job.log").write_text(MESSAGE.replace("Rank 0", "Rank 6").replace("rank0", "rank6") + "\n")
    job = hangscope.load(tmp_path)
    assert [gap.rank for gap in job.gaps if gap.rank is not None][:6] == list(range(6))
    assert [Path(log.file).name for log in job.facts.logs] == ["job.log"]
    assert [rank for rank, _ in job.facts.log_ranks] == [6] and set(job.facts.signs_of_life) == {6}


def test_a_pickle_of_something_else_is_no_dump(tmp_path: Path) -> None:
    """A checkpoint's pickle beside the logs is passed over: it names no rank."""
    (tmp_path / "optimizer_3.pkl").write_bytes(b"\x80\x02}q\x00.")
    (tmp_path / "rank_0.log").write_text(MESSAGE + "\n")
    job = hangscope.load(tmp_path)
    assert job.ranks == (0,)


def test_what_was_looked_at_is_said_where_nothing_is_recognised(tmp_path: Path) -> None:
    """The error names the files that were opened in vain, and how much text was in them."""
    (tmp_path / "notes.txt").write_text("dear diary\nnothing happened\n")
    with pytest.raises(NotFoundError, match=r"notes\.txt \(2 lines of text\)"):
        hangscope.load(tmp_path)


def test_failures_of_an_older_attempt_are_left_out(tmp_path: Path) -> None:
    """An appended log: what the attempt before said, hours earlier, is no failure of this one."""
    first = MESSAGE.replace("E327 17:04:16", "E327 02:00:00")
    text = f"[rank0]: RuntimeError: CUDA error: device-side assert triggered\n{first}\nloss 1\n{MESSAGE}\n"
    facts = load(tmp_path, text).facts
    assert [report.at_ns is not None for report in facts.watchdog] == [True]
    assert facts.failures == ()
