"""Symbols of libraries in other processes: what code loads, and what the functions that it calls load."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hangscope.sources.elf_symbols import Library
from hangscope.sources.process_memory import ProcessMemory, mappings

LIBRARY = """
static long instance = 42;
long *where(void) { return &instance; }
__attribute__((noinline)) static long get(void) { __asm__ volatile(""); return instance; }
long dump(long much) { long sum = 0; while (much--) sum += get(); return sum; }
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, to make a library")
@pytest.mark.parametrize("stripped", [False, True])
def test_a_pointer_is_found_in_the_function_that_an_export_calls(tmp_path: Path, stripped: bool) -> None:
    """libtorch_cuda's dump functions do not load the recorder's pointer themselves: they call the one that does."""
    (tmp_path / "library.c").write_text(LIBRARY)
    path = tmp_path / "library.so"
    words = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(path), str(tmp_path / "library.c")]
    subprocess.run([*words, *(["-s"] if stripped else [])], check=True)
    loaded = ctypes.CDLL(str(path))
    loaded.where.restype = ctypes.c_void_p
    memory = ProcessMemory(os.getpid(), 10.0)
    try:
        files, _ = mappings(os.getpid())
        library = Library(memory, next(each for each in files if each.path == str(path)))
        dump = library.export(b"dump")
        here = loaded.where()
        assert here not in library.loaded_by(dump, 64)
        called = library.called_by(dump, 64)
        assert any(here in library.loaded_by(function, 64) for function in called)
        assert library.local([b"instance"]) == ({} if stripped else {b"instance": here})
        assert library.local([b"instance"]) == ({} if stripped else {b"instance": here}), "from what was kept"
    finally:
        memory.close()
