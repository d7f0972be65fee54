"""Stacks of live processes as faulthandler, PyTorch's worker server and py-spy print them."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hangscope.model import ThreadStack
from hangscope.reader.evidence_lines import keep_evidence
from hangscope.reader.join import resolve_ranks
from hangscope.reader.join.who_is_who import Identity
from hangscope.reader.load import load
from hangscope.reader.logs.log_file import TextFile


def stacks(text: str, file: str = "stacks.txt") -> list[ThreadStack]:
    found = TextFile(file)
    data = text.encode()
    found.read(io.BytesIO(data), len(data))
    found.rank = found.writers.own_rank(found.name_rank)
    return resolve_ranks.thread_stacks(found, Identity())


SERVER = """\
# hangscope stacks rank=14 pid=81233 sample=2 by=worker-server at=2026-11-15T02:30:11.204Z
Thread 0x00007efc9c61d6c0 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 982 in run
  File "/usr/lib/python3.12/threading.py", line 1045 in _bootstrap

Thread 0x00007efc9d0b5b80 (most recent call first):
  File "/w/loader.py", line 212 in __next__
  File "/w/train.py", line 418 in <module>
"""

SPY = """\
Process 81233: python train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 81233 (idle): "MainThread"
    clock_nanosleep (libc.so.6)
    __next__ (loader.py:212)
        Arguments:
            self: <Loader at 0x7f>
    train_step (train.py:418)
    <module> (train.py:500)
Thread 81300 (active+gil): "loader (0)"
    work (loader.py:3)
"""


def test_worker_servers_answer_is_read_with_its_header() -> None:
    """Rank, pid and sample come from the first line; frames are innermost first; the main thread is told."""
    helper, main = stacks(SERVER)
    assert (main.rank, main.pid, main.sample, main.main, helper.main) == (14, 81233, 2, True, False)
    assert [str(f) for f in main.frames] == ["/w/loader.py:212 __next__", "/w/train.py:418 <module>"]
    assert main.source.place == "line 6"


def test_py_spy_dump_is_read_with_names_and_activity() -> None:
    """Thread names, activity and frames come out; locals and native frames do no harm."""
    main, loader = stacks(SPY)
    assert (main.thread, main.main, main.active, main.pid) == ("MainThread", True, False, 81233)
    assert [f.line for f in main.frames] == [212, 418, 500]
    assert [f.name for f in main.native] == ["clock_nanosleep"]
    assert (loader.thread, loader.active, loader.main, loader.holds_gil) == ("loader (0)", True, False, True)
    assert [str(f) for f in loader.frames] == ["loader.py:3 work"]


def test_py_spy_under_hangscopes_header_keeps_the_rank() -> None:
    """The header's rank counts for py-spy's text too."""
    found = stacks(SERVER.split("\n", 1)[0].replace("worker-server", "py-spy") + "\n" + SPY)
    assert {s.rank for s in found} == {14}
    assert {s.sample for s in found} == {2}


def test_rank_comes_from_the_name_where_the_text_has_none() -> None:
    """A file of stacks without a header belongs to the rank in its name."""
    assert {s.rank for s in stacks(SPY, "stacks/rank_3.1.txt")} == {3}


def test_two_captures_in_one_file_stay_apart() -> None:
    """Several ranks' stacks in one file, each under its own header, keep their ranks."""
    other = SERVER.replace("rank=14", "rank=15").replace("pid=81233", "pid=81234")
    assert [s.rank for s in stacks(SERVER + other)] == [14, 14, 15, 15]


def test_named_threads_of_newer_pythons_are_read() -> None:
    """Python 3.14 puts the thread's name into faulthandler's line."""
    (found,) = stacks('Current thread 0x00007f12 [MainThread] (most recent call first):\n  File "a.py", line 3 in f\n')
    assert (found.thread, found.frames[0].name) == ("MainThread", "f")


def test_prose_about_threads_is_no_stack() -> None:
    """A log that merely speaks of threads has no stacks."""
    assert stacks("Thread pool started\nThread 3 (idle) is waiting\nProcess 7: ready\n    f (x)\n") == []


