"""The Python stacks of a running process are read from outside, without py-spy and without stopping it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hangscope.processes.programs import py_spy
from hangscope.recorder.capture import python_stacks
from hangscope.sources.cannot_read import CannotRead
from hangscope.sources.python_code import line_of
from hangscope.sources.stacks import as_json, thread_stacks

SLEEPER = """
import ctypes, threading, time

def waits(event):
    event.wait()

def sleeps(number):
    for name in ("one", "two"):
        threading.Thread(target=waits, args=(threading.Event(),), name=name, daemon=True).start()
    print("ready", flush=True)
    if number == 1:
        ctypes.PyDLL(None).sleep(1000)  # holds the GIL
    time.sleep(1000)

def naïve(number=NUMBER):
    return list(
        sleeps(number) for _ in range(2)
    )

naïve()
"""


@pytest.fixture(params=[0, 1], ids=["sleeps", "holds the GIL"])
def sleeper(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER.replace("NUMBER", str(request.param)))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)
        yield process.pid
        process.kill()


def test_lines_are_those_of_the_source(sleeper: int) -> None:
    """Each frame of the main thread has its function and its line, also where the GIL is held for ever."""
    _, threads = thread_stacks(sleeper)
    main = next(thread for thread in threads if thread.name == "MainThread")
    text = (Path(f"/proc/{sleeper}/cmdline").read_bytes().split(b"\0")[1]).decode()
    source = Path(text).read_text().splitlines()
    assert [frame.name for frame in main.frames] == ["sleeps", "<genexpr>", "naïve", "<module>"]
    assert "sleep(1000)" in source[main.frames[0].line - 1]
    assert "sleeps(number) for" in source[main.frames[1].line - 1]
    assert source[main.frames[3].line - 1] == "naïve()"
    assert len(threads) == 3
    assert main.has_gil == ("PyDLL" in source[main.frames[0].line - 1])


@pytest.mark.skipif(py_spy() is None, reason="py-spy is not installed")
def test_py_spy_sees_the_same(sleeper: int) -> None:
    """py-spy reads the same functions, files and lines of all threads."""
    words = [str(py_spy()), "dump", "--json", "--nonblocking", "--full-filenames", "--pid", str(sleeper)]
    theirs = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)

    def short(name: str) -> str:  # py-spy says in which class or function it is defined
        return name.rpartition(".")[2]

    def plain(threads: list[dict[str, Any]]) -> list[Any]:
        return sorted(
            (each["os_thread_id"], [(short(one["name"]), one["filename"], one["line"]) for one in each["frames"]])
            for each in threads
        )

    assert plain(as_json(sleeper)) == plain(theirs)


def test_a_capture_has_stacks_without_py_spy(sleeper: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where py-spy is not installed, a capture reads the frames itself, and says by what."""
    monkeypatch.setattr(python_stacks, "py_spy", lambda: None)
    text, by, _ = python_stacks.from_outside(sleeper)
    assert by == "memory"
    assert text is not None and "sleeps (" in text and '"MainThread"' in text


MANY_MODULES = """
import mmap, pathlib, sys, time

held = []
for number in range(200):
    module = pathlib.Path(sys.argv[1], f"m{number}.cpython-311-x86_64-linux-gnu.so")
    module.write_bytes(bytes(4096))
    with module.open("rb") as stream:
        held.append(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
print("ready", flush=True)
time.sleep(1000)
"""


def test_a_program_of_many_extension_modules_has_stacks(tmp_path: Path) -> None:
    """The interpreter is found among hundreds of modules, whatever else has Python in its name."""
    command = [sys.executable, "-c", MANY_MODULES, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            _, threads = thread_stacks(process.pid)
            assert [thread.frames[-1].line for thread in threads] == [11]
        finally:
            process.kill()


def test_what_is_no_python_is_refused() -> None:
    """A process without Python has a reason instead of stacks."""
    with subprocess.Popen(["sleep", "1000"]) as other:
        time.sleep(0.1)
        with pytest.raises(CannotRead, match="no Python runs in it"):
            thread_stacks(other.pid)
        other.kill()


def test_lines_of_this_python_are_decoded() -> None:
    """For every instruction of some hundred functions, the line that our decoder finds is Python's own."""
    minor = sys.version_info[1]
    checked = 0
    for code in _codes(Path(subprocess.__file__)):
        table = code.co_linetable
        for begin, end, line in code.co_lines():
            for instruction in range(begin, end, 2):
                assert line_of(minor, table, code.co_firstlineno, instruction) == (line or 0)
                checked += 1
    assert checked > 5000


def _codes(path: Path) -> Iterator[object]:
    waiting = [compile(path.read_text(), str(path), "exec")]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [each for each in code.co_consts if hasattr(each, "co_linetable")]
