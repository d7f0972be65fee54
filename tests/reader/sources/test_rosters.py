"""Who ran where and how it ended: rosters, hangscope's manifests, torchrun's error files, launchers' logs."""
# ruff: noqa: E501  (log lines are quoted whole)

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from hangscope.diagnosis import diagnose
from hangscope.model import Job
from hangscope.model.values import host_name, pci_id, short_name
from hangscope.reader.load import load
from hangscope.reader.logs.launchers.slurm_log import expand_range
from hangscope.reader.sources import rosters
from kits import recorded

CASES = Path(__file__).parents[2] / "cases"


def job_of(tmp_path: Path, files: dict[str, str | object]) -> Job:
    for name, content in files.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return load([tmp_path / "in"])


# ---- rosters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", sorted(p.parent.name for p in CASES.glob("*/roster.json")))
def test_recorded_rosters_give_every_ranks_process(case: str) -> None:
    """Host, local rank, pid, exit status and time of every rank come out as the roster has them."""
    rows = {row["rank"]: row for row in json.loads((CASES / case / "roster.json").read_text())}
    job = recorded.job_of(CASES / case)
    assert job.ranks == tuple(sorted(rows))
    for rank, row in rows.items():
        process = job.processes[rank]
        assert (process.node, process.local_rank, process.pid) == (row["host"], row["local_rank"], row["pid"])
        assert (process.exit_status, process.ended_at_s) == (row["exit"], row["ended_at"])
        assert process.alive_at_end is (row["exit"] is None)
        assert job.nodes[rank] == row["host"]


@pytest.mark.parametrize("names", [("host", "exit"), ("hostname", "returncode"), ("node", "exit_code")])
def test_rosters_of_other_spellings_are_read(tmp_path: Path, names: tuple[str, str]) -> None:
    """The columns go by several names; rows may lie under "ranks"."""
    rows = [{"rank": r, names[0]: f"n{r // 8}", "pid": 100 + r, names[1]: -9 if r == 11 else 0} for r in range(16)]
    job = job_of(tmp_path, {"whatever": {"ranks": rows}})
    assert job.ranks == tuple(range(16))
    assert (job.processes[11].node, job.processes[11].exit_status) == ("n1", -9)


@pytest.mark.parametrize(
    "value", [[], [{"rank": 1}], [{"pid": 1}], {"ranks": []}, [1, 2], "x", [{"rank": 0, "pg_id": 0, "pid": 1}]]
)
def test_other_lists_are_no_rosters(value: Any) -> None:
    """A list is a roster only if every row has a rank and says something about a process."""
    assert not rosters.is_roster(value)


# ---- hangscope's own files ------------------------------------------------------------------------------------------

MANIFEST = {
    "schema": "hangscope.incident/1",
    "job": "48121",
    "attempt": "2",
    "reason": "stall",
    "captured_at": "2026-11-15T02:30:11.204Z",
    "nodes_expected": ["gpu-a017", "gpu-a018"],
    "nodes_present": ["gpu-a017"],
    "world_size": 4,
    "versions": {"hangscope": "0.1.0"},
    "files": {},
}
NODE = {
    "schema": "hangscope.node/1",
    "node": "gpu-a017",
    "captured_at": "2026-11-15T02:30:11.204Z",
    "job": "48121",
    "attempt": "2",
    "versions": {"python": "3.12.3", "torch": "2.11.0", "nccl": "2.28.9"},
    "ranks": [
        {"rank": 0, "local_rank": 0, "pid": 81233, "gpu": "0000:9D:00.0", "state": "S", "wait_channel": "futex_wait_queue",
         "exit_status": None, "ended_at": None, "server_answers": True, "python_answers": False, "oom_kills": 0},
        {"rank": 1, "local_rank": 1, "pid": 81234, "gpu": None, "state": "gone", "wait_channel": None,
         "exit_status": -9, "ended_at": 1794705819.9, "python_answers": None, "oom_kills": 1},
    ],
    "gaps": [{"what": "stacks of rank 0", "why": "py-spy: permission denied", "rank": 0}],
}  # fmt: skip


