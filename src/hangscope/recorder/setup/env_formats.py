"""The settings as other tools read them: a shell, docker, Kubernetes, Slurm, torchrun.

Some values are known only where a rank runs: the host, and in Slurm the job. They are placeholders in the plan, and
each format writes them in its own way. A format that cannot make folders leaves the dump pipe out, because PyTorch
ends a process whose pipe cannot be made.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hangscope.errors import SettingsError
from hangscope.recorder.setup.default_settings import PIPE_NAMES
from hangscope.recorder.setup.rank_folders import private_top
from hangscope.recorder.setup.setting_problems import folder_for
from hangscope.recorder.setup.settings import SettingsPlan, plan
from hangscope.recorder.setup.variables import DEFAULT_ENTRIES
from hangscope.sources.nccl_ras.settings import FIRST_PORT, PORTS

# Made of characters that a path may hold, so that they come through a plan unchanged.
_HOST = "hangscope-placeholder-host"
_JOB = "hangscope-placeholder-job"
_ATTEMPT = "hangscope-placeholder-attempt"
_PORT = "hangscope-placeholder-port"
_PLACEHOLDER = re.compile(f"({_HOST}|{_JOB}|{_ATTEMPT}|{_PORT})")

_IN_CONTAINER = Path("/hangscope")


@dataclass(frozen=True, slots=True)
class Request:
    """What to print settings for. A host of None, and in Slurm an unknown job, is filled in where it is read."""

    torch_version: str | None
    backend: str | None
    directory: Path | None
    job: str
    attempt: str
    host: str | None
    environ: Mapping[str, str]
    entries: int = DEFAULT_ENTRIES
    fix: bool = False
    nccl_debug: str = "INFO"
    job_is_known: bool = True
    timing: bool = False
    plugin: Path | None = None
    """The black box's library on this machine: no use in a container, nor on another node."""


def shell(request: Request) -> tuple[str, SettingsPlan]:
    """Lines for `.` or `eval` in any POSIX shell, on the node where the ranks start."""
    made = _plan(request, host=request.host or _HOST)
    lines = [] if request.host else ["HANGSCOPE_HOST=$(uname -n)"]
    return "\n".join([*lines, *_export_lines(made, {_HOST: '"$HANGSCOPE_HOST"'})]) + "\n", made


def slurm(request: Request) -> tuple[str, SettingsPlan]:
    """The same for a file that every task sources: job, restart and node are what Slurm says there.

    Not for ``#SBATCH --export=NAME=value``: a comma ends a value there. And not for the batch script itself, which
    runs on the first node only and would give its name to all.
    """
    named = request.job_is_known
    made = _plan(
        request,
        host=request.host or _HOST,
        job=request.job if named else _JOB,
        attempt=request.attempt if named else _ATTEMPT,
        files=False,
    )
    if not named and "NCCL_RAS_ADDR" in made.variables:
        made = replace(made, variables={**made.variables, "NCCL_RAS_ADDR": f"localhost:{_PORT}"})
    written = {
        _HOST: '"$HANGSCOPE_HOST"',
        _JOB: '"$SLURM_JOB_ID"',
        _ATTEMPT: '"${SLURM_RESTART_COUNT:-0}"',
        _PORT: f'"$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"',
    }
    lines = [] if named else [': "${SLURM_JOB_ID:?source this inside a Slurm job}"']
    lines += [] if request.host else ["HANGSCOPE_HOST=${SLURMD_NODENAME:-$(uname -n)}"]
    return "\n".join([*lines, *_export_lines(made, written)]) + "\n", made


def torchrun(request: Request) -> tuple[str, SettingsPlan]:
    """One line to put in place of the word torchrun."""
    made = _plan(request, host=request.host or _HOST)
    written = {_HOST: '"$(uname -n)"'}
    pairs = [f"{name}={_quoted(value, written)}" for name, value in _without_pipes(made).items()]
    folders = [_quoted(str(folder), written) for folder in _folders(made)]
    making = f"mkdir -p {' '.join(folders)}; " if folders else ""
    return f"{making}env {' '.join(pairs)} torchrun\n", made


