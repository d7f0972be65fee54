"""Questions over a unix socket, each with its deadline."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hangscope.recorder.live.worker_server import Asker, Question, Topic, ask


@contextmanager
def serving(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A unix socket that hands each connection to `answer`."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    open_ones: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_ones.append(connection)
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield str(path)
    finally:
        listener.close()
        for connection in open_ones:
            connection.close()


def http(body: bytes, length: int | None = None) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.recv(4096)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.close()

    return answer


def test_an_answer_comes_whole(tmp_path: Path) -> None:
    """However long it is."""
    body = os.urandom(3_000_000)
    with serving(tmp_path / "s", http(body)) as path:
        assert ask(path, "x", 5).body == body


def test_silence_ends_at_the_deadline(tmp_path: Path) -> None:
    """A process that accepts and never answers costs the deadline and no more, and is told from one that is gone."""
    with serving(tmp_path / "s", lambda connection: time.sleep(30)) as path:
        begun = time.monotonic()
        answer = ask(path, "x", 0.3)
        assert time.monotonic() - begun < 1
        assert (answer.ok, answer.late) == (False, True)
    gone = ask(str(tmp_path / "none"), "x", 1)
    assert (gone.ok, gone.late) == (False, False)


def test_an_answer_that_was_cut_is_no_answer(tmp_path: Path) -> None:
    """A process that dies while it answers leaves half a dump."""
    with serving(tmp_path / "s", http(b"half", length=1000)) as path:
        assert ask(path, "x", 2).error == "the answer was cut at 4 of 1000 bytes"


def test_a_question_is_not_asked_again_while_it_is_open(tmp_path: Path) -> None:
    """Each open question holds a thread of the rank's server: there is one a key, and its answer may come late."""
    release = threading.Event()
    asked = []

    def slow(connection: socket.socket) -> None:
        asked.append(1)
        release.wait(10)
        http(b"late")(connection)

    with serving(tmp_path / "s", slow) as path:
        asker, question = Asker(), Question(Topic.RING, 0, "gloo")
        for _ in range(3):
            asker.ask(question, path, "x")
            assert asker.wait(0.1) == []
        assert asker.open_for(question) is not None
        release.set()
        time.sleep(0.2)
        [(about, answer)] = asker.wait(0.5)
        assert (about, answer.body, len(asked)) == (question, b"late", 1)
        asker.close()
