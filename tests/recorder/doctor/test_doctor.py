"""`hangscope doctor`: what would happen here if a collective hung now."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hangscope.recorder.doctor.examine import Examination, examine
from hangscope.recorder.doctor.examine_node import clock, gpu_tool, kernel_messages, py_spy, shared_memory
from hangscope.recorder.doctor.examined_node import ExaminedNode
from hangscope.recorder.setup.settings import plan, prepare
from hangscope.recorder.setup.torch_version import TorchInstall
from hangscope.recorder.setup.variables import BY_NAME

ROOT = Path(__file__).parents[3]
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if name not in BY_NAME and name not in ("WORLD_SIZE", "SLURM_NTASKS")
}

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["schema", "summary", "worst", "torch", "backends", "world_size", "settings", "findings"],
    "properties": {
        "schema": {"const": "hangscope.doctor/1"},
        "summary": {"type": "string", "minLength": 10},
        "worst": {"enum": ["problem", "warning", "note", "ok"]},
        "torch": {"type": ["string", "null"]},
        "backends": {"type": "array", "items": {"type": "string"}},
        "world_size": {"type": ["integer", "null"]},
        "settings": {"type": "object", "additionalProperties": {"type": "string"}},
        "findings": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["id", "severity", "what", "why", "cure", "variable", "value"],
                "properties": {
                    "id": {"type": "string"},
                    "severity": {"enum": ["problem", "warning", "note", "ok"]},
                    "what": {"type": "string", "minLength": 3},
                    "why": {"type": "string"},
                    "cure": {"type": "string"},
                    "variable": {"type": ["string", "null"]},
                    "value": {"type": ["string", "null"]},
                },
            },
        },
    },
}
"""What docs/doctor.md promises."""


def quiet_node(tmp_path: Path, **files: str) -> ExaminedNode:
    """A node on which nothing is installed, as seen in its files."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True, exist_ok=True)
    (proc / "self" / "status").write_text(f"Name:\tx\nCapEff:\t{files.get('caps', '0' * 16)}\nSeccomp:\t2\n")
    if "scope" in files:
        (proc / "sys/kernel/yama").mkdir(parents=True, exist_ok=True)
        (proc / "sys/kernel/yama/ptrace_scope").write_text(files["scope"] + "\n")
    tools = tmp_path / "bin"
    tools.mkdir(exist_ok=True)
    return ExaminedNode(proc=proc, kmsg=tmp_path / "kmsg", shm=tmp_path, path=str(tools), try_out=False)


def look(release: str, environ: Mapping[str, str], tmp_path: Path, backend: str = "nccl", **more: Any) -> Examination:
    options: dict[str, Any] = {"torch": None, "node": quiet_node(tmp_path), **more}
    return examine(environ={"HOME": str(tmp_path), **environ}, torch_version=release, backend=backend, **options)


def graded(found: Examination, severity: str) -> set[str]:
    return {finding.id for finding in found.findings if finding.severity == severity}


# ---- what would be left --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "backend", "environ", "words"),
    [
        ("2.1", "nccl", {}, "no flight recorder"),
        ("2.2", "nccl", {}, "the recorder is off"),
        ("2.6", "nccl", {}, "the recorder is off"),
        ("2.10", "nccl", {}, "the recorder is off"),
        ("2.6", "nccl", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}, "no dump would be written"),
        ("2.7", "nccl", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}, "every rank that is still able to"),
        ("2.11", "nccl", {}, "every rank that is still able to"),
        ("2.14", "nccl", {"TORCH_DIST_USE_NCCL2": "1"}, "does not record the backend"),
        ("2.15", "nccl", {}, "not the one that never joined"),
        ("2.15", "nccl", {"TORCH_DIST_USE_NCCL2": "0"}, "every rank that is still able to"),
        ("2.13", "gloo", {}, "in memory only"),
        ("2.5", "gloo", {}, "does not record the backend"),
        ("2.11", "nccl", {"TORCH_NCCL_BLOCKING_WAIT": "1"}, "no dump would be written"),
        ("2.11", "nccl", {"TORCH_FR_BUFFER_SIZE": "2097152"}, "no dump would be written"),
        ("2.11", "nccl", {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, "no dump would be"),
        ("2.11", "nccl", {"TORCH_NCCL_ENABLE_TIMING": "on"}, "would not get that far"),
    ],
)
def test_the_first_sentence_is_the_answer(
    release: str, backend: str, environ: dict[str, str], words: str, tmp_path: Path
) -> None:
    """It says what would be left of a hang, for every regime of torch and every way to lose the dump."""
    assert words in look(release, environ, tmp_path, backend).summary