def test_incident_gives_the_job_its_frame(tmp_path: Path) -> None:
    """Job, attempt, reason, time, world size, versions and what is missing come from the manifests."""
    job = job_of(tmp_path, {"incident.json": MANIFEST, "nodes/gpu-a017/node.json": NODE})
    assert (job.job_id, job.attempt, job.reason) == ("48121", "2", "stall")
    assert job.captured_at_ns == 1_794_709_811_204_000_000
    assert job.ranks == (0, 1, 2, 3)
    assert job.facts.versions["torch"] == "2.11.0"
    whats = [gap.what for gap in job.gaps]
    assert "nothing from node gpu-a018" in whats and "stacks of rank 0" in whats


@pytest.mark.parametrize("present", [["gpu-a017"], None])
def test_of_a_node_that_gave_nothing_it_is_said_why(present: list[str] | None, tmp_path: Path) -> None:
    """In the words of who captured it, also where no node gave anything; what else is missing there is no such node."""
    reasons = [
        {"what": "nothing from node gpu-a018", "why": "its step of srun did not answer", "node": "gpu-a018"},
        {"what": "the kernel log", "why": "dmesg is not permitted", "node": "gpu-a017"},
    ]
    cluster = {"schema": "hangscope.ray/1", "nodes": [{"id": "1", "name": "gpu-a018", "alive": True}]}
    manifest = {**MANIFEST, "nodes_present": present, "gaps": reasons}
    job = job_of(tmp_path, {"incident.json": manifest, "ray/cluster.json": cluster})
    absent = [(gap.node, gap.why) for gap in job.gaps if gap.what.startswith("nothing from node")]
    assert absent == [("gpu-a018", "its step of srun did not answer")]
    assert diagnose(job).headline.startswith("cannot tell: nothing came from 1 node,")


def test_node_file_says_who_lives_and_who_answers(tmp_path: Path) -> None:
    """State, wait channel, GPU and whether Python answers are kept; a killed rank's control group is a kernel message."""
    job = job_of(tmp_path, {"incident.json": MANIFEST, "nodes/gpu-a017/node.json": NODE})
    alive, dead = job.processes[0], job.processes[1]
    assert (alive.alive_at_end, alive.state, alive.wait_channel, alive.python_answers) == (
        True,
        "S",
        "futex_wait_queue",
        False,
    )
    assert (alive.gpu, alive.node) == ("0000:9d:00.0", "gpu-a017")
    assert (dead.alive_at_end, dead.exit_status, dead.state) == (False, -9, "gone")
    assert [(m.kind, m.pid, m.node) for m in job.facts.kernel] == [("oom", 81234, "gpu-a017")]


def test_a_count_of_kills_is_of_the_rank_that_was_killed(tmp_path: Path) -> None:
    """All ranks of a container share a control group: one kill is counted for each, and only one of them is gone."""
    rows = [{**row, "oom_kills": 1} for row in NODE["ranks"]]
    job = job_of(tmp_path, {"incident.json": MANIFEST, "nodes/gpu-a017/node.json": {**NODE, "ranks": rows}})
    assert [message.pid for message in job.facts.kernel] == [81234]


def test_a_pid_is_one_ranks_only_on_its_node(tmp_path: Path) -> None:
    """Containers number their processes alike: who was killed for memory in one is not who has that pid in another."""
    ended = {"state": "gone", "ended_at": 1794705819.9, "local_rank": 0, "pid": 48, "server_answers": None}
    killed = {**ended, "rank": 0, "exit_status": -9, "oom_kills": 1}
    lost_a_peer = {**ended, "rank": 1, "exit_status": 1, "oom_kills": 0}
    nodes = {"pod-0": [killed], "pod-1": [lost_a_peer]}
    parts = {f"nodes/{name}/node.json": {**NODE, "node": name, "ranks": rows} for name, rows in nodes.items()}
    job = job_of(tmp_path, {"incident.json": {**MANIFEST, "reason": "rank-exit", "world_size": 2}, **parts})
    verdict = diagnose(job)
    assert [each.rank for each in verdict.culprits] == [0]
    assert "out of memory" in verdict.headline


