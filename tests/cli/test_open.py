"""`minivllm open`: the viewer on this machine's own address, until Ctrl-C."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Iterator

import pytest

from minivllm.export.serve import PageServer
from tests.cli.conftest import Run

# Whoever started these tests may ignore interrupts, as a shell does for jobs in the background; that is inherited.
CODE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from minivllm.entrypoints.cli.main import main
sys.exit(main(["open", "-s", "hello", "--no-browser"]))
"""
COMMAND = [sys.executable, "-c", CODE]


@pytest.fixture
def opened() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A running viewer, and its port."""
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        yield process, int(url.removeprefix("http://127.0.0.1:").removesuffix("/"))
        process.kill()


def asked(port: int, path: str = "/", method: str = "GET", host: str | None = None) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()


def test_it_serves_the_viewer_until_ctrl_c(opened: tuple[subprocess.Popen[str], int]) -> None:
    process, port = opened
    status, headers, body = asked(port)
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert '"scenario":"hello"' in body
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err


def test_it_serves_one_page_and_only_to_this_machine(opened: tuple[subprocess.Popen[str], int]) -> None:
    _, port = opened
    assert asked(port, "/etc/passwd")[0] == 404
    assert asked(port, "/?again")[0] == 200
    assert asked(port, method="HEAD")[::2] == (200, "")
    assert asked(port, method="POST")[0] == 501
    assert asked(port, host="somebody.example")[0] == 403
    assert asked(port, host=f"localhost:{port}")[0] == 200


def test_it_listens_on_the_loopback_address_only() -> None:
    with PageServer(b"page") as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"


def test_a_port_in_use_is_said(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run("open", "-s", "hello", "--no-browser", "--port", port, "--seconds", "0")
    assert ended.code == 1
    assert ended.error == f"port {port} is in use: name another with --port, or leave it out"


def test_it_prints_its_address_and_ends_by_itself_if_asked(run: Run) -> None:
    ended = run("open", "-s", "hello", "--no-browser", "--seconds", "0")
    assert ended.code == 0
    assert ended.out.startswith("http://127.0.0.1:")
    assert ended.out.count("\n") == 1


def test_it_opens_the_browser_where_there_is_a_screen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def show(url: str) -> bool:
        shown.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", show)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if sys.platform == "linux":
        assert "has no screen" in run("open", "-s", "hello", "--seconds", "0").err
        assert shown == []
    monkeypatch.setenv("DISPLAY", ":0")
    ended = run("open", "-s", "hello", "--seconds", "0")
    assert shown == [ended.out.strip()]
    assert run("open", "-s", "hello", "--no-browser", "--seconds", "0").code == 0
    assert len(shown) == 1


def test_a_wrong_scenario_or_port(run: Run) -> None:
    assert "hello" in run("open", "-s", "helo", "--seconds", "0").error
    assert run("open", "-s", "hello", "--port", "70000").code == 2
