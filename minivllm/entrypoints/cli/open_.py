"""Owns `minivllm open`: the viewer in a browser, served to this machine only."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from minivllm.entrypoints.cli.common import LogOption, ScenarioOption, examples, note
from minivllm.entrypoints.cli.errors import user_errors
from minivllm.entrypoints.cli.export import CentreOption, viewer_text

if TYPE_CHECKING:
    from minivllm.export.serve import LocalServer

PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 for a free one.")]
BrowserOption = Annotated[bool, typer.Option("--no-browser", help="Only print the address.")]
SecondsOption = Annotated[
    float | None, typer.Option("--seconds", min=0, help="End by itself; default: at Ctrl-C.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples("minivllm open -s mixed-batch --seconds 1", "minivllm open -s hello --no-browser --seconds 1")
    app.command("open", epilog=epilog)(user_errors(open_))


def open_(
    log: LogOption = None,
    scenario: ScenarioOption = None,
    iteration: CentreOption = None,
    port: PortOption = 0,
    no_browser: BrowserOption = False,
    seconds: SecondsOption = None,
) -> None:
    """Open the viewer of a run in the browser.

    It is served on 127.0.0.1, so that only this machine can see it, and nothing is ever sent anywhere. Ctrl-C ends it.
    """
    from minivllm.export.serve import PageServer

    page = viewer_text(log, scenario, iteration)
    with PageServer(page.encode(), port) as server:
        print(server.url, flush=True)
        if not no_browser:
            open_browser(server)
        note("Ctrl-C ends it" if seconds is None else f"it ends after {seconds:g} s")
        server.serve(seconds)


def open_browser(server: LocalServer) -> None:
    """Show the page, where there is a screen. (A browser for terminals would take this one.)"""
    has_screen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not has_screen:
        note("this machine has no screen: open the address yourself")
        return
    import webbrowser

    if not webbrowser.open(server.url):
        note("no browser was found: open the address yourself")
