"""The C decoder under the address and undefined-behaviour sanitizers, without Python around it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hangscope.reader.dumps import pickle_machine
from hostile.inputs import files as hostile_files

pytestmark = pytest.mark.native

HERE = Path(__file__).parents[2]
NATIVE = HERE.parent / "native"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COMPLETE, NOT_MINE = 0, 15


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    empty = folder / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    probe = [COMPILER, *SANITIZERS, empty, "-o", folder / "empty"]
    if COMPILER is None or subprocess.run(list(map(str, probe)), capture_output=True, check=False).returncode:
        pytest.skip("there is no C compiler with sanitizers here")
    sources = [NATIVE / "dump_decoder.c", HERE / "native" / "decode_files.c"]
    warnings = ("-std=gnu11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-g", "-O1")
    command = [COMPILER, *warnings, *SANITIZERS, f"-I{NATIVE}", *sources, "-lm", "-o", folder / "decode_files"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "decode_files"


def run(program: Path, files: list[Path]) -> list[int]:
    """How often each status was the end."""
    done = subprocess.run([program, *files], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return list(map(int, done.stdout.splitlines()[0].split()))


def test_hostile_files_touch_nothing_that_is_not_theirs(program: Path, tmp_path: Path) -> None:
    """Mutated, cut and crafted files, and all their beginnings, end without one wrong access or undefined step."""
    files = []
    for number in range(700):
        _, data = hostile_files.make(31, number)
        if pickle_machine.is_pickle(data) and len(data) < 2_000_000:
            files.append(tmp_path / f"{number}")
            files[-1].write_bytes(data)
    ended = run(program, files)
    assert sum(ended) == 8 * len(files) > 2000
    assert ended[COMPLETE] > 20 and ended[NOT_MINE] > 20
    assert sum(count > 0 for count in ended) > 10  # nearly every way to end was taken


def test_recorded_dumps_are_read_whole(program: Path) -> None:
    """Every recorded dump is decoded to its end; its beginnings are dumps that break off, and nothing else."""
    cases = HERE / "cases"
    files = [path for path in sorted(cases.glob("*/*/nccl_trace_rank_*")) if path.suffix != ".json"]
    ended = run(program, files)
    assert ended[COMPLETE] == len(files)
    assert ended[NOT_MINE] == 0
