"""Which PyTorch a command would import, found by reading files: torch itself is never imported.

Importing torch takes seconds and gigabytes, may initialise a driver, and needs the job's own interpreter, which is
often not the one that runs hangscope.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hangscope.processes.isolated_python import clean_environment, isolated
from hangscope.safeio.owners import is_ours_alone

_ASSIGNMENT = re.compile(r"^(__version__|cuda|hip|xpu)\b[^=\n]*=\s*(?:['\"]([^'\"\n]*)['\"]|None)", re.MULTILINE)
_PYTHON_NAME = re.compile(r"^(?:python|pypy)(\d+(?:\.\d+)?)?t?$")
_PIP_EXEC = re.compile(r"'''exec'\s+(?:\"([^\"]+)\"|(\S+))")
_VERSION = re.compile(r"^\s*v?(\d+)\.(\d+)")
_ASK_SECONDS = 20.0
_PRINT_PATH = "import json, site, sys; print(json.dumps([site.getusersitepackages(), *sys.path]))"


@dataclass(frozen=True, slots=True)
class TorchInstall:
    """One installed PyTorch. `cuda`, `hip` and `xpu` are what it was built for; `nccl` is the NCCL wheel beside it."""

    version: str
    path: Path
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    nccl: str | None = None

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that this build can have, the one for its accelerator first."""
        found = []
        if self.cuda or self.hip:
            found.append("nccl")  # a ROCm build names RCCL nccl as well
        if self.xpu:
            found.append("xccl")
        return (*found, "gloo")


def release_of(version: str | None) -> tuple[int, int] | None:
    """Major and minor number of a version such as ``2.8.0+cu128`` or ``2.9.0a0+git1a2b3c``; None for no version."""
    matched = _VERSION.match(version or "")
    return (int(matched.group(1)), int(matched.group(2))) if matched else None


def find_torch(paths: Iterable[str | Path]) -> TorchInstall | None:
    """The torch that an interpreter with these import paths would import: the first one, as Python itself looks."""
    for entry in paths:
        folder = Path(entry or ".")
        found = _torch_in(folder)
        if found is not None:
            return found
    return None


def torch_of(python: str | Path | None = None, *, environ: Mapping[str, str] | None = None) -> TorchInstall | None:
    """The torch of an interpreter, by default the running one. None where it has none or cannot be found.

    The interpreter is started only where its folders do not say: a shim (pyenv, a wrapper script) or an odd layout.
    """
    environ = os.environ if environ is None else environ
    if python is None or _same_file(Path(python), Path(sys.executable)):
        return find_torch(sys.path)
    program = _which(str(python), environ)
    if program is None:
        return None
    if not _is_script(program):
        found = find_torch([*_split(environ.get("PYTHONPATH", "")), *site_directories(program, environ=environ)])
        if found is not None:
            return found
    return find_torch(_ask_for_path(program, environ))


def interpreter_of(command: Sequence[str], *, environ: Mapping[str, str] | None = None) -> Path | None:
    """The Python that runs `command`: itself, or the one in the first line of a script such as torchrun."""
    environ = os.environ if environ is None else environ
    if not command:
        return None
    program = _which(command[0], environ)
    if program is None:
        return None
    if _PYTHON_NAME.match(program.name):
        return program
    return _interpreter_of_script(program, environ)


def site_directories(python: Path, *, environ: Mapping[str, str] | None = None) -> list[Path]:
    """The folders below an interpreter that hold installed packages, in the order of its import path."""
    environ = os.environ if environ is None else environ
    prefix = python.parent.parent
    config = _pyvenv_config(prefix)
    base = config.get("home")
    base_prefix = Path(base).parent if base else python.resolve().parent.parent
    release = _python_release(python, config)
    roots = [prefix]
    if not config or config.get("include-system-site-packages", "").lower() == "true":
        roots.append(base_prefix)
        if base_prefix == Path("/usr"):
            roots.append(Path("/usr/local"))
    folders: list[Path] = []
    if (not config or len(roots) > 1) and not environ.get("PYTHONNOUSERSITE"):
        user = Path(environ.get("PYTHONUSERBASE") or Path(environ.get("HOME", "~")).expanduser() / ".local")
        folders += _site_below(user, release)
    for root in roots:
        folders += _site_below(root, release)
    unique = list(dict.fromkeys(folders))
    return [*unique, *(extra for folder in unique for extra in _path_files(folder))]


