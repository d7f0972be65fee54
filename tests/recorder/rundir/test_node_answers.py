"""Whether another node's machine answers on the network."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from hangscope.recorder.rundir.node_answers import NodeAnswers, Reply, answers, ask, ask_all
from hangscope.recorder.rundir.run_directory import RunFolders


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


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("fd00::7", "fd00::7"),
        ("127.0.0.1", "pod-1"),
        ("0.0.0.0", "pod-1"),
        ("224.0.0.1", "pod-1"),
        ("evil.example", "pod-1"),
        (["10.1.2.3"], "pod-1"),
        (None, "pod-1"),
    ],
)
def test_a_node_is_asked_at_the_address_that_its_agent_gave(given: object, asked: str, tmp_path: Path) -> None:
    """A pod's name seldom resolves. What is no address of another machine is not connected to."""
    folder = tmp_path / "nodes" / "pod-1"
    folder.mkdir(parents=True)
    (folder / "agent.json").write_text(json.dumps({"node": "pod-1", "pid": 1, "address": given}))
    found = []
    replies = NodeAnswers(RunFolders(tmp_path, folder), lambda node: (found.append(node), Reply.ANSWERS)[1])
    assert replies.of_silent(["pod-1"], []) == {"pod-1": Reply.ANSWERS}
    assert found == [asked]
