"""Is a server moving? Asked of a small real HTTP server that plays vLLM's and SGLang's metrics."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hangscope.cli.main import main
from hangscope.recorder.probe.ask_server import Question, probe
from hangscope.recorder.probe.server_metrics import Replica, replicas
from hangscope.recorder.probe.server_state import Says, look


def vllm(running: int, tokens: int, *, first: int = 9, done: int = 5, engine: int = 0) -> str:
    labels = f'{{engine="{engine}",model_name="org/model \\"x\\""}}'
    return f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{labels} {running}.0
vllm:num_requests_waiting{labels} 0.0
vllm:generation_tokens_total{labels} {tokens}.0
vllm:iteration_tokens_total_count{labels} {tokens // 2}.0
vllm:time_to_first_token_seconds_count{labels} {first}.0
vllm:request_success_total{{engine="{engine}",finished_reason="stop",model_name="m"}} {done}.0
vllm:request_success_total{{engine="{engine}",finished_reason="abort",model_name="m"}} 0.0
"""


def sglang(running: int, tokens: int) -> str:
    labels = '{engine_type="unified",model_name="m",tp_rank="0"}'
    return f"""sglang:num_running_reqs{labels} {running}.0
sglang:generation_tokens_total{labels} {tokens}.0
sglang:num_requests_total{labels} 4.0
sglang:time_to_first_token_seconds_count{labels} 9.0
"""


class Server:
    """Answers every GET with `page`, after `delay` seconds, with `status`."""

    def __init__(self) -> None:
        self.page = ""
        self.status = 200
        self.delay = 0.0
        self.headers: dict[str, str] = {}
        self.trickle = 0.0
        """Seconds between two bytes of the header."""
        self.asked: list[str] = []
        played = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                time.sleep(played.delay)
                body = played.page.encode()
                played.asked.append(self.path)
                if played.trickle:
                    self._trickle()
                    return
                self.send_response(played.status)
                for name, value in played.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _trickle(self) -> None:
                with contextlib.suppress(OSError):
                    for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"y" * 200:
                        self.wfile.write(bytes([byte]))
                        time.sleep(played.trickle)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/metrics"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


def ask(server: Server, home: Path, threshold_s: float = 2.0) -> tuple[Says, str]:
    found = probe(Question(server.url, threshold_s, 1.0), {"TMPDIR": str(home)})
    return found.says, found.why


@pytest.mark.parametrize("engine", [vllm, sglang])
def test_a_server_whose_tokens_do_not_come_is_stuck(engine: object, server: Server, tmp_path: Path) -> None:
    """After the threshold and not before; the next token makes it well again, and so does the last request's end."""
    assert callable(engine)
    server.page = engine(3, 100)
    begun = time.monotonic()
    answers = [ask(server, tmp_path)]
    while answers[-1][0] is Says.MOVES and time.monotonic() < begun + 20:
        time.sleep(0.4)
        answers.append(ask(server, tmp_path))
    assert answers[-1][0] is Says.STUCK
    assert "3 running, and no new token for" in answers[-1][1]
    assert time.monotonic() - begun >= 2.0
    server.page = engine(3, 101)
    assert ask(server, tmp_path) == (Says.MOVES, "3 running, tokens come")
    server.page = engine(0, 101)
    assert ask(server, tmp_path) == (Says.MOVES, "no request runs: idle")


def test_a_server_that_cannot_be_asked_is_not_judged(server: Server, tmp_path: Path) -> None:
    """Not there, an error, silence, another page: each with its reason."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/metrics"
        assert probe(Question(url, 2.0, 1.0), {"TMPDIR": str(tmp_path)}).says is Says.CANNOT_TELL
    server.page = "<html>"
    assert "none of the metrics" in ask(server, tmp_path)[1]
    server.page = "vllm:num_requests_running 3\n"
    assert "no counter of tokens" in ask(server, tmp_path)[1]
    server.status = 503
    assert "status 503" in ask(server, tmp_path)[1]
    server.status = 200
    server.delay = 1.5
    assert ask(server, tmp_path)[0] is Says.CANNOT_TELL


def test_the_command_says_one_line_and_its_status(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0, 1, 2; with --lenient only what is seen to be stuck fails."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    server.page = vllm(0, 1)
    assert main(["probe", server.url]) == 0
    assert capsys.readouterr().out == "ok: no request runs: idle\n"
    server.page = ""
    assert main(["probe", server.url]) == 2
    assert main(["probe", server.url, "--lenient"]) == 0
    assert main(["probe", "file:///etc/passwd"]) == 2
    server.page = "mine_running 2\nmine_tokens 7\n"
    own = ["probe", server.url, "--running", "mine_running", "--progress", "mine_tokens", "--stall-after", "1"]
    statuses = []
    for _ in range(8):
        statuses.append(main(own))
        time.sleep(0.3)
    assert statuses[0] == 0 and 1 in statuses


def test_what_is_remembered_is_private(server: Server, tmp_path: Path) -> None:
    """Others neither read nor change it, and a folder that somebody else made is not used."""
    server.page = vllm(1, 5)
    ask(server, tmp_path)
    [folder] = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    [file] = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text('{"at": [], "replicas": {"0": 7}}')
    assert ask(server, tmp_path)[0] is Says.MOVES
    file.unlink()
    folder.rmdir()
    folder.symlink_to("/etc")
    says, why = ask(server, tmp_path)
    assert says is Says.CANNOT_TELL and "cannot be remembered" in why
    assert os.listdir(tmp_path) == [folder.name]


def looks(pages: list[tuple[float, str]], threshold_s: float = 100.0) -> list[Says]:
    """The answers of looks at these times."""
    state: dict[str, object] = {}
    found = []
    for at, page in pages:
        answer = look(replicas(page), state, at, threshold_s)
        state = dict(answer.state)
        found.append(answer.says)
    return found


def test_a_long_prefill_is_not_a_hang() -> None:
    """A request that has had no token yet is waited for four times as long."""
    prefill = vllm(1, 100, first=5, done=5)
    assert looks([(60.0 * n, prefill) for n in range(7)]) == [Says.MOVES] * 7
    assert looks([(60.0 * n, prefill) for n in range(8)])[-1] is Says.STUCK
    decode = vllm(1, 100, first=6, done=5)
    assert looks([(60.0 * n, decode) for n in range(3)]) == [Says.MOVES, Says.MOVES, Says.STUCK]


def test_a_replica_that_hangs_does_not_hide_behind_another() -> None:
    """With data parallelism the others' tokens go on."""
    pages = [(60.0 * n, vllm(2, 100 + n, engine=0) + vllm(2, 50, engine=1)) for n in range(3)]
    assert looks(pages)[-1] is Says.STUCK
    final = look(replicas(pages[-1][1]), {"at": 60.0, "replicas": {"1": {"counters": {}, "since": 0}}}, 120.0, 100.0)
    assert final.says is Says.MOVES, "counters that differ from those remembered have moved"


