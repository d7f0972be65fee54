"""Questions to PyTorch's worker server over its unix socket, each with a deadline.

A rank that is frozen, or whose GIL is held, answers late or never, and every unanswered question occupies one of the
few threads of its server. So a question that was given up is not asked again until its answer has come.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

MAX_ANSWER_BYTES = 128 << 20
MOST_AT_ONCE = 512 << 20
"""Of all answers that are under way: every rank is asked at once."""
MAX_POLLED_BYTES = 64 << 20
MOST_HEAD = 64 << 10
LATE_S = 0.2
"""So long what comes late is read on in one turn; a server that never stops sending keeps nobody for longer."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What came back. `status` is the HTTP status, or None where nothing usable came; `error` then says why."""

    status: int | None
    body: bytes = b""
    error: str = ""
    seconds: float = 0.0
    late: bool = False
    """The process took the question and did not answer it in time."""

    @property
    def ok(self) -> bool:
        return self.status == 200


def ask(path: str, handler: str, deadline_s: float, most: int = MAX_ANSWER_BYTES) -> ServerAnswer:
    """Ask once and wait up to `deadline_s`, for no more than `most` bytes."""
    begun = time.monotonic()
    connection = _connect(path, handler)
    if isinstance(connection, ServerAnswer):
        return connection
    raw = bytearray()
    with connection, _room.claimed() as claim:
        while True:
            left = begun + deadline_s - time.monotonic()
            if left <= 0:
                return ServerAnswer(None, error=f"no answer within {deadline_s:g} s", seconds=deadline_s, late=True)
            connection.settimeout(left)
            try:
                chunk = connection.recv(1 << 18)
            except TimeoutError:
                continue
            except OSError as error:
                return ServerAnswer(None, error=str(error), seconds=time.monotonic() - begun)
            if not chunk:
                return _parse(raw, time.monotonic() - begun)
            raw += chunk
            if len(raw) > most or not claim(len(chunk)):
                return ServerAnswer(None, error=f"more than {len(raw)} bytes", seconds=time.monotonic() - begun)


class _AnswerMemory:
    """The memory that answers may take together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0

    @contextmanager
    def claimed(self) -> Iterator[Callable[[int], bool]]:
        own = 0

        def claim(size: int) -> bool:
            nonlocal own
            with self._lock:
                own += size
                self._taken += size
                return self._taken <= MOST_AT_ONCE

        try:
            yield claim
        finally:
            with self._lock:
                self._taken -= own


_room = _AnswerMemory()


def _connect(path: str, handler: str) -> socket.socket | ServerAnswer:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(path)
        connection.send(
            f"POST /handler/{handler} HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
    except BlockingIOError:
        connection.close()
        return ServerAnswer(None, error="the server's queue is full")
    except OSError as error:
        connection.close()
        return ServerAnswer(None, error=f"no connection: {error.strerror or error}")
    return connection


def _parse(raw: bytearray, seconds: float) -> ServerAnswer:
    """Takes `raw` apart without another copy of it: an answer may be large."""
    end = raw.find(b"\r\n\r\n", 0, MOST_HEAD)
    head = bytes(raw[: max(end, 0)])
    words = head.split(b"\r\n", 1)[0].split()
    if end < 0 or len(words) < 2 or not words[1].isdigit() or len(words[1]) != 3:
        return ServerAnswer(None, error="the connection ended before the answer", seconds=seconds)
    size = len(raw) - end - 4
    for line in head.split(b"\r\n")[1:]:
        name, _, value = (part.strip() for part in line.partition(b":"))
        announced = int(value) if value.isdigit() and len(value) < 20 else None
        if name.lower() == b"content-length" and announced != size:
            return ServerAnswer(None, error=f"the answer was cut at {size} of {announced} bytes", seconds=seconds)
    del raw[: end + 4]
    return ServerAnswer(int(words[1]), bytes(raw), seconds=seconds)


class _Pending:
    __slots__ = ("begun", "connection", "raw")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.raw = bytearray()
        self.begun = time.monotonic()


class Topic(Enum):
    """What a question is about."""

    WHO = auto()
    """Which rank a process is: the number of such a question is the process's."""
    ACTIVE = auto()
    """NCCL's unfinished operations."""
    PROGRESS = auto()
    """The companion's own counters and groups."""
    WAIT_COUNTERS = auto()
    STACKS = auto()
    TRACEBACK = auto()
    RING = auto()
    """All that one recorder has."""
    CALL_SITES = auto()


class Question(NamedTuple):
    """What is asked of which rank, and of which of its recorders."""

    topic: Topic
    number: int
    recorder: str = ""


class Asker:
    """Asks many ranks at once from one thread. Each question is open at most once."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._pending: dict[Question, _Pending] = {}
        self._done: list[tuple[Question, ServerAnswer]] = []

    def ask(self, question: Question, path: str, handler: str) -> bool:
        """Send the question, unless it is still open. Its answer comes out of `wait`."""
        if question in self._pending:
            return False
        connection = _connect(path, handler)
        if isinstance(connection, ServerAnswer):
            self._done.append((question, connection))
            return True
        self._pending[question] = _Pending(connection)
        self._selector.register(connection, selectors.EVENT_READ, question)
        return True

    def open_for(self, question: Question) -> float | None:
        """Seconds since the question was asked, None where it is not open."""
        pending = self._pending.get(question)
        return None if pending is None else time.monotonic() - pending.begun

    def wait(self, seconds: float) -> list[tuple[Question, ServerAnswer]]:
        """The answers that are there once no fresh question is open, or after `seconds`. Late ones stay open."""
        until = time.monotonic() + seconds
        while any(time.monotonic() - pending.begun < seconds for pending in self._pending.values()):
            left = until - time.monotonic()
            if left <= 0:
                break
            self._read(left)
        late = time.monotonic() + LATE_S
        while self._read(0) and time.monotonic() < late:  # a late answer takes more than one read
            pass
        done = self._done
        self._done = []
        return done

    def _read(self, timeout: float) -> bool:
        """Read once from every connection that has something; whether there was any."""
        ready = self._selector.select(timeout) if self._pending else []
        for event, _ in ready:
            question = event.data
            pending = self._pending[question]
            try:
                chunk = pending.connection.recv(1 << 18)
            except BlockingIOError:
                continue
            except OSError as error:
                self._finish(question, ServerAnswer(None, error=str(error)))
                continue
            pending.raw += chunk
            if not chunk:
                self._finish(question, _parse(pending.raw, time.monotonic() - pending.begun))
            elif len(pending.raw) > MAX_POLLED_BYTES or self._held() > 3 * MAX_POLLED_BYTES:
                self._finish(question, ServerAnswer(None, error=f"more than {len(pending.raw)} bytes"))
        return bool(ready)

    def _held(self) -> int:
        return sum(len(each.raw) for each in self._pending.values())

    def _finish(self, question: Question, answer: ServerAnswer) -> None:
        self._forget(question)
        self._done.append((question, answer))

    def forget_rank(self, number: int) -> None:
        """Give the open questions to that rank up: its process is gone."""
        for question in list(self._pending):
            if question.number == number and question.topic is not Topic.WHO:
                self._forget(question)

    def _forget(self, question: Question) -> None:
        pending = self._pending.pop(question, None)
        if pending is not None:
            self._selector.unregister(pending.connection)
            pending.connection.close()

    def close(self) -> None:
        for question in list(self._pending):
            self._forget(question)
        self._selector.close()
