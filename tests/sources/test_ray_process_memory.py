"""What a process's own memory tells: its environment as it is now, and the ids that its objects hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hangscope.processes import linux_process
from hangscope.sources.ray import process_memory
from hangscope.sources.ray.process_memory import ProcessMemory

PROGRAM = """
import os, sys, time
os.environ["RANK"] = "3"
task = bytes(range(100, 124))
held = [b"%s" % task, b"other"]
print(id(held), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


def address(child: subprocess.Popen[bytes]) -> int:
    assert child.stdout is not None
    return int(child.stdout.readline())


def test_a_variable_that_python_set_is_seen(child: subprocess.Popen[bytes]) -> None:
    """RANK that a script sets itself is not in /proc, and is in the environment as it is now."""
    address(child)
    assert "RANK" not in linux_process.environment(child.pid) or os.environ.get("RANK")
    now = process_memory.current_environment(child.pid)
    if not now:
        pytest.skip("this kernel does not let us read another process's memory")
    assert now["RANK"] == "3"
    assert now["PATH"] == os.environ["PATH"]


def test_an_id_is_found_in_a_list_and_nothing_else_is(child: subprocess.Popen[bytes]) -> None:
    """Of the ids that are known, those that an object or a member of a list holds."""
    task = bytes(range(100, 124))
    where = address(child)
    try:
        memory = ProcessMemory(child.pid)
    except OSError:
        pytest.skip("this kernel does not let us read another process's memory")
    with memory:
        assert process_memory.ids_held(memory, [where], {task, bytes(24)[:-1] + b"x"}) == [task]
        assert process_memory.ids_held(memory, [0, 1 << 62, 4096], {task}) == []


def test_of_a_process_that_is_gone_nothing_is_said() -> None:
    """No such process, no environment, and no error."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert process_memory.current_environment(gone.pid) == {}
