"""A process that forges torch's recorder in its memory costs a reader a second and 100 MB at most, and has no dump."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = """
char forged[4096] __attribute__((aligned(64)));
static void *volatile instance = forged;
void *_ZN4c10d18dump_fr_trace_jsonB5cxx11Ebb(void) { return instance; }
"""
FORGER = """
import ctypes, os, struct, sys, threading
library = ctypes.CDLL(sys.argv[1])
forged = ctypes.addressof((ctypes.c_char * 4096).in_dll(library, "forged"))
space = ctypes.create_string_buffer(60 << 20)
there = ctypes.addressof(space)
kind = sys.argv[2]

def put(offset, *words):
    ctypes.memmove(forged + offset, struct.pack(f"<{len(words)}Q", *words), 8 * len(words))

def recorder(size, most, begin=there):
    ctypes.memset(forged, 0, 4096)
    put(0, 1)
    put(48, begin, begin + 512 * size, begin + 512 * size, most, size if size < most else 0, size, 0)
    put(104, forged + 2048, 1, 0, 1)  # one epoch
    empty = forged + 160 + 8
    put(160, 0, 0, 0, empty, empty, 0)
    put(208, 0, 0, 0, forged + 216, forged + 216, 0)
    put(256, forged + 272, 0, 0, 0)

if kind == "random":
    ctypes.memmove(forged, os.urandom(4096), 4096)
elif kind == "huge":
    recorder(9_999_999, 10_000_000)
elif kind == "zeros":
    recorder(100_000, 100_000)
elif kind == "unmapped":
    recorder(64, 100, 0x1000)
elif kind == "circle":
    recorder(0, 100)
    node = forged + 1024
    put(160, 0, 0, node, node, node, 5)
    put(1024, 0, node, node, node)
elif kind == "long circle":
    recorder(0, 100)
    for number in range(1000):  # each names its parent, and there is no end
        at = there + 64 * number
        above = forged + 168 if number == 0 else there + 64 * (number - 1)
        words = struct.pack("<4Q", 0, above, there + 64 * ((number + 1) % 1000), 0)
        ctypes.memmove(at, words, 32)
    put(160, 0, 0, there, there, there, 60_000)
elif kind == "changes":
    recorder(50, 100)
    def change():
        number = 0
        while True:
            number += 1
            put(80, number % 90, number)
    threading.Thread(target=change, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""
READER = """
import json, sys, time
from hangscope.sources.cannot_read import CannotRead
from hangscope.sources.flight_recorder import outside
for pid in map(int, sys.argv[1:]):
    begun, dump = time.thread_time(), None
    try:
        with outside.open_process(pid) as process:
            why = str(process.reasons)
            for backend in process.recorders():
                dump = process.dump(backend)
    except CannotRead as error:
        why = error.reason
    spent = time.thread_time() - begun
    # Not ru_maxrss: what forked this process, a worker of the tests with a gigabyte, counts there.
    status = open("/proc/self/status").read()
    memory = int(status.split("VmHWM:")[1].split()[0])
    entries = len(dump["entries"]) if dump else 0
    print(json.dumps({"why": why, "entries": entries, "spent": spent, "memory": memory}))
"""
KINDS = ("random", "huge", "zeros", "unmapped", "circle", "long circle", "changes")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, for a library that is none of torch's")
def test_forged_recorders_are_refused(tmp_path: Path) -> None:
    """Random bytes, huge counts, circles, pages that are not there, fields that change: each is a reason, in time."""
    (tmp_path / "forged.c").write_text(LIBRARY)
    library = tmp_path / "libtorch_cpu.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "forged.c")], check=True)
    forgers = []
    try:
        for kind in KINDS:
            words = [sys.executable, "-c", FORGER, str(library), kind]
            forgers.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for each in forgers:
            assert each.stdout is not None and each.stdout.readline() == b"ready\n"
        pids = [str(each.pid) for each in forgers]
        done = subprocess.run([sys.executable, "-c", READER, *pids], capture_output=True, text=True, check=True)
    finally:
        for each in forgers:
            each.kill()
            each.communicate()
    found = dict(zip(KINDS, map(json.loads, done.stdout.splitlines()), strict=True))
    for kind, outcome in found.items():
        assert outcome["why"] and outcome["why"] != "{}" and not outcome["entries"], (kind, outcome)
        assert outcome["spent"] < 1.5, (kind, outcome)
        assert outcome["memory"] < 100 << 10, (kind, outcome)
