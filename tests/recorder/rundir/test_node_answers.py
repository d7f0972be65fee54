"""Whether another node's machine answers on the network."""

from __future__ import annotations

import socket
import time

import pytest

from hangscope.recorder.rundir.node_answers import Reply, answers, ask, ask_all


def test_a_port_that_is_taken_or_refused_is_an_answer() -> None:
    """Whoever listens, or nobody: the machine is there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert answers(socket.AF_INET, address, 2.0)
    assert answers(socket.AF_INET, address, 2.0)


def test_a_machine_that_says_nothing_does_not_answer() -> None:
    """A queue of connections that is full is as silent as a machine without power: in time, the answer is no."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        kept = [socket.socket() for _ in range(8)]
        for each in kept:
            each.setblocking(False)
            each.connect_ex(server.getsockname())
        assert not answers(socket.AF_INET, server.getsockname(), 0.3)
        for each in kept:
            each.close()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "no such name", "a" * 300, ""])
def test_a_name_that_is_no_other_machine_says_nothing(name: str) -> None:
    """Neither ourselves nor nonsense is asked."""
    assert ask(name) is Reply.UNKNOWN


def test_a_name_service_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are asked at once, and who does not come back in time is not known."""
    monkeypatch.setattr("hangscope.recorder.rundir.node_answers.CONNECT_S", -0.5)
    begun = time.monotonic()
    found = ask_all(["slow", "fast"], lambda node: (time.sleep(5 if node == "slow" else 0), Reply.ANSWERS)[1])
    assert (found, time.monotonic() - begun < 3) == ({"slow": Reply.UNKNOWN, "fast": Reply.ANSWERS}, True)