def test_the_default_place_is_named(tmp_path: Path) -> None:
    """With nothing set, the findings say where PyTorch would write, and that it does not last."""
    found = look("2.11", {}, tmp_path)
    assert f"{tmp_path}/.cache/torch/comm_lib_trace_rank_<rank>" in found.summary
    assert "dump.path" in graded(found, "note")
    assert found.worst == "note"


def test_what_hangscope_sets_passes_its_own_examination(tmp_path: Path) -> None:
    """The plan for any torch leaves no warning and no problem."""
    for minor in range(2, 16):
        made = prepare(
            plan(
                torch_version=f"2.{minor}",
                backend="nccl",
                directory=tmp_path,
                job="7",
                attempt="0",
                host="h",
                environ={"TMPDIR": str(tmp_path)},
            )
        )
        found = look(f"2.{minor}", made.variables, tmp_path, world_size=64, directory=tmp_path)
        assert found.worst in ("note", "ok"), [finding for finding in found.findings if finding.severity != "ok"]
        assert {"recorder", "dump.path", "directory", "ras.port", "nccl.log"} <= graded(found, "ok")


def test_the_two_million_story_is_told_once(tmp_path: Path) -> None:
    """One problem explains it, with memory, time, the wrong unit and the cure; nothing calls the ring in order."""
    found = look("2.11", {"TORCH_FR_BUFFER_SIZE": "2097152"}, tmp_path)
    (story,) = (finding for finding in found.findings if finding.variable == "TORCH_FR_BUFFER_SIZE")
    assert story.severity == "problem"
    assert "not bytes" in story.why and "GiB" in story.why and "2 MB" in story.why
    assert "2000" in story.cure
    assert "recorder" not in {finding.id for finding in found.findings}


@pytest.mark.parametrize(
    ("environ", "identity", "severity"),
    [
        ({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/no/such/rank_"}, "setting.TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "problem"),
        ({"TORCH_FR_DUMP_TEMP_FILE": "/no/such/rank_"}, "setting.TORCH_FR_DUMP_TEMP_FILE", "problem"),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, "setting.TORCH_NCCL_ASYNC_ERROR_HANDLING", "problem"),
        ({"NCCL_RAS_ENABLE": "0"}, "setting.NCCL_RAS_ENABLE", "warning"),
        ({"NCCL_RAS_ADDR": "localhost"}, "ras.port", "warning"),
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/tmp/all.log"}, "setting.NCCL_DEBUG_FILE", "warning"),
        ({"TORCH_NCCL_FLIGHT_RECORDER_ENABLED": "1"}, "setting.TORCH_NCCL_FLIGHT_RECORDER_ENABLED", "note"),
        ({}, "setting.NCCL_RAS_ADDR", "note"),
    ],
)
def test_each_trap_is_a_finding(environ: dict[str, str], identity: str, severity: str, tmp_path: Path) -> None:
    """A trap in the environment is found under its own id, with a reason and a cure."""
    found = look("2.11", environ, tmp_path)
    finding = next(finding for finding in found.findings if finding.id == identity)
    assert finding.severity == severity
    assert finding.why and finding.cure


# ---- the torch -----------------------------------------------------------------------------------------------------


