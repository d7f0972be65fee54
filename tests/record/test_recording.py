"""The recording of cases: what can be known about it without a GPU."""

from __future__ import annotations

import ast
import json
import pickle
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from record_neutral import leaks, neutral_pickle, neutral_text, neutralise, pack
from record_scenarios import SCENARIOS, Scenario

HERE = Path(__file__).parent
CASES = HERE.parent / "cases"
SHOWN = "/usr/local/lib/python3.12/dist-packages"
ELSEWHERE = "/opt/environments/training/lib/python3.12/site-packages"
DUMPS = [path for path in sorted(CASES.glob("*/*/nccl_trace_rank_*[0-9]")) if path.stat().st_size > 1000]


def test_paths_inside_real_dumps_are_replaced_and_the_rest_stays() -> None:
    """A dump whose paths are rewritten unpickles to the same values with other paths, and back to the same bytes."""
    assert DUMPS
    for dump in DUMPS[:: max(1, len(DUMPS) // 12)]:
        data = dump.read_bytes()
        moved = neutral_pickle(data, [(SHOWN, ELSEWHERE)])
        assert moved != data
        assert repr(pickle.loads(moved)) == repr(pickle.loads(data)).replace(SHOWN, ELSEWHERE)
        assert neutral_pickle(moved, [(ELSEWHERE, SHOWN)]) == data


def test_a_framed_pickle_is_refused() -> None:
    """A pickle that carries lengths of whole frames is not rewritten into nonsense."""
    with pytest.raises(ValueError, match="framed"):
        neutral_pickle(pickle.dumps({"a": SHOWN}, protocol=4), [(SHOWN, ELSEWHERE)])


def test_replacements_do_not_meet_each_other() -> None:
    """What was written instead of one path is not taken for another one."""
    replacements = [("/opt/py/lib", "/usr/lib"), ("/opt/py/lib/site", "/opt/py/lib/shown")]
    assert neutral_text(b"/opt/py/lib/site/x /opt/py/lib/y", replacements) == b"/opt/py/lib/shown/x /usr/lib/y"


def test_host_names_are_whole_words() -> None:
    """A host name inside a longer word is another word."""
    assert neutral_text(b"vm7:12 vm77 my-vm7 vm7<80>", [("vm7", "gpu-worker-6")]) == (
        b"gpu-worker-6:12 vm77 my-vm7 gpu-worker-6<80>"
    )


def test_a_folder_becomes_neutral_also_with_a_dump_that_was_cut_off(tmp_path: Path) -> None:
    """Logs, dumps, half dumps and file names lose the machine's name and paths, and nothing stays behind."""
    data = DUMPS[0].read_bytes()
    (tmp_path / "nccl.vm7.12.log").write_text(f"vm7:12:12 [0] NCCL INFO {SHOWN}\n")
    (tmp_path / "nccl_trace_rank_0").write_bytes(data)
    (tmp_path / "nccl_trace_rank_1").write_bytes(data[: len(data) // 2])
    words = [("vm7", "gpu-worker-6"), (SHOWN, "/neutral")]
    problems = neutralise(tmp_path, words)
    assert [problem.partition(":")[0] for problem in problems] == ["nccl_trace_rank_1"]
    assert (tmp_path / "nccl.gpu-worker-6.12.log").read_text() == "gpu-worker-6:12:12 [0] NCCL INFO /neutral\n"
    assert pickle.loads((tmp_path / "nccl_trace_rank_0").read_bytes())
    assert leaks(tmp_path, ["vm7", SHOWN]) == []
    assert leaks(tmp_path, ["gpu-worker-6"]) == ["nccl.gpu-worker-6.12.log: gpu-worker-6"]


def test_an_archive_names_no_owner(tmp_path: Path) -> None:
    """The packed cases say nothing about who recorded them."""
    (tmp_path / "cases" / "a").mkdir(parents=True)
    (tmp_path / "cases" / "a" / "truth.json").write_text("{}")
    pack(tmp_path / "cases", tmp_path / "out" / "cases.tar.gz")
    with tarfile.open(tmp_path / "out" / "cases.tar.gz") as archive:
        assert [(m.name, m.uid, m.gid, m.uname, m.gname) for m in archive] == [
            ("a", 0, 0, "", ""),
            ("a/truth.json", 0, 0, "", ""),
        ]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_is_told_by_the_program_that_plays_it(scenario: Scenario) -> None:
    """Every scenario has its function in its program, and each one that hangs marks the line of its operation."""
    source = (HERE / scenario.program).read_text()
    functions = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert scenario.name in functions
    marks = {mark for row in source.splitlines() for mark in re.findall(r" <(\w+\.\w+)>", row.partition("  #")[2])}
    assert (f"{scenario.name}.op" in marks) == scenario.hangs


@pytest.mark.torch
def test_a_job_whose_link_is_cut_becomes_a_case(tmp_path: Path) -> None:
    """The whole way with Gloo: a real job, a link that really drops bytes, stacks, dumps, roster, truth, archive."""
    pytest.importorskip("torch")
    archive = tmp_path / "cases.tar.gz"
    command = [sys.executable, str(HERE / "record_cases.py"), "--out", str(archive), "--only", "broadcast_link6"]
    command += ["--backend", "gloo", "--timeout", "6", "--place", str(tmp_path / "workspace")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(archive) as stream:
        stream.extractall(tmp_path / "cases", filter="data")
    case = tmp_path / "cases" / "broadcast_link6"
    truth = json.loads((case / "truth.json").read_text())
    assert (truth["hang"], truth["kind"], truth["link"][1]) == (True, "network", 5)
    assert truth["operation"]["name"] == "broadcast"
    line = int(truth["line"].rpartition(":")[2])
    assert "dist.broadcast(state, src=2)" in (HERE / "train.py").read_text().splitlines()[line - 1]
    roster = json.loads((case / "roster.json").read_text())
    assert [row["local_rank"] for row in roster] == [0, 1, 0, 1, 0, 1]
    for row in roster:
        node = case / row["host"]
        entries = pickle.loads((node / f"nccl_trace_rank_{row['rank']}").read_bytes())["entries"]
        at_fault = [entry for entry in entries if entry["collective_seq_id"] == truth["operation"]["seq"]]
        assert [entry["profiling_name"] for entry in at_fault] == ["gloo:broadcast"]
        assert f"/workspace/train.py:{line}" in [f"{f['filename']}:{f['line']}" for f in at_fault[0]["frames"]]
        head = (node / "stacks" / f"rank_{row['rank']}.1.txt").read_text().partition("\n")[0]
        assert head.startswith(f"# hangscope stacks rank={row['rank']} pid={row['pid']} sample=1 by=faulthandler at=")
    assert leaks(case, [str(tmp_path)]) == []
