"""Owns serving to this machine: on 127.0.0.1 only, to nobody who asks by another name, a page or a folder's files."""

from __future__ import annotations

import errno
import gzip
import io
import sys
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

_ADDRESS = "127.0.0.1"
# Files of a site that are sent packed to whoever can unpack them.
_PACKED = {".html", ".css", ".js", ".json", ".svg", ".xml", ".txt", ".md"}


class LocalServer(ThreadingHTTPServer):
    """A server that only this machine reaches.

    Args:
        handler: Answers one request.
        port: Port of this machine; 0 for a free one.

    Raises:
        ValueError: The port cannot be had.
    """

    daemon_threads = True

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler], port: int = 0) -> None:
        try:
            super().__init__((_ADDRESS, port), handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ValueError(f"port {port} is in use: name another with --port, or leave it out") from None
            raise ValueError(f"port {port} cannot be had ({error.strerror}): leave --port out for a free one") from None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{_ADDRESS}:{self.server_port}/"

    def is_asked_by_name(self, host: str | None) -> bool:
        """Whether a request's Host is ours: a page of somebody else that has its name lead here must read nothing."""
        return host in (f"{_ADDRESS}:{self.server_port}", f"localhost:{self.server_port}")

    def serve(self, seconds: float | None = None) -> None:
        """Answer until it is interrupted, or for so many seconds."""
        if seconds is not None:
            timer = threading.Timer(seconds, self.shutdown)
            timer.daemon = True
            timer.start()
        self.serve_forever(poll_interval=0.1)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that left a page before it had all of it; anything else is a fault, and told."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class PageServer(LocalServer):
    """Serves one page, made beforehand, at "/"."""

    def __init__(self, page: bytes, port: int = 0) -> None:
        self.page = page
        super().__init__(_PageHandler, port)


class FolderServer(LocalServer):
    """Serves the files of a folder, and lists none."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(partial(_FolderHandler, directory=str(folder)), port)


class _PageHandler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        if not self.server.is_asked_by_name(self.headers.get("Host")):
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


class _FolderHandler(SimpleHTTPRequestHandler):
    server: LocalServer

    def send_head(self) -> BinaryIO | None:  # type: ignore[override]
        """Where both GET and HEAD begin."""
        if not self.server.is_asked_by_name(self.headers.get("Host")):
            self.send_error(403, "only this machine is served")
            return None
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() else path
        packs = path.suffix in _PACKED and "gzip" in self.headers.get("Accept-Encoding", "")
        return self._packed(path) if packs and path.is_file() else super().send_head()  # type: ignore[return-value]

    def _packed(self, path: Path) -> BinaryIO:
        """Text, to a quarter of its size."""
        body = gzip.compress(path.read_bytes(), compresslevel=6)
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return io.BytesIO(body)

    def list_directory(self, path: object) -> None:
        self.send_error(404, "there is no page of this name")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: stderr is for the user."""