def test_roster_beats_node_file_and_the_contradiction_is_told(tmp_path: Path) -> None:
    """Where two sources disagree the better one wins, and a gap names both."""
    roster = [{"rank": 1, "host": "gpu-a017", "pid": 81234, "exit": -6}]
    job = job_of(tmp_path, {"incident.json": MANIFEST, "nodes/gpu-a017/node.json": NODE, "r.json": roster})
    assert job.processes[1].exit_status == -6
    assert [gap.rank for gap in job.gaps if gap.what == "exit status of rank 1"] == [1]


def test_only_the_newest_of_several_incidents_is_read(tmp_path: Path) -> None:
    """Incidents of earlier attempts in the same tree are left out, and named as gaps."""
    files: dict[str, str | object] = {}
    for attempt, minute, code in (("0", 10, 1), ("1", 30, 3)):
        where = f"attempt-{attempt}"
        files[f"{where}/incident.json"] = {**MANIFEST, "attempt": attempt, "captured_at": f"2026-11-15T02:{minute}:00Z"}
        files[f"{where}/nodes/gpu-a017/node.json"] = {
            **NODE, "attempt": attempt, "ranks": [{"rank": 0, "pid": 1, "state": "gone", "exit_status": code}],
        }  # fmt: skip
    job = job_of(tmp_path, {k.replace("attempt-", "try"): v for k, v in files.items()})
    assert (job.attempt, job.processes[0].exit_status) == ("1", 3)
    assert [gap.what for gap in job.gaps if gap.what.startswith("incident ")] == ["incident in/try0"]


def test_parts_of_one_incident_from_two_nodes_belong_together(tmp_path: Path) -> None:
    """Two nodes' own copies of one incident, captured a few seconds apart, are one."""
    files: dict[str, str | object] = {}
    for index, node in enumerate(("gpu-a017", "gpu-a018")):
        files[f"{node}/incident.json"] = {
            **MANIFEST,
            "captured_at": f"2026-11-15T02:30:{index:02d}Z",
            "nodes_present": [node],
        }
        files[f"{node}/nodes/{node}/node.json"] = {
            **NODE,
            "node": node,
            "ranks": [{"rank": index, "pid": 7, "state": "S"}],
        }
    job = job_of(tmp_path, files)
    assert job.nodes == {0: "gpu-a017", 1: "gpu-a018"}


# ---- launchers ------------------------------------------------------------------------------------------------------

SUMMARY = """\
E1115 01:23:15.892000 12345 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 123) of binary: /usr/bin/python3
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-15_01:23:15
  host      : gpu-a017.cluster.local
  rank      : 8 (local_rank: 0)
  exitcode  : 1 (pid: 122)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-15_01:23:14
  host      : gpu-a017.cluster.local
  rank      : 9 (local_rank: 1)
  exitcode  : -9 (pid: 123)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 123
============================================================
"""


@pytest.mark.parametrize("prefix", ["", "1: ", "2026-11-15T01:23:16.000000000Z stderr F ", "[1,1]<stderr>:"])
def test_torchruns_summary_gives_ranks_and_exits(tmp_path: Path, prefix: str) -> None:
    """Rank, local rank, host, pid and exit status of every failed worker are read, whatever stands in front."""
    job = job_of(tmp_path, {"launcher.log": "".join(f"{prefix}{row}\n" for row in SUMMARY.split("\n"))})
    assert (job.processes[9].exit_status, job.processes[9].pid, job.processes[9].local_rank) == (-9, 123, 1)
    assert job.processes[9].ended_at_s == 1794705794
    assert job.processes[8].exit_status == 1
    assert job.nodes == {8: "gpu-a017.cluster.local", 9: "gpu-a017.cluster.local"}


def test_short_and_full_host_names_are_one_node(tmp_path: Path) -> None:
    """torchrun logs the full name, NCCL the short one: it is one host, in the spelling of the better source."""
    roster = [{"rank": r, "host": "gpu-a017", "pid": 122 + r - 8} for r in (8, 9)]
    nccl = "gpu-a017:123:123 [1] NCCL INFO Bootstrap: Using eth0:10.0.0.9<0>\n"
    job = job_of(tmp_path, {"launcher.log": SUMMARY, "roster": roster, "nccl.log": nccl})
    assert set(job.nodes.values()) == {"gpu-a017"}
    assert not [gap for gap in job.gaps if gap.what.startswith("node of")]