def _site_below(root: Path, release: str | None) -> Iterator[Path]:
    pattern = f"python{release}" if release else "python3.*"
    for library in ("lib", "lib64"):
        for home in sorted((root / library).glob(pattern), reverse=True):
            for name in ("site-packages", "dist-packages"):
                if (home / name).is_dir():
                    yield home / name
        if (root / library / "python3" / "dist-packages").is_dir():  # Debian's own packages
            yield root / library / "python3" / "dist-packages"


def _path_files(folder: Path) -> Iterator[Path]:
    """Folders that .pth files add: editable installs and distributions' own trees. Their code lines are not run."""
    for file in sorted(folder.glob("*.pth")):
        for line in _read(file).splitlines():
            text = line.strip()
            if text and not text.startswith(("#", "import ", "import\t")):
                added = folder / text
                if added.is_dir():
                    yield added


def _pyvenv_config(prefix: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in _read(prefix / "pyvenv.cfg").splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _python_release(python: Path, config: Mapping[str, str]) -> str | None:
    """``3.12``, from the interpreter's own name behind its links, else from what the virtual environment notes."""
    for name in (python.name, python.resolve().name):
        matched = _PYTHON_NAME.match(name)
        if matched and "." in (matched.group(1) or ""):
            return matched.group(1)
    noted = re.match(r"(\d+\.\d+)", config.get("version", config.get("version_info", "")))
    return noted.group(1) if noted else None


def _torch_in(folder: Path) -> TorchInstall | None:
    package = folder / "torch"
    values: dict[str, str] = dict(_ASSIGNMENT.findall(_read(package / "version.py")))
    version = values.get("__version__") or _metadata_version(folder, "torch")
    if not version or not package.is_dir():
        return None
    return TorchInstall(
        version=version,
        path=package,
        cuda=values.get("cuda") or None,
        hip=values.get("hip") or None,
        xpu=values.get("xpu") or None,
        nccl=_metadata_version(folder, "nvidia_nccl_cu*"),
    )


def _metadata_version(folder: Path, distribution: str) -> str | None:
    versions = [entry.name.split("-")[1] for entry in folder.glob(f"{distribution}-*.dist-info")]
    return sorted(v.removesuffix(".dist") for v in versions)[-1] if versions else None


def _interpreter_of_script(script: Path, environ: Mapping[str, str]) -> Path | None:
    """From ``#!/opt/venv/bin/python``, ``#!/usr/bin/env python3``, or pip's ``'''exec'`` line for long paths."""
    lines = _read(script, limit=4096).splitlines()[:2]
    if not lines or not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    program = words[0] if words else ""
    if Path(program).name in ("sh", "bash") and len(lines) > 1 and lines[1].startswith("'''exec'"):
        quoted = _PIP_EXEC.match(lines[1])
        program = quoted.group(1) or quoted.group(2) if quoted else ""
    return _which(program, environ) if _PYTHON_NAME.match(Path(program).name) else None


def _ask_for_path(python: Path, environ: Mapping[str, str]) -> list[str]:
    """Where this interpreter looks for modules, by its own word. A shim may read files of the working directory, too
    (pyenv's, asdf's): it is started there only where nobody else can have put them."""
    here = Path.cwd()
    try:
        answer = subprocess.run(
            isolated(python, ["-c", _PRINT_PATH]),
            cwd=here if is_ours_alone(here) else "/",
            env=clean_environment(environ),
            capture_output=True,
            timeout=_ASK_SECONDS,
            check=True,
        )
        said = json.loads(answer.stdout.decode("utf-8", "replace").strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return []
    own = [*_split(environ.get("PYTHONPATH", "")), *(said if isinstance(said, list) else ())]
    return [entry for entry in own if isinstance(entry, str) and entry]


def _which(program: str, environ: Mapping[str, str]) -> Path | None:
    found = shutil.which(program, path=environ.get("PATH", os.defpath))
    return Path(found).absolute() if found else None


def _is_script(program: Path) -> bool:
    try:
        with program.open("rb") as stream:
            return stream.read(2) == b"#!"
    except OSError:
        return False


def _same_file(left: Path, right: Path) -> bool:
    # Not samefile(): two virtual environments link to one interpreter and have different packages.
    return left.absolute() == right.absolute()


def _split(path: str) -> list[str]:
    return [part for part in path.split(os.pathsep) if part]


def _read(file: Path, limit: int = 1 << 20) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""
