"""Owns `minivllm docs`: the documentation's site in a browser, served to this machine only."""

from __future__ import annotations

from typing import Annotated

import typer

from minivllm.entrypoints.cli.common import examples, note
from minivllm.entrypoints.cli.errors import user_errors
from minivllm.entrypoints.cli.open_ import BrowserOption, PortOption, SecondsOption, open_browser

RebuildOption = Annotated[bool, typer.Option("--rebuild", help="Build the site anew, also where none of it changed.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples("minivllm docs", "minivllm docs --no-browser --seconds 1")
    app.command("docs", epilog=epilog)(user_errors(docs))


def docs(
    port: PortOption = 0,
    no_browser: BrowserOption = False,
    seconds: SecondsOption = None,
    rebuild: RebuildOption = False,
) -> None:
    """Read the documentation in the browser, without a network.

    It is served on 127.0.0.1, so that only this machine can see it. In a checkout it is built first, where its sources
    have changed, with the tools of `pip install -e ".[docs]"`. Ctrl-C ends it.
    """
    from minivllm.entrypoints import site
    from minivllm.export.serve import FolderServer

    if site.needs_build(rebuild=rebuild):
        note("building the site, once; this takes a while")
    with FolderServer(site.find_site(rebuild=rebuild), port) as server:
        print(server.url, flush=True)
        if not no_browser:
            open_browser(server)
        note("Ctrl-C ends it" if seconds is None else f"it ends after {seconds:g} s")
        server.serve(seconds)
