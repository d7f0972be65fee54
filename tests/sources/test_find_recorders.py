"""The recorder is found among all that the code of its library loads, and nothing else is taken for it."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hangscope.sources.flight_recorder import find_recorders, outside
from hangscope.sources.flight_recorder.known_layouts import LAYOUTS
from hangscope.sources.process_memory import ProcessMemory

LIBRARY = """
char zeros[4096] __attribute__((aligned(64)));
char recorder[4096] __attribute__((aligned(64)));
static void *volatile communicators = zeros;
static void *volatile instance = recorder;
static __attribute__((noinline)) void *get(void) { return instance; }
void *_ZN4c10d20dump_nccl_trace_jsonB5cxx11Ebb(void) { void *first = communicators; return first ? get() : first; }
"""
PROCESS = """
import ctypes, struct, sys
library = ctypes.CDLL(sys.argv[1])
at = ctypes.addressof((ctypes.c_char * 4096).in_dll(library, "recorder"))

def put(offset, *words):
    ctypes.memmove(at + offset, struct.pack(f"<{len(words)}Q", *words), 8 * len(words))

put(0, 1)
put(72, 100)
put(104, at + 2048, 1, 0, 1)
put(160, 0, 0, 0, at + 168, at + 168, 0)
put(208, 0, 0, 0, at + 216, at + 216, 0)
put(256, at + 272)
print(at, flush=True)
sys.stdin.read()
"""


def test_empty_memory_is_no_recorder() -> None:
    """By no layout: of an empty recorder only what points to itself tells that it is one."""
    empty = ctypes.create_string_buffer(4096)
    memory = ProcessMemory(os.getpid(), 10.0)
    try:
        for layout in LAYOUTS:
            assert find_recorders.proven(memory, ctypes.addressof(empty), [layout]) is None, layout.proofs
    finally:
        memory.close()


def test_of_a_release_only_its_own_layouts_are_tried() -> None:
    """Older ones ask for less, and would take for a recorder what is none; a build of its own may have any."""
    own = find_recorders.layouts_for("x86_64", "2.11.0+cu130")
    assert own and all(layout.is_of((2, 11)) for layout in own)
    built = find_recorders.layouts_for("x86_64", "2.11.0a0+git1234")
    assert built[0].is_of((2, 11)) and len(built) > len(own)
    assert len(find_recorders.layouts_for("x86_64", "")) == len(built)


@pytest.mark.skipif(
    shutil.which("gcc") is None or platform.machine() != "x86_64",
    reason="needs gcc, for a library that is none of torch's, on x86-64",
)
@pytest.mark.parametrize("stripped", [False, True])
def test_the_recorder_is_found_behind_what_else_is_loaded(stripped: bool, tmp_path: Path) -> None:
    """NCCL's dump loads the table of communicators first, and gets the recorder from another function; on a GPU the
    former was taken for a recorder that has recorded nothing."""
    (tmp_path / "forged.c").write_text(LIBRARY)
    library = tmp_path / "libtorch_cuda.so"
    subprocess.run(
        ["gcc", "-O1", "-shared", "-fPIC", *(["-s"] if stripped else []), "-o", str(library), tmp_path / "forged.c"],
        check=True,
    )
    words = [sys.executable, "-c", PROCESS, str(library)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        address = int(process.stdout.readline())
        with outside.open_process(process.pid) as opened:
            assert opened.recorders() == ["nccl"]
            assert opened._found.recorders["nccl"].address == address
        process.kill()
