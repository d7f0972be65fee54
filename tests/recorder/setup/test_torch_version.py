"""Which torch a command would import, found without importing it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hangscope.recorder.setup.torch_version import find_torch, interpreter_of, release_of, torch_of


def fake_torch(folder: Path, version: str = "2.8.0+cu128", cuda: str | None = "12.8") -> None:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("from .version import __version__\n")
    (folder / "torch" / "version.py").write_text(
        "from typing import Optional\n\n__all__ = ['__version__', 'cuda', 'hip']\n"
        f"__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"
    )


def venv(folder: Path, *options: str) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", *options, str(folder)], check=True)
    return folder / "bin" / "python"


def packages(python: Path) -> Path:
    (found,) = (python.parent.parent / "lib").glob("python3*/site-packages")
    return found


def imported(python: Path, environ: Mapping[str, str]) -> str:
    """What the interpreter itself says."""
    code = "import torch; print(torch.__version__)"
    return subprocess.run([python, "-c", code], env=dict(environ), capture_output=True, text=True).stdout.strip()


def test_the_torch_of_another_interpreter_is_the_one_it_would_import(tmp_path: Path) -> None:
    """A virtual environment's own, one on PYTHONPATH before it, and an editable install, as Python finds them."""
    python = venv(tmp_path / "v")
    clean = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    assert torch_of(python, environ=clean) is None
    fake_torch(packages(python), "2.8.0+cu128")
    found = torch_of(python, environ=clean)
    assert found is not None and found.version == imported(python, clean) == "2.8.0+cu128"
    assert found.backends == ("nccl", "gloo")
    fake_torch(tmp_path / "newer", "2.11.0", cuda=None)
    ahead = {**clean, "PYTHONPATH": str(tmp_path / "newer")}
    found = torch_of(python, environ=ahead)
    assert found is not None and found.version == imported(python, ahead) == "2.11.0"
    assert found.backends == ("gloo",)
    other = venv(tmp_path / "w")
    fake_torch(tmp_path / "source", "2.16.0a0+git123")
    (packages(other) / "torch.pth").write_text(f"{tmp_path / 'source'}\n")
    found = torch_of(other, environ=clean)
    assert found is not None and found.version == imported(other, clean) == "2.16.0a0+git123"


def test_a_shim_is_asked(tmp_path: Path) -> None:
    """Where the interpreter is a script, as pyenv's are, its folders say nothing, and it is run instead."""
    python = venv(tmp_path / "v")
    fake_torch(packages(python), "2.9.1")
    shim = tmp_path / "shims" / "python"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    shim.chmod(0o755)
    found = torch_of("python", environ={"PATH": f"{shim.parent}:/usr/bin:/bin", "HOME": str(tmp_path)})
    assert found is not None and found.version == "2.9.1"


def test_a_launcher_tells_its_interpreter(tmp_path: Path) -> None:
    """torchrun is a script; the interpreter in its first line is the one that the ranks will use."""
    python = venv(tmp_path / "v")
    scripts = {
        "plain": f"#!{python}\nimport sys\n",
        "long": f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
        "env": "#!/usr/bin/env python\n",
    }
    for name, text in scripts.items():
        script = tmp_path / name
        script.write_text(text)
        script.chmod(0o755)
        environ = {"PATH": f"{python.parent}:{tmp_path}"}
        assert interpreter_of([name, "--nproc-per-node", "8"], environ=environ) == python
    assert interpreter_of([str(python), "train.py"], environ={}) == python
    (tmp_path / "job.sh").write_text("#!/bin/bash\n")
    (tmp_path / "job.sh").chmod(0o755)
    assert interpreter_of([str(tmp_path / "job.sh")], environ={}) is None
    assert interpreter_of(["no-such-program"], environ={"PATH": str(tmp_path)}) is None


@pytest.mark.parametrize(
    ("text", "release"),
    [("2.8", (2, 8)), ("2.15.0+cu130", (2, 15)), ("2.9.0a0+145a3a7bda.nv25.10", (2, 9)), ("git", None), (None, None)],
)
def test_versions_are_read_as_people_and_wheels_write_them(text: str | None, release: tuple[int, int] | None) -> None:
    """Local and pre-release parts do not matter; 2.15 is later than 2.8."""
    assert release_of(text) == release


def test_nothing_here_imports_torch() -> None:
    """Finding the torch and planning for it leaves torch itself unimported."""
    code = (
        "import sys, os; from pathlib import Path\n"
        "from hangscope.recorder.setup import settings, torch_version\n"
        "from hangscope.recorder.doctor import examine as doctor\n"
        "torch_version.torch_of()\n"
        "settings.plan(torch_version='2.11', backend='nccl', directory=Path('/d'), job='1', attempt='0', host='h',"
        " environ={})\n"
        "print(sorted({'torch', 'numpy', 'click'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_find_torch_takes_the_first_on_the_path(tmp_path: Path) -> None:
    """As Python does: the first folder that has a torch wins, also over one that only has its metadata."""
    (tmp_path / "a" / "torch-2.5.1.dist-info").mkdir(parents=True)
    fake_torch(tmp_path / "b", "2.6.0")
    fake_torch(tmp_path / "c", "2.7.0")
    found = find_torch([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    assert found is not None and found.version == "2.6.0"
