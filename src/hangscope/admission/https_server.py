"""The HTTPS server that the API server asks. Small and bounded: each client has its seconds, and there are so many.

A certificate that is renewed (cert-manager, a secret) is taken without a restart.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, cast

from hangscope.admission import review
from hangscope.admission.pod_patch import PatchOptions
from hangscope.errors import InputError, SettingsError

CLIENT_S = 5.0
MOST_CLIENTS = 64
LOOK_S = 10.0


class AdmissionServer(ThreadingHTTPServer):
    """Serves from `serve_forever` until `shutdown`."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, host: str, port: int, certificate: Path, key: Path, options: PatchOptions) -> None:
        self.options = options
        self._files = (certificate, key)
        self._context = _context(certificate, key)
        self._seen = _times(self._files)
        self._looked_at = time.monotonic()
        self._places = threading.BoundedSemaphore(MOST_CLIENTS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without the name of the address, which `HTTPServer` would ask a name server for."""
        TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])
        self.server_port = self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)  # the API server goes on without us, at once
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        ending = threading.Timer(CLIENT_S, _hang_up, (request,))
        ending.daemon = True
        ending.start()
        try:
            request.settimeout(CLIENT_S)
            secured = self._current().wrap_socket(request, server_side=True)
            super().process_request_thread(secured, client_address)
        except OSError:
            self.shutdown_request(request)
        finally:
            ending.cancel()
            self._places.release()

    def _current(self) -> ssl.SSLContext:
        now = time.monotonic()
        if now >= self._looked_at + LOOK_S:
            self._looked_at = now
            seen = _times(self._files)
            if seen != self._seen:
                with suppress(SettingsError):  # half of it was written: the next look has it all
                    self._context = _context(*self._files)
                    self._seen = seen
        return self._context

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_S
    server_version = "hangscope"
    sys_version = ""

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 10 and int(length) <= review.MOST_BYTES):
            self._send(413 if length.isdigit() else 411, b'{"error": "no length, or too much"}')
            return
        try:
            body = self.rfile.read(int(length))
            self._send(200, review.answer(body, cast(AdmissionServer, self.server).options))
        except InputError as error:
            self._send(400, str(error).encode(errors="replace"))

    def do_GET(self) -> None:
        well = self.path == "/healthz"
        self._send(200 if well else 404, b'"ok"' if well else b'"POST an AdmissionReview"')

    def _send(self, status: int, body: bytes) -> None:
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Every pod of the cluster would be a line."""


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"{certificate}: {error.strerror or error}", hint="a certificate and its key, as PEM"
        ) from None
    return context


def _times(files: tuple[Path, Path]) -> tuple[int, ...]:
    with suppress(OSError):
        return tuple(os.stat(each).st_mtime_ns for each in files)
    return ()


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)
