"""`hangscope exclude`: the nodes to avoid in the next start."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hangscope.cli.main import main

CASES = Path(__file__).parents[1] / "cases"
NODE_FAILURE = """rank 0 step 12
srun: error: Node failure on n2
srun: error: n1: task 0: Exited with exit code 1
slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-17T04:17:21 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***
"""


def test_a_node_that_failed_is_printed_as_slurm_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the scheduler's own word; the node whose task gave up is not."""
    (tmp_path / "slurm-7.out").write_text(NODE_FAILURE)
    assert main(["exclude", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "--exclude=n2\n"
    assert main(["exclude", "--format", "names", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "n2\n"
    assert main(["exclude", "--format", "kubernetes", str(tmp_path)]) == 0
    required = json.loads(capsys.readouterr().out)["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [expression] = required["nodeSelectorTerms"][0]["matchExpressions"]
    assert (expression["operator"], expression["values"]) == ("NotIn", ["n2"])


def test_a_rank_that_hangs_in_its_code_costs_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    """It would hang on any other: nothing is printed, and stderr says why."""
    assert main(["exclude", str(CASES / "mesh_absent")]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no node to exclude: rank 6" in printed.err


def test_what_is_no_name_of_a_node_reaches_no_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log is a stranger's: it must not add options to an sbatch."""
    (tmp_path / "slurm-7.out").write_text(NODE_FAILURE.replace("n2", "n2,--wrap=x"))
    assert main(["exclude", str(tmp_path)]) == 0
    assert "wrap" not in capsys.readouterr().out


@pytest.mark.parametrize(("machine", "named"), [(None, "n2\n"), ("", ""), ("gpu-c", "")])
def test_a_pod_that_went_silent_costs_no_machine(
    machine: str | None, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was deleted or evicted as a rule, and its name is no machine's; a machine that went silent is named."""
    silent = {"nodes": [{"node": "n2", "ranks": [1], "silent_s": 20.0, "machine": "no answer"}]}
    manifest = {"schema": "hangscope.incident/1", "job": "j", "reason": "rank-exit", "silent_nodes": silent}
    (tmp_path / "incident.json").write_text(json.dumps({**manifest, "world_size": 2}))
    status = {"schema": "hangscope.status/1", "node": "n2", "world_size": 2, "host": machine, "at": 1.0}
    live = [{"rank": 1, "pid": 7, "groups": []}]
    (tmp_path / "nodes" / "n2").mkdir(parents=True)
    (tmp_path / "nodes" / "n2" / "status.json").write_text(json.dumps({**status, "live": live}))
    assert main(["exclude", "--format", "names", str(tmp_path)]) == 0
    assert capsys.readouterr().out == named


def test_of_several_jobs_the_newest_is_taken_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tasks of an array in one directory are jobs of their own: --job says which, else the newest is taken."""
    for folder, job, machine in ((tmp_path, "48121_1", "no answer"), (tmp_path / "run-2", "48121_2", "answers")):
        silent = {"nodes": [{"node": "n2", "ranks": [1], "silent_s": 12.0, "machine": machine}], "by": "n1"}
        about = {"job": job, "attempt": "0", "reason": "rank-exit", "captured_at": "2026-11-18T07:05:22Z"}
        rank = {"rank": 0, "pid": 100, "exit_status": 1}
        (folder / "nodes" / "n1").mkdir(parents=True)
        manifest = {"schema": "hangscope.incident/1", "world_size": 2, "files": {}, "silent_nodes": silent, **about}
        (folder / "incident.json").write_text(json.dumps(manifest))
        node = {"schema": "hangscope.node/1", "node": "n1", "ranks": [rank], "gaps": [], **about}
        (folder / "nodes" / "n1" / "node.json").write_text(json.dumps(node))
    assert main(["exclude", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert not said.out  # nothing but the newest job's own nodes
    assert "run-2" in said.err and "--job" in said.err
    for job, excluded in (("48121_1", "--exclude=n2\n"), ("48121_2", "")):
        assert main(["exclude", "--job", job, str(tmp_path)]) == 0
        assert capsys.readouterr().out == excluded


def test_retry_says_where_the_next_start_makes_sense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Elsewhere without the node that failed, no for code, unknown where nothing says; ok if all is well."""
    (tmp_path / "slurm-7.out").write_text(NODE_FAILURE)
    answers = {}
    for path in (tmp_path, *(CASES / name for name in ("dtype_mismatch", "deadlock2", "mesh_absent", "healthy"))):
        status = main(["exclude", "--retry", str(path)])
        printed = capsys.readouterr()
        answers[path.name] = (printed.out, status)
        assert path != tmp_path or "elsewhere, without n2: " in printed.err
    assert answers == {
        tmp_path.name: ("elsewhere\n", 0),
        "dtype_mismatch": ("no\n", 1),
        "deadlock2": ("no\n", 1),
        "mesh_absent": ("unknown\n", 3),
        "healthy": ("ok\n", 0),
    }


@pytest.mark.parametrize(("case", "asked"), [("node", True), ("dtype_mismatch", False), ("mesh_absent", True)])
def test_the_batch_script_of_the_page_requeues_what_may_succeed(tmp_path: Path, case: str, asked: bool) -> None:
    """docs/exclude.md's: without the node that failed, never what is the code's own, and what nobody knows."""
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "slurm-7.out").write_text(NODE_FAILURE)
    shutil.copytree(CASES / "mesh_absent", tmp_path / "mesh_absent")
    shutil.copytree(CASES / "dtype_mismatch", tmp_path / "dtype_mismatch")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    (tmp_path / "bin" / "scontrol").chmod(0o755)
    page = (Path(__file__).parents[2] / "docs" / "exclude.md").read_text(encoding="utf-8")
    script = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)[0]
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    environ = {"PATH": path, "dir": str(tmp_path / case), "SLURM_JOB_ID": "7", "HOME": str(tmp_path)}
    subprocess.run(["bash", "-c", script], env=environ, check=True)
    said = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    update = "update JobId=7 ExcNodeList=n2\n" if case == "node" else ""
    assert said == (f"{update}requeue 7\n" if asked else "")
