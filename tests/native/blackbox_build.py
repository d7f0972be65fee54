"""Compiles the black box and the driver that plays NCCL to it, plain or under a sanitizer, once a session."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
WARNINGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g")


@dataclass(frozen=True)
class Built:
    plugin: Path
    empty: Path
    drive: Path
    counting: Path
    drive_mask: Path


def compiles(*flags: str) -> bool:
    """Whether a program built with these flags starts here: sanitizers are often missing."""
    if COMPILER is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "one.c")
        source.write_text("int main(void) { return 0; }\n")
        done = subprocess.run([COMPILER, *flags, source, "-o", f"{folder}/one"], capture_output=True, check=False)
        return done.returncode == 0 and subprocess.run([f"{folder}/one"], check=False).returncode == 0


@functools.cache
def build(*flags: str) -> Built:
    folder = Path(tempfile.mkdtemp(prefix="hangscope-native-"))
    names = ("blackbox.so", "empty.so", "drive", "counting.so", "drive_mask")
    built = Built(*(folder / name for name in names))
    shared = ("-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-O2", *WARNINGS, *flags, f"-I{NATIVE}")
    for command in (
        [*shared, "-Wl,-z,nodelete", NATIVE / "blackbox.c", "-o", built.plugin, "-ldl"],
        [*shared, HERE / "empty_plugin.c", "-o", built.empty],
        [*shared, HERE / "counting_plugin.c", "-o", built.counting],
        ["-pthread", "-O2", *WARNINGS, *flags, HERE / "drive.c", "-o", built.drive, "-ldl"],
        # no-pie: the strings whose places it hands out lie at the same place in every run
        ["-pthread", "-no-pie", "-O2", *WARNINGS, *flags, HERE / "drive_mask.c", "-o", built.drive_mask, "-ldl"],
    ):
        done = subprocess.run([str(COMPILER), *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return built


@functools.cache
def counting(oldest: int, newest: int) -> Path:
    """The counting plugin with some versions of the interface alone."""
    library = Path(tempfile.mkdtemp(prefix="hangscope-native-")) / "counting.so"
    versions = (f"-DOLDEST={oldest}", f"-DNEWEST={newest}")
    subprocess.run(
        [
            str(COMPILER),
            "-fPIC",
            "-shared",
            *WARNINGS,
            *versions,
            f"-I{NATIVE}",
            HERE / "counting_plugin.c",
            "-o",
            library,
        ],
        check=True,
    )
    return library