def test_looks_that_are_far_apart_say_nothing_about_the_time_between() -> None:
    """An idle night between two requests is no hang, nor is a clock that was set back."""
    page = vllm(1, 100)
    assert looks([(0.0, page), (5000.0, page)]) == [Says.MOVES] * 2
    assert looks([(5000.0, page), (0.0, page), (50.0, page)]) == [Says.MOVES] * 3


def test_odd_lines_are_passed_over() -> None:
    """Comments, NaN, what is no number, and lines without end."""
    text = "vllm:num_requests_running NaN\nvllm:num_requests_running{ 3\n" + "x" * 100_000 + "\n# c\n\x00\n"
    assert replicas(text) == {}
    assert replicas("vllm:num_requests_running 2 1700000000000\n") == {"": Replica(running=2.0)}


def test_a_large_page_is_read_to_its_end(server: Server, tmp_path: Path) -> None:
    """Two megabytes of other metrics in front of the ones that tell, and carriage returns."""
    other = "".join(f'http_request_seconds_bucket{{le="{n}",path="/v1"}} {n}.0\r\n' for n in range(45_000))
    assert len(other) > 2 << 20
    server.page = other + vllm(0, 1).replace("\n", "\r\n")
    assert ask(server, tmp_path) == (Says.MOVES, "no request runs: idle")


def test_a_redirection_is_said_and_not_followed(server: Server, tmp_path: Path) -> None:
    """Where it points is in the line; and a query of the address is sent."""
    server.status, server.headers = 307, {"Location": "http://elsewhere:9/metrics"}
    server.url += "?engine=0"
    says, why = ask(server, tmp_path)
    assert says is Says.CANNOT_TELL and "redirects to http://elsewhere:9/metrics" in why
    assert server.asked == ["/metrics?engine=0"]


def test_headers_that_trickle_in_end_with_the_time_for_an_answer(server: Server, tmp_path: Path) -> None:
    """A byte now and then is no answer: it takes no longer than asked for."""
    server.trickle = 0.1
    begun = time.monotonic()
    says, why = ask(server, tmp_path)
    assert says is Says.CANNOT_TELL and "no whole answer within 1 s" in why
    assert time.monotonic() - begun < 6


def test_a_certificate_that_nobody_knows_is_refused_in_words(server: Server, tmp_path: Path) -> None:
    """TLS to a server that speaks none: said, and not judged."""
    server.url = server.url.replace("http:", "https:")
    says, why = ask(server, tmp_path)
    assert says is Says.CANNOT_TELL and "does not answer" in why


def test_requests_that_wait_and_are_never_taken_are_stuck() -> None:
    """None runs and some wait: four times the threshold, because weights may be loading."""
    page = (
        vllm(0, 100)
        .replace("num_requests_waiting{", 'num_requests_waiting{x="1",')
        .replace("} 0.0\nvllm:gen", "} 12.0\nvllm:gen")
    )
    assert "} 12.0" in page
    assert looks([(60.0 * n, page) for n in range(7)]) == [Says.MOVES] * 7
    assert looks([(60.0 * n, page) for n in range(8)])[-1] is Says.STUCK


def test_a_server_that_was_started_anew_begins_anew() -> None:
    """Its counters fall to zero: they have moved."""
    pages = [(0.0, vllm(2, 900)), (60.0, vllm(2, 900)), (90.0, vllm(2, 0, first=0, done=0)), (130.0, vllm(2, 0))]
    assert looks(pages) == [Says.MOVES] * 4


def test_replicas_of_both_kinds_of_labels_are_told_apart() -> None:
    """vLLM's engine, SGLang's dp_rank with a line for each TP rank, in any order of labels."""
    page = "".join(
        f'sglang:num_running_reqs{{tp_rank="{tp}",model_name="a{{b}}",dp_rank="{dp}"}} 1\n'
        f'sglang:generation_tokens_total{{dp_rank="{dp}",tp_rank="{tp}"}} {dp + 5}\n'
        for dp in range(2)
        for tp in range(2)
    )
    found = replicas(page)
    assert {name: (each.running, sum(each.moves_by.values())) for name, each in found.items()} == {
        "0": (2.0, 10.0),
        "1": (2.0, 12.0),
    }
