"""`minivllm docs`: the site on this machine's own address, or one line that says what it takes."""

from __future__ import annotations

import http.client
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from minivllm.entrypoints import site
from minivllm.entrypoints.cli.errors import BAD_INPUT, FINE, LACKING
from minivllm.export.serve import FolderServer
from tests.cli.conftest import Run


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site with two pages, as one that came with the package."""
    folder = tmp_path / "site"
    (folder / "lessons").mkdir(parents=True)
    (folder / "index.html").write_text("the start")
    (folder / "lessons" / "plan.html").write_text("a lesson")
    (tmp_path / "secret.txt").write_text("no page")
    monkeypatch.setattr(site, "PACKAGED", folder)
    return folder


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No site in the package, and none that was built before."""
    monkeypatch.setattr(site, "PACKAGED", tmp_path / "none")
    monkeypatch.setenv("MINIVLLM_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def served(built: Path) -> Iterator[int]:
    with FolderServer(built) as server:
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def asked(port: int, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_it_serves_the_pages_of_the_folder_and_nothing_else(served: int) -> None:
    assert asked(served, "/") == (200, "the start")
    assert asked(served, "/lessons/plan.html?h=budget") == (200, "a lesson")
    assert asked(served, "/lessons/")[0] == 404  # no list of files
    assert asked(served, "/../secret.txt")[0] == 404
    assert asked(served, "/%2e%2e/secret.txt")[0] == 404
    assert asked(served, "/", host="example.org")[0] == 403


def test_a_page_left_halfway_is_no_fault_and_anything_else_is(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FolderServer(built) as server:
        for error, told in ((BrokenPipeError(), False), (ConnectionResetError(), False), (KeyError("page"), True)):
            try:
                raise error
            except type(error):
                server.handle_error(None, ("127.0.0.1", 1))
            assert ("Traceback" in capsys.readouterr().err) == told


def test_a_packaged_site_is_served_as_it_is(run: Run, built: Path) -> None:
    ended = run("docs", "--no-browser", "--seconds", "0")
    assert ended.code == FINE
    assert ended.out.startswith("http://127.0.0.1:")
    assert "building" not in ended.err


def test_without_a_site_and_without_a_checkout_it_says_where_to_read(
    run: Run, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "BUILDER", nowhere / "none.py")
    for option in ([], ["--rebuild"]):
        ended = run("docs", "--no-browser", *option)
        assert ended.code == LACKING
        assert 'pip install -e ".[docs]"' in ended.err
        assert ended.out == ""


def test_without_the_tools_it_names_the_extra(run: Run, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "_TOOLS", ("a_tool_that_is_not_there",))
    ended = run("docs", "--no-browser")
    assert ended.code == LACKING
    assert "a_tool_that_is_not_there is not installed" in ended.err


def test_a_site_is_built_once_and_again_when_a_source_is_younger(
    run: Run, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = nowhere / "build.py"
    builder.write_text(
        "import pathlib, sys\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "place.mkdir()\n"
        "(place / 'index.html').write_text('new')\n"
    )
    source = nowhere / "docs" / "page.md"
    source.parent.mkdir()
    source.write_text("# A page")
    monkeypatch.setattr(site, "BUILDER", builder)
    monkeypatch.setattr(site, "CHECKOUT", nowhere)
    monkeypatch.setattr(site, "_TOOLS", ())
    start = nowhere / "home" / "site" / "index.html"
    command = ("docs", "--no-browser", "--seconds", "0")
    assert "building" in run(*command).err
    assert start.read_text() == "new"
    assert "building" not in run(*command).err
    start.write_text("old")
    os.utime(source, (start.stat().st_mtime + 10,) * 2)
    assert "building" in run(*command).err
    assert start.read_text() == "new"


def test_a_build_that_fails_says_why_and_keeps_what_was_there(
    run: Run, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = nowhere / "build.py"
    builder.write_text("import sys\nsys.exit('a link leads nowhere')\n")
    kept = nowhere / "home" / "site" / "index.html"
    kept.parent.mkdir(parents=True)
    kept.write_text("old")
    monkeypatch.setattr(site, "BUILDER", builder)
    monkeypatch.setattr(site, "_TOOLS", ())
    ended = run("docs", "--no-browser", "--rebuild")
    assert ended.code == BAD_INPUT
    assert "could not be built: a link leads nowhere" in ended.err
    assert kept.read_text() == "old"