def test_real_faulthandler_is_read(tmp_path: Path) -> None:
    """What this Python's faulthandler prints reads back to the lines of the script."""
    script = tmp_path / "s.py"
    script.write_text(
        "import faulthandler, threading, time\n"
        "t = threading.Thread(target=time.sleep, args=(3,), daemon=True)\n"
        "t.start()\n"
        "def inner():\n"
        "    faulthandler.dump_traceback(all_threads=True)\n"
        "inner()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=True)
    main = next(s for s in stacks(done.stderr) if s.main)
    assert [(f.name, f.line) for f in main.frames] == [("inner", 5), ("<module>", 6)]


def test_real_py_spy_is_read(tmp_path: Path) -> None:
    """What py-spy prints of a live process reads back, and its pid is joined to the rank that a roster gives it."""
    tool = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
    if tool is None:
        pytest.skip("py-spy is not installed")
    script = tmp_path / "s.py"
    script.write_text("import time\ndef wait():\n    print('x', flush=True)\n    time.sleep(30)\nwait()\n")
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        time.sleep(0.2)
        done = subprocess.run(
            [tool, "dump", "--pid", str(process.pid)], capture_output=True, text=True, timeout=30, check=False
        )
    finally:
        process.kill()
        process.wait()
    if done.returncode:
        pytest.skip(f"py-spy may not look at processes here: {done.stderr.strip()[-80:]}")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/whatever").write_text(done.stdout)
    (tmp_path / "in/roster.json").write_text(f'[{{"rank": 6, "host": "h", "pid": {process.pid}}}]')
    (main,) = [s for s in load([tmp_path / "in"]).facts.stacks if s.main]
    assert (main.rank, main.pid) == (6, process.pid)
    assert [(f.name, f.line) for f in main.frames] == [("wait", 4), ("<module>", 5)]


NATIVE = """\
# hangscope stacks rank=3 pid=700 sample=2 by=py-spy at=2026-11-15T02:30:11.204Z
Process 700: python train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 700 (active+gil): "MainThread"
    0x7f12 (/usr/lib/x86_64-linux-gnu/libcuda.so.1)
    cudaLaunchKernel (/usr/lib/libcudart.so.12)
    at::native::add_stub<c10::Half>(at::TensorIterator&) (/usr/lib/libtorch_cuda.so)
    adamw (/usr/lib/python3.12/site-packages/torch/optim/adamw.py:600)
    step (/workspace/train.py:40)
    0x7f021e04524a (/usr/lib/x86_64-linux-gnu/libc.so.6)
"""
CHILD = """\
# hangscope stacks rank=3 pid=900 parent=700 sample=2 by=faulthandler at=2026-11-15T02:30:11.204Z
Thread 0x00007efc9d0b5b80 (most recent call first):
  File "/workspace/data.py", line 12 in __getitem__
"""


def test_native_frames_stand_apart_from_python_ones() -> None:
    """What C and C++ do inside the innermost Python frame is kept beside it; what started Python is not."""
    (main,) = stacks(NATIVE)
    assert [frame.name for frame in main.frames] == ["adamw", "step"]
    assert [frame.name.split("<")[0] for frame in main.native] == ["0x7f12", "cudaLaunchKernel", "at::native::add_stub"]
    assert main.holds_gil


def test_a_child_is_no_thread_of_the_rank() -> None:
    """The process that a rank started has the rank's number, is told apart, and proves no life of the rank."""
    main, child = stacks(NATIVE + "\n" + CHILD)
    assert (child.rank, child.pid, child.child, child.main, child.outside) == (3, 900, True, False, True)
    assert (main.child, main.main) == (False, True)


def test_native_frames_stay_in_a_bundle_of_evidence_alone() -> None:
    """They tell a GPU's fault from a rank's: a bundle that carries only evidence has them."""
    out = io.BytesIO()
    assert keep_evidence(io.BytesIO(NATIVE.encode()), out)
    assert b"cudaLaunchKernel" in out.getvalue()


DEBUG_SERVER = """=== Rank {}: http://gpu-7:42151/handler/dump_traceback? ===
Thread 0x00007f2a (most recent call first):
  File "/job/data.py", line 12 in load_shard
  File "/job/train.py", line 60 in <module>

"""


def test_stacks_of_the_debug_server_have_their_rank() -> None:
    """torch.distributed.debug writes every rank's stack into one file, each behind a header of its own."""
    found = stacks("".join(DEBUG_SERVER.format(rank) for rank in (3, 0)), "stacks_20261118_023011.txt")
    assert [(each.rank, each.frames[0].name) for each in found] == [(3, "load_shard"), (0, "load_shard")]