def test_no_torch_is_a_problem(tmp_path: Path) -> None:
    """Without a torch nothing can be said for sure, and that comes first."""
    found = examine(environ={}, torch=None, node=quiet_node(tmp_path))
    assert "torch" in graded(found, "problem")
    assert found.torch_version is None


def test_a_cpu_build_is_examined_for_gloo(tmp_path: Path) -> None:
    """A torch without CUDA has no NCCL; findings about NCCL would only be noise."""
    found = examine(environ={}, torch=TorchInstall("2.13.0+cpu", Path("/t")), node=quiet_node(tmp_path))
    assert found.families == ("gloo",)
    assert not {finding.id for finding in found.findings} & {"gpu", "shm", "ras.port", "setting.NCCL_DEBUG"}


def test_a_silent_nccl_is_named(tmp_path: Path) -> None:
    """NCCL 2.26 and 2.27 do not report a failed link; others do, and get no such note."""
    for nccl, silent in (("2.25.1", False), ("2.26.2", True), ("2.27.5", True), ("2.28.9", False)):
        torch = TorchInstall("2.8.0", Path("/t"), cuda="12.8", nccl=nccl)
        found = examine(environ={}, torch=torch, node=quiet_node(tmp_path))
        assert ("nccl.silent" in graded(found, "note")) == silent


@pytest.mark.parametrize(("release", "severity"), [("2.3", "note"), ("2.4", "ok")])
def test_live_ranks_can_be_asked_from_2_4_on(release: str, severity: str, tmp_path: Path) -> None:
    """PyTorch's worker server exists from 2.4 on."""
    assert "worker-server" in graded(look(release, {}, tmp_path), severity)


# ---- places --------------------------------------------------------------------------------------------------------


def test_room_is_counted_for_all_ranks(tmp_path: Path) -> None:
    """World size times dump size must fit, both where PyTorch writes and in the directory for incidents."""
    mine = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "rank_")}
    fits = look("2.11", mine, tmp_path, world_size=64, directory=tmp_path / "new")
    assert {"dump.path", "directory"} <= graded(fits, "ok")
    assert "64 ranks need 23.2 MiB" in next(f.why for f in fits.findings if f.id == "dump.path")
    assert not (tmp_path / "new").exists()
    full = look("2.11", mine, tmp_path, world_size=10**12, directory=tmp_path)
    assert {"setting.TORCH_FR_DUMP_TEMP_FILE", "directory"} <= graded(full, "problem")


def test_a_directory_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    """A file in its place is found before the job is."""
    (tmp_path / "file").write_text("")
    found = look("2.11", {}, tmp_path, directory=tmp_path / "file" / "below")
    assert "directory" in graded(found, "problem")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_directory_of_somebody_else_is_a_problem(tmp_path: Path) -> None:
    """Writing is tried, not concluded from the mode."""
    (tmp_path / "theirs").mkdir(mode=0o500)
    assert "directory" in graded(look("2.11", {}, tmp_path, directory=tmp_path / "theirs"), "problem")


# ---- the node ------------------------------------------------------------------------------------------------------


def tool(node: ExaminedNode, name: str, script: str) -> Path:
    path = Path(node.path) / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("scope", "caps", "allowed"),
    [
        (None, "0" * 16, True),
        ("0", "0" * 16, True),
        ("1", "0" * 16, False),
        ("1", "0000000000080000", True),
        ("2", "0000000000080000", True),
        ("3", "0000003fffffffff", False),
    ],
)
def test_ptrace_rules_are_read(scope: str | None, caps: str, allowed: bool, tmp_path: Path) -> None:
    """ptrace scope and the capability decide whether stacks may be read; the reasons and cures are named."""
    node = quiet_node(tmp_path, caps=caps, **({} if scope is None else {"scope": scope}))
    tool(node, "py-spy", "exit 0")
    (finding,) = py_spy(node)
    assert (finding.severity == "ok") == allowed
    if not allowed:
        assert f"ptrace_scope is {scope}" in finding.why and "SYS_PTRACE" in finding.cure


