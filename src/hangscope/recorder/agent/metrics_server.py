"""The port on which Prometheus asks for the metrics: some clients at once, each for some seconds in all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, cast

from hangscope.errors import SettingsError
from hangscope.processes import linux_process

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK = "127.0.0.1"
ANSWER_S = 5.0
MOST_CLIENTS = 8


class MetricsServer(ThreadingHTTPServer):
    """`text` gives what is answered. Serves from its start until `close`, on a thread of its own."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, text: Callable[[], bytes]) -> None:
        self.text = text
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._lock = threading.Lock()
        self._clients: dict[int, socket.socket] = {}
        """Those that are being answered, the oldest first."""
        super().__init__((host, port), _Handler)
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def server_bind(self) -> None:
        """Without the name of the address, which `HTTPServer` would ask a name server for."""
        TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])
        self.server_port = self.server_address[1]

    def verify_request(self, request: Any, client_address: object) -> bool:  # noqa: ARG002
        """Everybody is let in. Who asks is answered at once: where all places are taken, the oldest client has nothing
        to ask, and goes."""
        with self._lock:
            self._clients[id(request)] = request
            oldest = next(iter(self._clients.values())) if len(self._clients) > MOST_CLIENTS else None
        if oldest is not None:
            _hang_up(oldest)
            self._forget(oldest)
        return True

    def _forget(self, request: Any) -> None:
        with self._lock:
            self._clients.pop(id(request), None)

    def process_request(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """However slowly the client speaks, it has its seconds and no more."""
        ending = threading.Timer(ANSWER_S, _hang_up, (request,))
        ending.daemon = True
        ending.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            ending.cancel()
            self._forget(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = ANSWER_S

    def do_GET(self) -> None:
        found = self.path.split("?")[0] in ("/metrics", "/")
        body = cast(MetricsServer, self.server).text() if found else b"see /metrics\n"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nobody wants a line a scrape among the training's own."""


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def serve(port: str, text: Callable[[], bytes]) -> MetricsServer:
    """Serve on a PORT of this machine alone, or on ADDRESS:PORT."""
    host, _, number = port.rpartition(":")
    known = linux_process.whole_number(number, 65535)
    if known is None:
        raise SettingsError(
            f"--metrics-port {port}: no port", hint="give PORT, or ADDRESS:PORT for other machines to see"
        )
    return MetricsServer(host.strip("[]") or LOOPBACK, known, text)
