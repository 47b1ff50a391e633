"""Owns what every picture has in common: the line that says what ran, rules, sentences, and places in the source."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.text import Text

from minivllm.maps.render.style import ASCII, UNICODE, Glyphs, printable, request_colours, to_ascii
from minivllm.maps.render.wrap import WrappedText
from minivllm.sourcemap.locate import locate, shown
from minivllm.trace.events import Header

NARROW = 80  # below, one thing a line
MEDIUM = 100  # from here on vLLM's places are shown, too
WIDE = 140


class Frame:
    """Draws the parts that all maps share.

    Args:
        header: The log's.
        requests: Ids in order of arrival: each keeps its colour in every map.
        console: Where to draw; its width decides the layout.
        ascii_only: Use no character beyond ASCII.
    """

    def __init__(self, header: Header, requests: Sequence[str], console: Console, *, ascii_only: bool = False) -> None:
        self.header = header
        self.console = console
        self.width = console.width
        self.ascii_only = ascii_only
        self.glyphs: Glyphs = ASCII if ascii_only else UNICODE
        self.colours = request_colours(list(requests))
        # Longest first, so that R10 is never taken for R1.
        ids = sorted(map(re.escape, requests), key=len, reverse=True)
        self._any_request = re.compile(rf"(?<!\w)(?:{'|'.join(ids)})(?!\w)") if ids else None
        self._has_links = console.is_terminal and not console.is_dumb_terminal and os.environ.get("TERM") != "linux"

    def print(self, renderable: RenderableType) -> None:
        """Print, in plain ASCII where that is asked for."""
        # A text that is printed is joined to a new one, which forgets whether it may be wrapped.
        how: dict[str, Any] = {}
        if isinstance(renderable, Text) and renderable.no_wrap:
            how = {"no_wrap": True, "overflow": renderable.overflow or "crop"}
        if not self.ascii_only:
            self.console.print(renderable, **how)
            return
        with self.console.capture() as capture:
            self.console.print(renderable, **how)
        self.console.file.write(to_ascii(capture.get()))

    def draw_header(self) -> None:
        """One line that says what ran."""
        config = self.header.config
        is_async = config.get("scheduler_config", {}).get("async_scheduling", False)
        parts = [
            self.header.scenario or "prompts",
            self.header.model,
            self.header.device,
            "async scheduling" if is_async else "sync",
            str(config.get("batch", "")),
            "no clocks" if self.header.clock == "logical" else "",
        ]
        self.print(Text(f" {self.glyphs.dot} ".join(part for part in parts if part), style="bold"))

    def rule(self, left: str, right: str = "") -> Text:
        """A line across the picture with something at both ends; the right end is left out if it does not fit."""
        glyph = self.glyphs.rule
        start = f"{glyph * 2} {left} "
        end = f" {right} {glyph * 2}" if right else ""
        if cell_len(start) + cell_len(end) + 2 > self.width:
            end = ""
        fill = glyph * max(self.width - cell_len(start) - cell_len(end), 2)
        return Text(start + fill + end, style="bold", no_wrap=True, overflow="crop")

    def sentence(self, text: str, style: str = "") -> Padding:
        """A sentence, set in, with every request in its colour."""
        shown_text = WrappedText(printable(text), style=style)
        for named in self._any_request.finditer(shown_text.plain) if self._any_request else ():
            shown_text.stylize(f"bold {self.colours[named[0]]}", *named.span())
        return Padding(shown_text, (0, 0, 0, 2), expand=False)

    def place(self, src: str | None) -> Text:
        """Our place, "core/scheduler.py:142"; a link where the terminal has them."""
        if not src:
            return Text("")
        found = locate(src)
        text = shown(src) if found else src.rpartition(":")[2]
        if found is None or not self._has_links:
            return Text(text)
        path, line = found
        return Text(text, style=Style(link=f"{path.as_uri()}#L{line}"))


def vllm_place(ref: str | None) -> str:
    """vLLM's place without what all of them begin with: "core/sched/scheduler.py::Scheduler.schedule"."""
    return (ref or "").removeprefix("vllm/").removeprefix("v1/")


def cuttable(text: str) -> Text:
    """A dim cell that is cut, not wrapped, when its column has to give way."""
    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")


def in_ms(ns: float | None, dash: str = "–") -> str:
    """A time with its unit: "4.92 ms", "0.087 ms", "123 ms"."""
    if ns is None:
        return dash
    ms = ns / 1e6
    if ms < 0.0005:
        return "<1 µs"
    digits = 0 if ms >= 100 else 1 if ms >= 10 else 2 if ms >= 1 else 3
    return f"{ms:.{digits}f} ms"


def in_bytes(count: int | None) -> str | None:
    """A size with its unit: "312 B", "1.9 kB"; None if it is not known."""
    if count is None:
        return None
    if count < 1000:
        return f"{count} B"
    size, unit = (count / 1000, "kB") if count < 999_950 else (count / 1e6, "MB")
    return f"{size:.1f} {unit}"


def in_percent(share: float | None, dash: str = "–") -> str:
    """A share of the whole: "94 %"; what is there but small is "<1 %"."""
    if share is None:
        return dash
    if 0 < share < 0.005:
        return "<1 %"
    return ">99 %" if 0.995 <= share < 1 else f"{share * 100:.0f} %"


def listed(names: Sequence[str], limit: int = 6) -> str:
    """Names in a sentence: "R0, R1 and R2"; of many the first, and how many more."""
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
