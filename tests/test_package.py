"""The built wheel is what users get: it is built and looked into."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this tree, built from a copy so that nothing is left in it."""
    base = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, base / name)
    if (ROOT / "setup.py").exists():
        shutil.copy(ROOT / "setup.py", base / "setup.py")
    for folder in ("src", "native"):
        if (ROOT / folder).exists():
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "*.o")
            shutil.copytree(ROOT / folder, base / folder, ignore=ignore)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", "out", "."]
    done = subprocess.run(command, cwd=base, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (built,) = (base / "out").glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_holds_the_whole_package(wheel: zipfile.ZipFile) -> None:
    """Every module, the type marker, the published schema and the page's files are in the wheel; tests are not."""
    names = set(wheel.namelist())
    package = ROOT / "src" / "hangscope"
    modules = {str(path.relative_to(package.parent)) for path in package.rglob("*.py")}
    assert modules <= names
    assert "hangscope/py.typed" in names
    assert "hangscope/report/diagnosis.schema.json" in names
    page = {f"hangscope/report/page/page.{kind}" for kind in ("html", "css", "js")}
    assert page | {"hangscope/report/page/matrix.js", "hangscope/report/page/timeline.js"} <= names
    assert not [name for name in names if name.startswith(("tests/", "cases/"))]


@pytest.mark.native
@pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="there is no C compiler here")
def test_the_wheel_holds_the_c_parts(wheel: zipfile.ZipFile) -> None:
    """Built where there is a compiler, the wheel has NCCL's plugin, the decoder and the scanner, for Python 3.10 on."""
    assert "hangscope/recorder/setup/libhangscope_blackbox.so" in wheel.namelist()
    assert "hangscope/reader/dumps/_decoder.abi3.so" in wheel.namelist()
    assert "hangscope/bundle/redact/_scan.abi3.so" in wheel.namelist()
    assert "-cp310-abi3-linux" in str(wheel.filename)


def test_without_a_compiler_the_package_still_installs(tmp_path: Path) -> None:
    """A machine without C compiler gets all but the plugin, the decoder and the scanner, in a wheel that says so."""
    base = tmp_path / "tree"
    base.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, base / name)
    for folder in ("src", "native"):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", "*.o")
        shutil.copytree(ROOT / folder, base / folder, ignore=ignore)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", "out", "."]
    env = {**os.environ, "CC": "/nonexistent/cc"}
    done = subprocess.run(command, cwd=base, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    (built,) = (base / "out").glob("*.whl")
    assert built.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(built).namelist()
    assert "hangscope/recorder/setup/settings.py" in names
    assert not [name for name in names if name.endswith(".so")]


def test_the_wheel_asks_for_little(wheel: zipfile.ZipFile) -> None:
    """A plain installation needs numpy, click, rich and jinja2 and nothing else; the licence is declared."""
    (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    text = wheel.read(metadata).decode()
    needed = re.findall(r"^Requires-Dist: ([A-Za-z0-9_-]+)[^;\n]*$", text, re.MULTILINE)
    assert sorted(needed) == ["click", "jinja2", "numpy", "rich"]
    assert "License-Expression: Apache-2.0" in text
    assert "Requires-Python: >=3.10" in text


def test_the_wheel_installs_the_command(wheel: zipfile.ZipFile) -> None:
    """The command `hangscope` runs `main`."""
    (points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "hangscope = hangscope.cli.main:main" in wheel.read(points).decode()