def test_failed_line_alone_is_joined_by_pid(tmp_path: Path) -> None:
    """A line that knows only pid and local rank finds its rank through the roster."""
    roster = [{"rank": r, "host": f"n{r // 2}", "local_rank": r % 2, "pid": 500 + r} for r in range(4)]
    line = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -11) local_rank: 1 (pid: 503) of binary: /usr/bin/python\n"
    job = job_of(tmp_path, {"roster.json": roster, "out.txt": line})
    assert job.processes[3].exit_status == -11


def test_who_was_stopped_by_the_launcher_was_alive(tmp_path: Path) -> None:
    """A worker that torchrun had to stop was alive until then; its end by SIGTERM is nobody's fault."""
    text = (
        "W1115 01:23:15.3 1 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 122 closing signal SIGTERM\n"
        + SUMMARY.replace("exitcode  : 1 (pid: 122)", "exitcode  : -15 (pid: 122) (SIGTERM)")
    )
    job = job_of(tmp_path, {"launcher.log": text})
    assert (job.processes[8].alive_at_end, job.processes[8].exit_status) == (True, None)
    assert (job.processes[9].alive_at_end, job.processes[9].exit_status) == (False, -9)


def test_stubborn_worker_that_the_launcher_killed_is_not_dead_by_itself(tmp_path: Path) -> None:
    """torchrun ends a worker that ignores SIGTERM by SIGKILL; a roster that saw -9 must not make it a culprit."""
    roster = [{"rank": r, "host": "gpu-a017", "pid": 122 + r, "exit": -9, "ended_at": 5.0} for r in range(2)]
    text = (
        "Sending process 122 closing signal SIGTERM\nUnable to shutdown process 122 via 15, forcefully exiting via 9\n"
    )
    job = job_of(tmp_path, {"roster.json": roster, "launcher.log": text})
    assert (job.processes[0].alive_at_end, job.processes[0].exit_status) == (True, None)
    assert (job.processes[1].alive_at_end, job.processes[1].exit_status) == (False, -9)


def test_slurm_kills_the_innocent_after_the_guilty(tmp_path: Path) -> None:
    """Tasks that Slurm kills once it has begun to end the step were alive until then."""
    text = (
        "srun: error: gpu-a017: task 3: Out Of Memory\nsrun: Terminating StepId=48121.0\n"
        "slurmstepd: error: *** STEP 48121.0 ON gpu-a016 CANCELLED AT 2026-11-15T01:23:34 ***\n"
        "srun: error: gpu-a016: tasks 0-2: Killed\n"
    )
    job = job_of(tmp_path, {"slurm.out": text})
    assert {rank: process.exit_status for rank, process in job.processes.items()} == {0: None, 1: None, 2: None, 3: -9}
    assert all(job.processes[rank].alive_at_end for rank in range(3))


SLURM = {
    "srun: error: gpu-a017: task 3: Killed": {3: -9},
    "srun: error: gpu-a017: tasks 0-1,3: Out Of Memory": {0: -9, 1: -9, 3: -9},
    "srun: error: gpu-a017: task 2: Exited with exit code 1": {2: 1},
    "srun: error: gpu-a017: task 1: Segmentation fault (core dumped)": {1: -11},
    "srun: error: gpu-a017: task 1: Aborted (core dumped)": {1: -6},
    "mpirun noticed that process rank 3 with PID 751 on node gpu-a017 exited on signal 9 (Killed).": {3: -9},
    "prterun noticed that process rank 2 with PID 9 on node gpu-a017 exited on signal 11 (Segmentation fault).": {
        2: -11
    },
}


@pytest.mark.parametrize("line", SLURM)
def test_slurm_and_mpirun_say_who_ended_how(tmp_path: Path, line: str) -> None:
    """A batch system's words about a task give its rank, node and exit status."""
    job = job_of(tmp_path, {"slurm-48121.out": line + "\n"})
    assert {r: p.exit_status for r, p in job.processes.items()} == SLURM[line]
    assert set(job.nodes.values()) == {"gpu-a017"}


