"""The door: the flight recorders of a running process, read without touching it.

`open_process` finds them and proves that they are what they seem. A reading raises `CannotRead`, with the reason and
what helps against it, rather than giving anything that is not proven.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable
from typing import TypeVar

from hangscope.sources.cannot_read import CannotRead, Torn
from hangscope.sources.flight_recorder import containers, find_recorders
from hangscope.sources.flight_recorder.layout import Layout
from hangscope.sources.flight_recorder.recorder_memory import MOST_FRAMES, RecorderMemory, Row
from hangscope.sources.process_memory import MOST_S, ProcessMemory, mappings
from hangscope.sources.python_code import Interpreter, interpreter_of

__all__ = ["CannotRead", "OutsideProcess", "dump_bytes", "open_process"]

T = TypeVar("T")
Counters = tuple[int, int, int]
_TRIES = 20


class OutsideProcess:
    """A process whose recorders can be read."""

    def __init__(self, pid: int, seconds: float = MOST_S) -> None:
        self.pid = pid
        self._seconds = seconds
        self._memory = ProcessMemory(pid, seconds)
        self._interpreter: Interpreter | None = None
        self.python = ""
        self.python_reason = ""
        """Why there are no frames, where there are none."""
        try:
            self._look()
        except BaseException:
            self._memory.close()
            raise

    def _look(self) -> None:
        files, _ = mappings(self.pid)
        self._found = find_recorders.find(self._memory, files)
        self._files = files

    def __enter__(self) -> OutsideProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._memory.close()

    @property
    def torch(self) -> str:
        """The release of the process's torch, empty where it is not known."""
        return self._found.torch

    @property
    def for_gpus(self) -> bool:
        """Whether its torch is a build for GPUs."""
        return any(os.path.basename(each.path) in find_recorders.FOR_GPUS for each in self._files)

    @property
    def reasons(self) -> dict[str, str]:
        """By backend, why its recorder cannot be read although its library is there."""
        return self._found.reasons

    def recorders(self) -> list[str]:
        """The backends whose recorders exist by now and are proven. One may come later, also later than another."""
        self._memory.renew(self._seconds)
        if self._found.recorders:
            find_recorders.find_later(self._found)
        else:
            self._look()
        return list(self._found.recorders)

    def counters(self) -> dict[str, dict[str, Counters]]:
        """By backend and group's number: the last operation that was enqueued, started and completed. Microseconds."""
        self._memory.renew(self._seconds)
        found = {}
        for backend, recorder in self._found.recorders.items():
            statuses = _patiently(self._memory, recorder.statuses)
            found[backend] = {str(number): counters for number, counters in statuses.items()}
        return found

    def group_names(self, backend: str) -> dict[str, dict[str, str]]:
        """The groups as the dump's pg_config has them."""
        self._memory.renew(self._seconds)
        return _patiently(self._memory, self._recorder(backend).groups)

    def dump(self, backend: str, *, stacks: bool = True) -> Row:
        """What torch's own dump would be, as plain values. Raises CannotRead."""
        self._memory.renew(self._seconds)
        recorder = self._recorder(backend)
        python = self._python() if stacks else None
        if python is None:
            return _patiently(self._memory, lambda: recorder.dump(None))
        python.forget()
        return _patiently(
            self._memory,
            lambda: recorder.dump(lambda traceback: frames_of(self._memory, python, recorder.layout, traceback)),
        )

    def _recorder(self, backend: str) -> RecorderMemory:
        recorder = self._found.recorders.get(backend)
        if recorder is None:
            raise CannotRead(self.reasons.get(backend, f"it has no recorder of {backend}"))
        return recorder

    def _python(self) -> Interpreter | None:
        if self._interpreter is None and not self.python_reason:
            try:
                self._interpreter = interpreter_of(self._memory, self._files)
                self.python_reason = "" if self._interpreter is not None else "no Python runs in it"
                self.python = self._interpreter.release if self._interpreter is not None else ""
            except CannotRead as error:
                self.python_reason = error.reason
        return self._interpreter


def frames_of(memory: ProcessMemory, python: Interpreter, layout: Layout, traceback: int) -> list[Row]:
    """The frames that a torch::CapturedTraceback holds, innermost first."""
    size = layout.traceback["frame_size"]
    begin, count = containers.bounds(memory, traceback + layout.traceback["frames"], size, MOST_FRAMES)
    found = []
    for code, instruction in struct.iter_unpack("<Qi4x", memory.read(begin, count * size)):
        line = python.line_of(code, instruction)
        found.append({"name": line.name, "filename": line.filename, "line": line.line})
    return found


def _patiently(memory: ProcessMemory, read: Callable[[], T]) -> T:
    """What a reading gives that fits together: one that was torn is made again, while there is time."""
    torn = CannotRead("it changed each time that it was read")
    for _ in range(_TRIES):
        try:
            return read()
        except Torn as error:
            torn = error
            if memory.late:
                break
    raise CannotRead(f"what is in its memory does not fit together: {torn.reason}")


def open_process(pid: int, seconds: float = MOST_S) -> OutsideProcess:
    """The process, opened for reading. Raises CannotRead: what is needed is in its `hint`."""
    return OutsideProcess(pid, seconds)


def dump_bytes(dump: Row) -> bytes:
    """A dump as torch writes it: pickle's protocol 2, of plain values."""
    return pickle.dumps(dump, protocol=2)
