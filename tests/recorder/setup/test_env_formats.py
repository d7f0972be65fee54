"""`hangscope env`: every format, read back by the tool that it is for."""

from __future__ import annotations

import json
import os
import re
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from hangscope.errors import SettingsError
from hangscope.recorder.setup.env_formats import FORMATS, Request, docker, kubernetes, shell, slurm, torchrun
from hangscope.recorder.setup.variables import BY_NAME
from hangscope.sources.nccl_ras.settings import candidates

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
SHELLS = [name for name in ("sh", "dash", "bash", "ksh", "zsh", "busybox") if shutil.which(name)]
CLEAN = {name: value for name, value in os.environ.items() if name not in BY_NAME and not name.startswith("SLURM")}

ODD = [
    "plain",
    "with space",
    "quote ' and \" double",
    "$HOME `id` $(id) \\ back",
    "new\nline",
    "ünï çødé €😀",
    "tab\tbell\a",
    "100%h %p %%",
    "#hash; & | <> * ? [a] {b} ~ !x",
    "non-utf8-\udcff\udcfe",
    "-dash",
]


def request(directory: Path | str, **more: Any) -> Request:
    options: dict[str, Any] = {
        "torch_version": "2.11",
        "backend": "nccl",
        "directory": Path(directory),
        "job": "48121",
        "attempt": "1",
        "host": None,
        "environ": {},
        **more,
    }
    return Request(**options)


def sourced(program: str, text: str, environ: Mapping[str, str], tmp_path: Path) -> dict[str, str]:
    """What a child of a shell sees that has sourced `text`."""
    script = tmp_path / "settings.sh"
    script.write_bytes(os.fsencode(text))
    words = [program, "sh"] if program == "busybox" else [program]
    done = subprocess.run([*words, "-c", '. "$0" && exec env -0', str(script)], env=dict(environ), capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    pairs = (os.fsdecode(pair).partition("=") for pair in done.stdout.split(b"\0") if pair)
    return {name: value for name, _, value in pairs}


# ---- a shell -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", SHELLS)
@pytest.mark.parametrize("name", ODD)
def test_a_shell_reads_what_was_planned(program: str, name: str, tmp_path: Path) -> None:
    """Every shell ends up with exactly the planned values, whatever characters the directory has."""
    text, made = shell(request(tmp_path / name, environ={"TMPDIR": str(tmp_path / "t")}, host="gpu-a017"))
    seen = sourced(program, text, CLEAN, tmp_path)
    assert {key: seen.get(key) for key in made.variables} == made.variables
    own = {"_", "PWD", "SHLVL", "OLDPWD", "A__z"}  # ksh93 marks its exported variables in A__z
    assert seen.keys() - CLEAN.keys() - made.variables.keys() <= own
    assert all(folder.is_dir() for folder in made.directories)
    assert Path(seen["TORCH_FR_DUMP_TEMP_FILE"]).parent.is_dir()
    assert (tmp_path / name / "logs" / "48121.1" / "gpu-a017").is_dir()


def test_the_host_is_that_of_the_machine_that_reads_it(tmp_path: Path) -> None:
    """One file on a shared disk serves all nodes: the host's name is filled in when it is sourced."""
    (tmp_path / "uname").write_text("#!/bin/sh\necho node-b\n")
    (tmp_path / "uname").chmod(0o755)
    text, _ = shell(request(tmp_path / "d", environ={"TMPDIR": str(tmp_path)}))
    seen = sourced("sh", text, {**CLEAN, "PATH": f"{tmp_path}:{CLEAN['PATH']}"}, tmp_path)
    assert seen["TORCH_FR_DUMP_TEMP_FILE"] == f"{tmp_path}/d/dumps/48121.1/node-b/nccl_trace_rank_"
    assert "node-b" in seen["NCCL_DEBUG_FILE"]
    assert (tmp_path / "d/dumps/48121.1/node-b").is_dir()
    assert "HANGSCOPE_HOST" not in seen


def test_no_pipe_is_set_where_none_can_be_made(tmp_path: Path) -> None:
    """A pipe in a missing folder ends the process, so that the variable is set only if the folder is there."""
    (tmp_path / "file").write_text("")
    text, made = shell(request(tmp_path / "d", environ={"TMPDIR": str(tmp_path / "file")}))
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" in made.variables
    script = tmp_path / "s"
    script.write_text(text)
    words = ["sh", "-c", '. "$0"; env', str(script)]
    done = subprocess.run(words, env=CLEAN, capture_output=True, text=True, check=True)
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" not in done.stdout
    assert "TORCH_FR_DUMP_TEMP_FILE" in done.stdout


def test_settings_of_the_user_are_not_printed(tmp_path: Path) -> None:
    """What is in the environment already stays there; only what is missing is printed, and with fix what is wrong."""
    mine = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "20000", "TORCH_NCCL_BLOCKING_WAIT": "1", "TMPDIR": str(tmp_path)}
    seen = sourced("sh", shell(request(tmp_path, environ=mine))[0], {**CLEAN, **mine}, tmp_path)
    assert (seen["TORCH_FR_BUFFER_SIZE"], seen["TORCH_NCCL_BLOCKING_WAIT"]) == ("20000", "1")
    seen = sourced("sh", shell(request(tmp_path, environ=mine, fix=True))[0], {**CLEAN, **mine}, tmp_path)
    assert (seen["TORCH_FR_BUFFER_SIZE"], seen["TORCH_NCCL_BLOCKING_WAIT"]) == ("20000", "0")


