"""NCCL's RAS, asked as newer and older ones answer."""

from __future__ import annotations

import socket
import threading

import pytest

from hangscope.sources.nccl_ras import capture as ras_question


def ras_server(replies: dict[bytes, bytes], final: bytes) -> tuple[int, threading.Thread]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as stream:
            for line in stream:
                if line.upper().startswith(b"VERBOSE STATUS"):
                    stream.write(final)
                    break
                stream.write(next((reply for start, reply in replies.items() if line.startswith(start)), b"OK\n"))
                stream.flush()
        listener.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return listener.getsockname()[1], thread


@pytest.mark.parametrize(("format_reply", "form"), [(b"OK\n", "json"), (b"ERROR: Unknown command\n", "text")])
def test_ras_is_asked_for_json_and_older_ones_for_text(format_reply: bytes, form: str) -> None:
    """NCCL answers in JSON from 2.28.7 on; before, the question for it is an unknown command."""
    replies = {b"CLIENT PROTOCOL": b"SERVER PROTOCOL 2\n", b"SET FORMAT": format_reply}
    port, _ = ras_server(replies, b"the report")
    assert ras_question.listening(port)
    assert ras_question.status(("127.0.0.1", port), 5) == (b"the report", form, "")
    assert ras_question.address("localhost:27428") == ("localhost", 27428)
    assert ras_question.address(None) == ("localhost", 28028)


def test_a_port_that_nobody_listens_on_is_not_connected_to() -> None:
    """It is looked up in the kernel's table."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert not ras_question.listening(bound.getsockname()[1])