def test_slurms_task_is_a_node_where_torchrun_runs_in_it(tmp_path: Path) -> None:
    """With one torchrun a task, a task number is no rank: the statement stays a gap."""
    job = job_of(tmp_path, {"slurm.out": SUMMARY + "srun: error: gpu-a017: task 1: Exited with exit code 1\n"})
    assert 1 not in job.processes
    assert [gap.what for gap in job.gaps if "task" in gap.what] == ["rank of task 1"]


def test_shells_word_about_a_pid_is_joined(tmp_path: Path) -> None:
    """The shell that started a rank says that it was killed, and knows only its pid."""
    roster = [{"rank": r, "host": "h", "pid": 750 + r} for r in range(4)]
    job = job_of(
        tmp_path,
        {"roster.json": roster, "run.log": "/bin/run.sh: line 12:   751 Killed                  python train.py\n"},
    )
    assert job.processes[1].exit_status == -9


def test_ranges_of_tasks() -> None:
    """Slurm's ranges are spelled out; nonsense is left out."""
    assert expand_range("0-2,7") == [0, 1, 2, 7]
    assert expand_range("x,3-") == []
    assert len(expand_range("0-999999999999")) == 100_001


# ---- torchrun's error files -----------------------------------------------------------------------------------------


def test_error_file_is_quoted_with_its_line(tmp_path: Path) -> None:
    """What @record wrote is an error of the rank whose log lies beside it."""
    reply = {
        "message": {
            "message": "ValueError: bad sample",
            "extraInfo": {
                "py_callstack": 'Traceback (most recent call last):\n  File "/w/train.py", line 11, in main\n    raise\nValueError: bad sample\n',
                "timestamp": "1794711462",
            },
        }
    }
    log = "[rank5]:[W1115 01:23:51.4 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called before program exit\n"
    job = job_of(tmp_path, {"run/attempt_0/1/error.json": reply, "run/attempt_0/1/stderr.log": log})
    (error,) = job.facts.errors
    assert (error.rank, error.type, error.message, error.frames[-1].line) == (5, "ValueError", "bad sample", 11)
    assert error.at_ns == 1_794_711_462_000_000_000


def test_captured_error_file_has_its_rank_in_its_name(tmp_path: Path) -> None:
    """The recorder keeps an error file under the rank's name, because torchrun removes the original."""
    reply = {"message": {"message": "KeyError: 'x'", "extraInfo": {"timestamp": "1"}}}
    job = job_of(tmp_path, {"nodes/gpu-a017/logs/error_rank_6.json": reply})
    assert [(e.rank, e.type) for e in job.facts.errors] == [(6, "KeyError")]


def test_error_file_without_a_stack_still_has_its_message(tmp_path: Path) -> None:
    """A reply without a call stack gives type and message, and no rank."""
    job = job_of(tmp_path, {"reply.json": {"message": {"message": "KeyError: 'x'", "extraInfo": {"timestamp": "1"}}}})
    assert [(e.rank, e.type, e.message) for e in job.facts.errors] == [(None, "KeyError", "'x'")]


def test_older_attempts_of_torchrun_are_left_out(tmp_path: Path) -> None:
    """Of attempt_0, attempt_1… side by side only the last is read; the others are gaps."""

    def log(text: str) -> str:
        return f'[rank0]: Traceback (most recent call last):\n[rank0]:   File "a.py", line 1, in f\n[rank0]: ValueError: {text}\n'

    job = job_of(tmp_path, {f"j/attempt_{n}/0/stderr.log": log(f"try {n}") for n in (0, 1, 10)})
    assert [e.message for e in job.facts.errors] == ["try 10"]
    assert [g.what for g in job.gaps if g.what.startswith("attempt")] == [
        "attempt in in/j/attempt_0",
        "attempt in in/j/attempt_1",
    ]


def test_silent_worker_is_known_by_its_neighbours(tmp_path: Path) -> None:
    """A worker that was killed before it wrote a word has a rank, because those beside it have."""
    line = "[rank{0}]:[E1115 01:23:23.1 ProcessGroupNCCL.cpp:1849] Observed flight recorder dump signal from another rank via TCPStore.\n"
    files: dict[str, str | object] = {f"attempt_0/{n}/stderr.log": line.format(4 + n) for n in (0, 1, 3)}
    job = job_of(tmp_path, {**files, "attempt_0/2/stderr.log": "", "attempt_0/2/stdout.log": "step 1\n"})
    assert job.ranks == (4, 5, 6, 7)
    assert (6, str(tmp_path / "in/attempt_0/2/stderr.log")) in job.facts.log_ranks


