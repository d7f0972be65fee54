"""How much of what a program prints is held."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hangscope.processes.programs import run_bounded


def test_of_a_program_that_prints_without_end_a_bounded_part_is_held() -> None:
    """It is ended as soon as that much has come, and what came is given."""
    printed = run_bounded([sys.executable, "-c", "while True: print('Thread 1' * 1000)"], 60.0, 1 << 20)
    assert printed.cut and printed.ok
    assert len(printed.out) == 1 << 20


def test_what_a_program_prints_is_held_whole_where_it_fits() -> None:
    """With its status and its last words."""
    printed = run_bounded([sys.executable, "-c", "import sys; print('x'); sys.exit('no')"], 60.0, 1 << 20)
    assert (printed.out, printed.error.strip(), printed.status, printed.ok) == (b"x\n", "no", 1, False)


def test_a_program_that_does_not_answer_is_ended() -> None:
    """After its time, as `subprocess.run` does."""
    with pytest.raises(subprocess.TimeoutExpired):
        run_bounded([sys.executable, "-c", "import time; time.sleep(60)"], 0.5, 1 << 20)


def test_a_program_gets_no_more_memory_than_it_may_have() -> None:
    """What looks at a hostile process may be made to ask for gigabytes: it fails, and is done."""
    done = run_bounded([sys.executable, "-c", "import time; time.sleep(1); print(len(bytearray(600 << 20)))"], 20, 100)
    assert done.ok and done.out.strip() == b"629145600"
    words = [sys.executable, "-c", "import time; time.sleep(1); bytearray(600 << 20)"]
    assert b"MemoryError" in run_bounded(words, 20, 100, 256 << 20).error.encode()
