"""Owns serving one page to this machine: on 127.0.0.1 only, to nobody who asks by another name, and nothing else."""

from __future__ import annotations

import errno
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_ADDRESS = "127.0.0.1"


class PageServer(ThreadingHTTPServer):
    """Serves one page, made beforehand.

    Args:
        page: What is served at "/".
        port: Port of this machine; 0 for a free one.

    Raises:
        ValueError: The port cannot be had.
    """

    daemon_threads = True

    def __init__(self, page: bytes, port: int = 0) -> None:
        self.page = page
        try:
            super().__init__((_ADDRESS, port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ValueError(f"port {port} is in use: name another with --port, or leave it out") from None
            raise ValueError(f"port {port} cannot be had ({error.strerror}): leave --port out for a free one") from None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{_ADDRESS}:{self.server_port}/"

    def serve(self, seconds: float | None = None) -> None:
        """Answer until it is interrupted, or for so many seconds."""
        if seconds is not None:
            timer = threading.Timer(seconds, self.shutdown)
            timer.daemon = True
            timer.start()
        self.serve_forever(poll_interval=0.1)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        # A page of somebody else that has its name lead to this machine must not read this one.
        known = (f"{_ADDRESS}:{self.server.server_port}", f"localhost:{self.server.server_port}")
        if self.headers.get("Host") not in known:
            self.send_error(403, "only this machine is served")
        elif self.path.partition("?")[0] != "/":
            self.send_error(404, "there is one page, at /")
        else:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(self.server.page)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if with_body:
                self.wfile.write(self.server.page)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: stderr is for the user."""