# ---- Slurm ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", SHELLS)
def test_slurm_fills_in_job_restart_and_node(program: str, tmp_path: Path) -> None:
    """Sourced in each task, one file gives every job, restart and node paths of its own, and the job's RAS port."""
    text, _ = slurm(request(tmp_path / "d d", environ={"TMPDIR": str(tmp_path)}, job_is_known=False))
    seen = []
    for job, restart, node in (
        ("48121", None, "n1"),
        ("48121", None, "n2"),
        ("48121", "1", "n1"),
        ("48122", "0", "n1"),
    ):
        here = {**CLEAN, "SLURM_JOB_ID": job, "SLURMD_NODENAME": node}
        if restart is not None:
            here["SLURM_RESTART_COUNT"] = restart
        got = sourced(program, text, here, tmp_path)
        assert got["TORCH_FR_DUMP_TEMP_FILE"] == f"{tmp_path}/d d/dumps/{job}.{restart or 0}/{node}/nccl_trace_rank_"
        assert got["NCCL_RAS_ADDR"] == f"localhost:{next(candidates(job))}"
        assert Path(got["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]).parent.is_dir()
        seen.append(got["TORCH_FR_DUMP_TEMP_FILE"])
    assert len(set(seen)) == 4


def test_slurm_settings_refuse_to_be_read_outside_a_job(tmp_path: Path) -> None:
    """Without a job there is no name for the paths: the shell says so and stops."""
    text, _ = slurm(request(tmp_path, job_is_known=False))
    done = subprocess.run(["sh", "-c", text + "\nenv"], env=CLEAN, capture_output=True, text=True)
    assert done.returncode != 0
    assert "inside a Slurm job" in done.stderr
    assert "TORCH_" not in done.stdout


# ---- torchrun ------------------------------------------------------------------------------------------------------


def test_the_torchrun_line_takes_the_place_of_torchrun(tmp_path: Path) -> None:
    """Arguments after the line reach torchrun, which sees all settings; the folders are made; no pipe is set."""
    (tmp_path / "torchrun").write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" > {tmp_path}/words\nexec env -0\n')
    (tmp_path / "torchrun").chmod(0o755)
    text, made = torchrun(request(tmp_path / 'it\'s "d" $x', host="h h"))
    assert text.count("\n") == 1
    environ = {**CLEAN, "PATH": f"{tmp_path}:{CLEAN['PATH']}"}
    words = ["sh", "-c", text.rstrip("\n") + " --nproc-per-node 8 'a b.py'"]
    done = subprocess.run(words, env=environ, capture_output=True, check=True)
    seen = {name: value for name, _, value in (os.fsdecode(p).partition("=") for p in done.stdout.split(b"\0"))}
    assert (tmp_path / "words").read_text().split("\0")[:3] == ["--nproc-per-node", "8", "a b.py"]
    expected = {key: value for key, value in made.variables.items() if "PIPE" not in key}
    assert {key: seen.get(key) for key in made.variables if key in seen} == expected
    assert (tmp_path / 'it\'s "d" $x/dumps/48121.1/h-h').is_dir()


@pytest.mark.torch
def test_ranks_of_a_real_torchrun_see_the_settings(tmp_path: Path) -> None:
    """The line starts a real torchrun, and the variables arrive in its ranks."""
    pytest.importorskip("torch")
    program = Path(sys.executable).parent / "torchrun"
    if not program.is_file():
        pytest.skip("this torch came without torchrun")
    text, made = torchrun(request(tmp_path, backend="gloo"))
    rank = tmp_path / "rank.py"
    rank.write_text(
        "import os, json, sys\nopen(sys.argv[1] + os.environ['RANK'], 'w').write(json.dumps(dict(os.environ)))"
    )
    environ = {**CLEAN, "PATH": f"{program.parent}:{CLEAN['PATH']}"}
    line = f"{text.strip()} --standalone --nproc-per-node 2 {rank} {tmp_path}/out"
    subprocess.run(["sh", "-c", line], env=environ, check=True, capture_output=True)
    for number in (0, 1):
        assert made.variables.items() <= json.loads((tmp_path / f"out{number}").read_text()).items()


# ---- docker --------------------------------------------------------------------------------------------------------


def docker_reads(text: str) -> dict[str, str]:
    """docker's documented rules for --env-file: # comments, one NAME=value a line, the value taken as it stands."""
    found = {}
    for line in text.split("\n"):
        stripped = line.lstrip()
        if stripped and not stripped.startswith("#"):
            name, equals, value = stripped.partition("=")
            assert equals and name and not re.search(r"\s", name), line
            found[name] = value
    return found


@pytest.mark.parametrize("name", [name for name in ODD if "\n" not in name and "\udcff" not in name])
def test_docker_gets_what_was_planned(name: str) -> None:
    """Nothing is quoted and nothing expanded: the file holds the values themselves, and no pipe."""
    text, made = docker(request(f"/volume/{name}", host="gpu-a017"))
    read = docker_reads(text)
    assert read == {key: value for key, value in made.variables.items() if "PIPE" not in key}
    assert "gpu-a017" in read["TORCH_FR_DUMP_TEMP_FILE"]


def test_docker_cannot_hold_a_line_break() -> None:
    """What the format cannot carry is an error, not a broken file."""
    with pytest.raises(SettingsError, match="line break"):
        docker(request("/volume/new\nline"))


def test_this_machines_environment_is_not_the_containers() -> None:
    """A setting in this shell neither reaches a container nor hides a setting from it."""
    mine = {"TORCH_FR_BUFFER_SIZE": "2097152", "NCCL_DEBUG": "INFO"}
    for form in (docker, kubernetes):
        text, made = form(request("/volume", environ=mine))
        assert made.kept == {} and made.warnings == ()
        assert "2097152" not in text and "NCCL_DEBUG_FILE" in text


class Daemon(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """As much of a docker daemon as `docker create` needs; keeps what the real client sent."""

    daemon_threads = True
    body: dict[str, Any] | None = None


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Daemon

    def answer(self, status: int, value: object, body: bool = True) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Api-Version", "1.43")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def do_HEAD(self) -> None:
        self.answer(200, "OK", body=False)

    def do_GET(self) -> None:
        self.answer(200, {"ApiVersion": "1.43", "MinAPIVersion": "1.24", "Os": "linux", "Arch": "amd64"})

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "/containers/create" in self.path:
            self.server.body = json.loads(sent)
        self.answer(201, {"Id": "0" * 64, "Warnings": []})

    def address_string(self) -> str:
        return "client"

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker client here")
def test_the_real_docker_client_reads_the_file(tmp_path: Path) -> None:
    """docker itself parses the file and asks its daemon for a container with exactly these variables."""
    text, made = docker(request("/volume/odd ' \" $x é", host="gpu-a017"))
    file = tmp_path / "hangscope.env"
    file.write_text(text, "utf-8")
    with Daemon(str(tmp_path / "d.sock"), Answers) as daemon:
        threading.Thread(target=daemon.serve_forever, daemon=True).start()
        words = ["docker", "-H", f"unix://{tmp_path}/d.sock", "create", "--pull", "never", "--env-file", str(file), "x"]
        environ = {**CLEAN, "HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path)}
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
        daemon.shutdown()
    assert done.returncode == 0, done.stderr
    assert daemon.body is not None
    sent = dict(pair.split("=", 1) for pair in daemon.body["Env"])
    assert sent == {key: value for key, value in made.variables.items() if "PIPE" not in key}


# ---- Kubernetes ----------------------------------------------------------------------------------------------------


def kubernetes_expands(entries: list[dict[str, Any]], pod: str) -> dict[str, str]:
    """Kubernetes' documented rules: $(NAME) is an earlier variable, $$ is a dollar."""
    found: dict[str, str] = {}
    for entry in entries:
        if "valueFrom" in entry:
            assert entry["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
            found[entry["name"]] = pod
        else:
            found[entry["name"]] = re.sub(
                r"\$(\$|\((\w+)\))", lambda hit: "$" if hit[1] == "$" else found[hit[2]], entry["value"]
            )
    return found


@pytest.mark.parametrize("name", [name for name in ODD if "\udcff" not in name])
def test_yaml_carries_what_was_planned(name: str) -> None:
    """A YAML parser and Kubernetes' expansion give the planned values, with the pod's name for the host."""
    yaml = pytest.importorskip("yaml")
    text, made = kubernetes(request(f"/volume/{name}", host=None))
    entries = yaml.safe_load(text)
    assert all(isinstance(entry.get("value", ""), str) for entry in entries)
    seen = kubernetes_expands(entries, pod="llm-7b-worker-3")
    expected, _ = kubernetes(request(f"/volume/{name}", host="llm-7b-worker-3"))
    fixed = kubernetes_expands(yaml.safe_load(expected), pod="")
    assert seen == {"HANGSCOPE_NODE": "llm-7b-worker-3", **fixed}
    assert f"/volume/{name}/dumps/48121.1/llm-7b-worker-3/nccl_trace_rank_" == seen["TORCH_FR_DUMP_TEMP_FILE"]
    assert not any("PIPE" in key for key in seen) and "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" in made.variables


def test_a_path_that_is_no_text_cannot_go_into_yaml() -> None:
    """YAML is UTF-8; a directory that is not is refused."""
    with pytest.raises(SettingsError, match="not UTF-8"):
        kubernetes(request("/volume/\udcff"))


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kubectl_reads_the_page_and_the_list(tmp_path: Path) -> None:
    """The manifest in docs/kubernetes.md is a valid Pod for kubectl itself, with every variable in place."""
    (manifest,) = re.findall(r"```yaml\n(apiVersion.*?)```", (DOCS / "kubernetes.md").read_text(), re.DOTALL)
    file = tmp_path / "pod.yaml"
    file.write_text(manifest)
    words = ["kubectl", "annotate", "--local", "-f", str(file), "a=b", "-o", "json"]
    done = subprocess.run(words, env={**CLEAN, "HOME": str(tmp_path)}, capture_output=True, text=True, check=True)
    (container,) = json.loads(done.stdout)["spec"]["containers"]
    assert "TORCH_FR_DUMP_TEMP_FILE" in {entry["name"] for entry in container["env"]}


# ---- the command and the pages -------------------------------------------------------------------------------------


def hangscope(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from hangscope.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, "env", *words],
        env={**CLEAN, **environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("form", FORMATS)
def test_stdout_is_settings_and_nothing_else(form: str, tmp_path: Path) -> None:
    """Warnings, notes and what was found go to stderr; the exit status is 0."""
    done = hangscope(
        "--format", form, "--torch", "2.14", "--backend", "nccl", "--dir", str(tmp_path), TORCH_DIST_USE_NCCL2="1"
    )
    assert done.returncode == 0
    assert "warning" not in done.stdout
    inherited = form in ("shell", "slurm", "torchrun")
    assert ("warning: TORCH_DIST_USE_NCCL2=1" in done.stderr) == inherited
    assert ("fix: set TORCH_DIST_USE_NCCL2 to 0" in done.stderr) == inherited


def test_fix_is_said(tmp_path: Path) -> None:
    """With --fix the cure is among the settings, and stderr says what was overruled."""
    words = ("--torch", "2.11", "--backend", "nccl", "--dir", str(tmp_path), "--fix", "--entries", "5000")
    done = hangscope(*words, TORCH_FR_BUFFER_SIZE="2097152")
    assert "export TORCH_FR_BUFFER_SIZE='5000'" in done.stdout
    assert "fixed: TORCH_FR_BUFFER_SIZE=2097152" in done.stderr


@pytest.mark.parametrize(
    "words", [("--torch", "new"), ("--format", "toml"), ("--entries", "0"), ("--entries", "2e6"), ("--nccl-debug", "X")]
)
def test_options_that_cannot_be_used(words: tuple[str, ...]) -> None:
    """They are an error with exit status 2, and nothing is printed that a shell could read."""
    done = hangscope(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")


def test_the_torch_found_here_decides(tmp_path: Path) -> None:
    """Without --torch the one that `python` on PATH would import counts, and stderr says which that was."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "version.py").write_text("__version__ = '2.6.0'\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(f"#!/bin/sh\necho '[\"{tmp_path}\"]'\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    done = hangscope("--dir", str(tmp_path), PATH=f"{tmp_path}/bin:{CLEAN['PATH']}")
    assert "torch 2.6.0" in done.stderr
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" in done.stdout
    assert "TORCH_FR_BUFFER_SIZE" not in done.stdout


def test_the_kubernetes_page_shows_what_is_printed() -> None:
    """The list in the page's manifest is the command's own output, and its init container makes the folders for it."""
    yaml = pytest.importorskip("yaml")
    text = (DOCS / "kubernetes.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    pod = next(block for block in blocks if block.get("kind") == "Pod")
    (container,), (init,) = pod["spec"]["containers"], pod["spec"]["initContainers"]
    done = hangscope("--format", "kubernetes", "--torch", "2.11", "--backend", "nccl", "--job", "llm-7b")
    printed = yaml.safe_load(done.stdout)
    ports = {entry["name"]: entry.get("value") for entry in printed}["NCCL_RAS_ADDR"]
    shown = [e if e["name"] != "NCCL_RAS_ADDR" else {**e, "value": ports} for e in container["env"]]
    assert shown == printed
    folders = {
        str(Path(e["value"]).parent) for e in printed if e["name"] in ("TORCH_FR_DUMP_TEMP_FILE", "NCCL_DEBUG_FILE")
    }
    assert folders == set(init["command"][2:])
    assert container["env"][0] == init["env"][0]


def test_the_slurm_page_shows_what_is_printed() -> None:
    """The page's excerpt is the beginning of the command's output."""
    text = (DOCS / "slurm.md").read_text()
    excerpt = next(block for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) if "HANGSCOPE_HOST=" in block)
    done = hangscope("--format", "slurm", "--torch", "2.11", "--dir", "/shared/hangs")
    assert done.stdout.startswith(excerpt.removesuffix("…\n"))
    for script in re.findall(r"```bash\n(#!.*?)```", text, re.DOTALL):
        subprocess.run(["bash", "-n", "-c", script], check=True)
        assert not re.search(r"^#SBATCH --export", script, re.MULTILINE)