def test_py_spy_is_tried_and_its_refusal_told(tmp_path: Path) -> None:
    """Where py-spy itself is refused, that counts, whatever the kernel's settings say, with its own words."""
    plain = quiet_node(tmp_path)
    tool(plain, "py-spy", "echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1")
    (finding,) = py_spy(ExaminedNode(proc=plain.proc, path=plain.path))
    assert finding.severity == "note"
    assert "Permission Denied" in finding.why and "seccomp" in finding.why


def test_the_real_py_spy_reads_a_real_process() -> None:
    """On this machine the answer agrees with reading a stack by hand."""
    spy = Path(sys.executable).parent / "py-spy"
    if not spy.is_file():
        pytest.skip("py-spy is not installed")
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(30)"],
                               stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
        by_hand = subprocess.run([spy, "dump", "--pid", str(sleeper.pid)], capture_output=True).returncode == 0
    finally:
        sleeper.kill()
        sleeper.wait()
        assert sleeper.stdout is not None
        sleeper.stdout.close()
    (finding,) = py_spy(ExaminedNode())
    assert (finding.severity == "ok") == by_hand


def test_a_node_without_tools_is_told_so(tmp_path: Path) -> None:
    """What is missing is a note with its cure; nothing that cannot be told is guessed."""
    node = quiet_node(tmp_path)
    assert [finding.severity for finding in gpu_tool(node)] == ["note"]
    assert [finding.severity for finding in kernel_messages(node)] == ["note"]
    assert list(clock(node)) == []
    (tmp_path / "kmsg").write_text("")
    tool(node, "nvidia-smi", "exit 0")
    tool(node, "timedatectl", "echo no")
    assert [finding.severity for finding in gpu_tool(node)] == ["ok"]
    assert [finding.severity for finding in kernel_messages(node)] == ["ok"]
    assert [finding.severity for finding in clock(node)] == ["note"]


def test_a_missing_shared_memory_is_a_warning(tmp_path: Path) -> None:
    """Without /dev/shm data loaders and NCCL fail."""
    assert [finding.severity for finding in shared_memory(ExaminedNode(shm=tmp_path / "none"))] == ["warning"]
    assert [finding.severity for finding in shared_memory(ExaminedNode(shm=tmp_path))] == ["ok"]


