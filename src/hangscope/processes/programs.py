"""Programs that are started beside the job: where they are, and how much of what they print is held."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_MOST_ERROR = 64 << 10
_PIECE = 64 << 10

PY_SPY_S = 6.0
"""For py-spy to read the stacks of one process."""


def find_program(name: str, path: str | None = None) -> str | None:
    """On the PATH, or in the folder of our own interpreter, where pip puts what it installs with us."""
    own = Path(sys.executable).with_name(name)
    return shutil.which(name, path=path) or (str(own) if own.is_file() else None)


def py_spy() -> str | None:
    """py-spy, which reads the Python stacks of a process from outside."""
    return find_program("py-spy")


@dataclass(frozen=True, slots=True)
class Printed:
    """What a program printed, as far as it was held."""

    status: int
    out: bytes
    error: str
    cut: bool
    """Whether it printed more than was wanted, and was ended for that."""

    @property
    def ok(self) -> bool:
        return self.status == 0 or self.cut


MOST_MEMORY = 1 << 30
"""Of one program that looks at a process: py-spy takes a tenth of that, and believes what a process's libraries say of
their sizes."""


def run_bounded(words: Sequence[str], timeout_s: float, most: int, memory: int = MOST_MEMORY) -> Printed:
    """Run a program with so much memory, and hold at most `most` bytes of its output.

    The stacks of eighty threads, seven hundred frames deep, are hundreds of megabytes where files' names are long.

    Raises `subprocess.TimeoutExpired` where it does not end in time, `OSError` where it does not start.
    """
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, or its bound is lower already
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (memory, memory))
        out = _Pipe(process.stdout.fileno(), most)
        error = _Pipe(process.stderr.fileno(), _MOST_ERROR)
        try:
            cut = _read_until_full(out, error, time.monotonic() + timeout_s)
            if cut:
                _end(process)
            process.wait(max(timeout_s, 1.0))
        except TimeoutError:
            _end(process)
            raise subprocess.TimeoutExpired(list(words), timeout_s) from None
        except BaseException:
            _end(process)
            raise
        return Printed(process.returncode, bytes(out.held), error.held.decode(errors="replace"), cut)


class _Pipe:
    """One end of a pipe, of which no more than `most` bytes are held."""

    def __init__(self, number: int, most: int) -> None:
        self.number = number
        self.held = bytearray()
        self.full = False
        self._most = most

    def read(self) -> bool:
        """Read what is there; False at its end."""
        data = os.read(self.number, _PIECE)
        self.full = self.full or len(self.held) + len(data) > self._most
        self.held += data[: self._most - len(self.held)]
        return bool(data)


def _read_until_full(out: _Pipe, error: _Pipe, until: float) -> bool:
    """Read both to their ends, or until `out` is full: whether it is. Raises TimeoutError."""
    with selectors.DefaultSelector() as selector:
        for pipe in (out, error):
            selector.register(pipe.number, selectors.EVENT_READ, pipe)
        while selector.get_map() and not out.full:
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                if not key.data.read():
                    selector.unregister(key.fd)
    return out.full


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        process.kill()