# ---- the real thing -------------------------------------------------------------------------------------------------

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1:
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), 9)
        raise ValueError("bad sample")
    dist.all_reduce(torch.ones(2))
    time.sleep(60)

main()
"""


@pytest.mark.torch
@pytest.mark.parametrize("how", ["kill", "raise"])
def test_real_torchrun_tells_who_died(tmp_path: Path, how: str) -> None:
    """A real torchrun job with one worker killed or raising: its log alone gives the dead rank and clears the others."""
    pytest.importorskip("torch")
    (tmp_path / "t.py").write_text(textwrap.dedent(SCRIPT))
    run = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "3",
        "--log-dir",
        "logs",
        "-r",
        "3",
        "-t",
        "3",
    ]
    done = subprocess.run([*run, "t.py", how], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)  # fmt: skip
    (tmp_path / "launcher").write_text(done.stdout + done.stderr)
    for given in ([tmp_path / "launcher"], [tmp_path / "launcher", tmp_path / "logs"]):
        job = load(given)
        assert job.ranks == (0, 1, 2)
        assert job.processes[1].exit_status == (-signal.SIGKILL if how == "kill" else 1)
        own = [e for e in job.facts.errors if not e.consequence]
        assert [(e.rank, e.type) for e in own] == ([] if how == "kill" else [(1, "ValueError")])
        assert {e.rank for e in job.facts.errors if e.consequence} <= {0, 2}
        assert all(process.exit_status != -9 for rank, process in job.processes.items() if rank != 1)


# ---- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "pci"),
    [
        ("0000:9D:00.0", "0000:9d:00.0"),
        ("9d:00.0", "0000:9d:00.0"),
        ("00000000:9D:00.0", "0000:9d:00.0"),
        ("PCI", None),
        (None, None),
    ],
)
def test_pci_addresses_have_one_spelling(value: str | None, pci: str | None) -> None:
    """nvidia-smi's long domain, a missing domain and capitals are all the kernel's address."""
    assert pci_id(value) == pci


def test_loopback_is_nobodys_name() -> None:
    """localhost and 127.0.0.1 are never shown as a node."""
    assert [host_name(h) for h in ("localhost", "127.0.0.1", "", None, "gpu-a017")] == [
        None,
        None,
        None,
        None,
        "gpu-a017",
    ]
    assert short_name("GPU-a017.cluster.local") == "gpu-a017"
    assert short_name("10.0.0.7") == "10.0.0.7"


def test_a_rank_that_a_file_repeats_without_end_is_believed_a_few_times() -> None:
    """Of a hundred thousand rows about one rank some are taken, and other ranks' rows behind them all."""
    rows = [{"rank": 1, "pid": 7}] * 100_000 + [{"rank": 2, "pid": 8}]
    said = rosters.read_roster(rows, "roster.json")
    assert len(said) == rosters.MOST_ROWS_OF_A_RANK + 1
    assert said[-1].process.rank == 2


def test_file_waits_are_read_as_untrusted_rows() -> None:
    """What is no call on a file is passed over, numbers that cannot be are not known, and the list is bounded."""
    row = {"call": "read", "path": "/data/x", "pid": 7, "thread": 7, "type": "nfs4", "source": "f:/e", "for_s": 2.5}
    odd = [{"call": ["read"], "path": "/x"}, {"call": "read"}, {"call": "bite", "path": "/x"}, "read", None]
    late = {**row, "for_s": -1, "thread": 8}
    [said] = rosters.read_roster([{"rank": 0, "pid": 7, "file_waits": [*odd, row, late, *[row] * 99]}], "node.json")
    waits = said.process.file_waits
    assert waits is not None and len(waits) <= 16
    assert (waits[0].path, waits[0].type, waits[0].main, waits[0].for_s) == ("/data/x", "nfs4", True, 2.5)
    assert (waits[1].main, waits[1].for_s) == (False, None)
    [unsaid] = rosters.read_roster([{"rank": 0, "pid": 7, "file_waits": "many"}], "node.json")
    assert unsaid.process.file_waits is None