def test_a_taken_ras_port_is_found(tmp_path: Path) -> None:
    """The job's own port is tried."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert "ras.port" in graded(look("2.11", {"NCCL_RAS_ADDR": f"localhost:{port}"}, tmp_path), "warning")
    assert "ras.port" in graded(look("2.11", {"NCCL_RAS_ADDR": f"localhost:{port}"}, tmp_path), "ok")


# ---- the command ---------------------------------------------------------------------------------------------------


def doctor(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from hangscope.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, "doctor", *words],
        env={**CLEAN, "COLUMNS": "80", **environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_json_is_what_the_page_promises() -> None:
    """It follows the schema, and every id is one that docs/doctor.md lists."""
    done = doctor("--json", "--torch", "2.11", "--backend", "nccl", "--dir", "/tmp", TORCH_FR_BUFFER_SIZE="2097152")
    value = json.loads(done.stdout)
    jsonschema.validate(value, SCHEMA)
    assert done.stderr == ""
    assert done.returncode == 1
    assert value["worst"] == "problem" and value["settings"] == {"TORCH_FR_BUFFER_SIZE": "2097152"}
    page = (ROOT / "docs" / "doctor.md").read_text()
    for finding in value["findings"]:
        assert finding["id"].startswith("setting.") or f"`{finding['id']}`" in page
    example = re.search(r'\{"schema": "hangscope.doctor/1".*?\}\]\}', page, re.DOTALL)
    assert example is not None
    jsonschema.validate(json.loads(example[0]), SCHEMA)


@pytest.mark.parametrize(
    ("words", "environ", "status"),
    [
        (("--torch", "2.13", "--backend", "gloo"), {}, 0),
        (("--torch", "2.13", "--backend", "gloo"), {"TORCH_FR_BUFFER_SIZE": "0"}, 1),
        (("--torch", "2.6", "--backend", "nccl"), {}, 1),
        (("--torch", "2.11", "--backend", "nccl", "--world-size", "0"), {}, 2),
        (("--torch", "newest"), {}, 2),
        (("--backend",), {}, 2),
    ],
)
def test_the_exit_status_is_for_scripts(words: tuple[str, ...], environ: dict[str, str], status: int) -> None:
    """0: nothing worse than notes; 1: a warning or a problem; 2: options that cannot be used."""
    assert doctor(*words, **environ).returncode == status


def test_the_text_is_readable_without_colour() -> None:
    """Every finding starts with its severity, no line is wider than the terminal, and there is no escape code."""
    done = doctor("--torch", "2.11", "--backend", "nccl", "--dir", "/tmp", TORCH_NCCL_BLOCKING_WAIT="1")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("If a collective hung now")
    assert "\x1b" not in done.stdout
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith("problem  TORCH_NCCL_BLOCKING_WAIT=1") for line in lines)
    assert any(line.startswith("         fix: ") for line in lines)
    body = lines[lines.index("") + 1 :]
    assert {line.split()[0] for line in body if not line.startswith(" ")} <= {"problem", "warning", "note", "ok"}


# ---- doors -----------------------------------------------------------------------------------------------------------


def door_findings(tmp_path: Path, environ: dict[str, str], version: str = "2.11.0") -> dict[str, tuple[str, str]]:
    found = examine(environ=environ, torch=None, torch_version=version, node=ExaminedNode(proc=tmp_path, try_out=False))
    return {each.id: (each.severity, each.what) for each in found.findings if each.id.startswith("door.")}


def test_the_doors_that_stand_open_are_named(tmp_path: Path) -> None:
    """From outside by the torch, an agent by its process, the cluster by what it set; off is off."""
    found = door_findings(tmp_path, {})
    assert {name: severity for name, (severity, _) in found.items()} == {"door.outside": "ok", "door.agent": "note"}
    assert door_findings(tmp_path, {}, "2.10.1")["door.outside"][0] == "note"
    for pid, words in (("7", "vim\0hangscope agent\0"), ("41", "/opt/py/bin/python\0/opt/bin/hangscope\0agent\0")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_text(words)
    assert door_findings(tmp_path, {})["door.agent"] == ("ok", "hangscope agent runs on this node (process 41)")
    assert door_findings(tmp_path, {"SLURM_JOB_ID": "7"})["door.slurm"][0] == "note"
    given = door_findings(tmp_path, {"HANGSCOPE_PLATFORM": "NCCL_DEBUG=INFO TORCH_FR_BUFFER_SIZE=2000"})
    assert given["door.slurm"] == ("ok", "this cluster has set 2 variables for hangscope in this job")
    assert "HANGSCOPE=off" in door_findings(tmp_path, {"HANGSCOPE": "off"})["door.off"][1]


@pytest.mark.parametrize(
    "name", ["TORCH_NCCL_FLIGHT_RECORDER_ENABLED", "TORCH_NCCL_FLIGHT_RECORDER", "NCCL_FLIGHT_RECORDER_SIZE"]
)
def test_a_variable_that_exists_nowhere_is_named(name: str) -> None:
    """As public scripts set it, with the one that was meant."""
    found = examine(environ={name: "1"}, torch=None, torch_version="2.11.0")
    (one,) = [each for each in found.findings if each.variable == name]
    assert "no release of torch reads" in one.why
    assert "TORCH_FR_BUFFER_SIZE" in one.cure