def docker(request: Request) -> tuple[str, SettingsPlan]:
    """A file for ``docker run --env-file``: one NAME=value a line, nothing quoted, nothing expanded."""
    made = _plan(request, host=request.host or socket.gethostname(), container=True)
    lines = [f"# must be there before the ranks start: {_yaml(str(folder))}" for folder in _folders(made)]
    for name, value in _without_pipes(made).items():
        if re.search(r"[\r\n\0]", value):
            raise SettingsError(f"{name}: an env file cannot hold a line break", hint="choose another directory")
        lines.append(f"{name}={value}")
    return "\n".join(lines) + "\n", made


def kubernetes(request: Request) -> tuple[str, SettingsPlan]:
    """A YAML list for ``spec.containers[].env``. The pod's name comes from the downward API."""
    made = _plan(request, host=request.host or _HOST, container=True)
    written = {_HOST: "$(HANGSCOPE_NODE)"}
    folders = [_yaml(_expanded(str(folder), written)) for folder in _folders(made)]
    lines = [f"# must be there before the ranks start: {folder}" for folder in folders]
    if not request.host:
        lines += ["- name: HANGSCOPE_NODE", "  valueFrom:", "    fieldRef:", '      fieldPath: "metadata.name"']
    for name, value in _without_pipes(made).items():
        lines += [f"- name: {name}", f"  value: {_yaml(_expanded(value, written))}"]
    return "\n".join(lines) + "\n", made


FORMATS: Mapping[str, Callable[[Request], tuple[str, SettingsPlan]]] = {
    "shell": shell,
    "docker": docker,
    "kubernetes": kubernetes,
    "slurm": slurm,
    "torchrun": torchrun,
}


def _plan(
    request: Request,
    *,
    host: str,
    job: str | None = None,
    attempt: str | None = None,
    container: bool = False,
    files: bool = True,
) -> SettingsPlan:
    """A container does not inherit this environment, nor see this machine's files."""
    return plan(
        torch_version=request.torch_version,
        backend=request.backend,
        directory=request.directory or (_IN_CONTAINER if container else Path("hangscope")),
        job=request.job if job is None else job,
        attempt=request.attempt if attempt is None else attempt,
        host=host,
        environ={} if container else request.environ,
        fix=request.fix,
        entries=request.entries,
        nccl_debug=request.nccl_debug,
        look_at_files=files and not container,
        plugin=request.plugin if files and not container else None,
        timing=request.timing,
    )


def _export_lines(made: SettingsPlan, written: Mapping[str, str]) -> list[str]:
    lines = [f"mkdir -p {_quoted(str(folder), written)}" for folder in _folders(made)]
    for name, value in made.variables.items():
        assignment = f"export {name}={_quoted(value, written)}"
        if name in PIPE_NAMES:
            folder = folder_for(name, value)
            top = _quoted(str(private_top(folder)), written)
            ours = f"(umask 077 && mkdir -p {_quoted(str(folder), written)}) && [ -O {top} ]"
            lines.append(f"if {ours}; then {assignment}; fi")
        else:
            lines.append(assignment)
    return lines


def _folders(made: SettingsPlan) -> list[Path]:
    """The folders to make, without those for pipes."""
    pipes = {folder_for(name, value) for name, value in made.variables.items() if name in PIPE_NAMES}
    return [folder for folder in made.directories if folder not in pipes]


def _without_pipes(made: SettingsPlan) -> dict[str, str]:
    return {name: value for name, value in made.variables.items() if name not in PIPE_NAMES}


def _quoted(value: str, written: Mapping[str, str]) -> str:
    """For a POSIX shell: literal text in single quotes, placeholders as the shell fills them in."""
    if "\0" in value:
        raise SettingsError("a setting cannot hold a NUL character", hint="choose another directory")
    parts = [part for part in _PLACEHOLDER.split(value) if part]
    return "".join(written.get(part) or "'" + part.replace("'", "'\\''") + "'" for part in parts) or "''"


def _expanded(value: str, written: Mapping[str, str]) -> str:
    """For Kubernetes: $$ is a dollar, $(NAME) another variable's value."""
    parts = _PLACEHOLDER.split(value)
    return "".join(written.get(part) or part.replace("$", "$$") for part in parts)


def _yaml(text: str) -> str:
    """A double-quoted YAML scalar; everything that YAML would fold, strip or refuse is escaped."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise SettingsError(f"{text!r} is not UTF-8, which this format must be", hint="choose another directory")
    return '"' + "".join(_yaml_char(char) for char in text) + '"'


def _yaml_char(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
