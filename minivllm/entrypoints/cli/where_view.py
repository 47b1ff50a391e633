"""Owns how the source map looks: matches, reading routes, the directory map and verdicts, drawn or as JSON."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from minivllm.maps.render.style import ASCII, UNICODE, to_ascii
from minivllm.sourcemap.locate import PACKAGE
from minivllm.sourcemap.routes import Route, Stop
from minivllm.sourcemap.rows import ARTICLES, NEWER, PINNED, Row
from minivllm.sourcemap.tree import Entry

_NARROW = 80
_WIDE = 140
# What stands left of a place.
_MARGIN = 12
# More are only named: the first ones are what was meant.
_NUM_DRAWN = 5
_RUN = '-c c -m minivllm generate "Once upon a time"'
_PROCESS = {"engine_core": "engine core"}
_ARTICLES = {"1": "执行路径", "2": "源码阅读地图", "3": "从源码对象到调用链"}
_STYLES = {"ok": "green", "moved": "cyan", "renamed": "yellow", "gone": "red"}


def ours_document(row: Row) -> dict[str, Any] | None:
    """Our symbol, its file below the folder of the package, and its line; None if it is not built yet."""
    if row.ours is None or row.path is None:
        return None
    line = row.defined.line if row.defined else None
    return {"symbol": row.ours, "path": row.path.relative_to(PACKAGE.parent).as_posix(), "line": line}


def match_document(row: Row) -> dict[str, Any]:
    """One match, as JSON has it."""
    return {
        "concept": row.concept,
        "chinese": row.chinese,
        "layer": row.layer,
        "domain": row.domain,
        "process": row.process,
        "plane": row.plane,
        "owner": row.owner,
        "ours": ours_document(row),
        "vllm": row.vllm,
        "responsibility": row.says,
        "note": row.differs,
        "articles": [ARTICLES[key] for key in row.articles],
        "traced": row.is_registered,
    }


def stop_document(stop: Stop) -> dict[str, Any]:
    """One breakpoint, as JSON has it."""
    row = stop.row
    assert row.path is not None
    assert row.defined is not None
    breakpoint_ = f"{_from_here(row.path)}:{row.defined.body_line}"
    return {
        "concept": row.concept,
        "question": stop.question,
        "ours": ours_document(row),
        "vllm": row.vllm,
        "breakpoint": breakpoint_,
        "pdb": f'python -m pdb -c "b {breakpoint_}" {_RUN}',
    }


def route_document(name: str, route: Route) -> dict[str, Any]:
    """A route, as JSON has it; its own `pdb` sets all breakpoints at once."""
    stops = [stop_document(stop) for stop in route.stops]
    breaks = " ".join(f'-c "b {stop["breakpoint"]}"' for stop in stops)
    return {
        "path": name,
        "title": route.title,
        "chinese": route.chinese,
        "stops": stops,
        "pdb": f"python -m pdb {breaks} {_RUN}",
    }


def tree_document(entries: Iterable[Entry]) -> dict[str, Any]:
    """The directory map, as JSON has it."""
    return {
        "tree": [
            {
                "path": entry.path,
                "folder": entry.is_folder,
                "layer": entry.layer,
                "process": entry.process,
                "owns": entry.owns,
                "vllm": entry.upstream or None,
            }
            for entry in entries
        ]
    }


def _from_here(path: Path) -> str:
    """A file as a debugger finds it: below the working folder if it is there, else in full."""
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else str(path)


class View:
    """Draws on a terminal, in three widths.

    Args:
        console: Where to draw; its width decides the layout.
        ascii_only: Use no character beyond ASCII; Chinese names are left out.
    """

    def __init__(self, console: Console, ascii_only: bool) -> None:
        self._console = console
        self._ascii_only = ascii_only
        self._glyphs = ASCII if ascii_only else UNICODE
        self._has_links = console.is_terminal and not console.is_dumb_terminal and os.environ.get("TERM") != "linux"

    def draw_matches(self, rows: list[Row]) -> None:
        """The best matches in full, the names of the others."""
        for row in rows[:_NUM_DRAWN]:
            self._draw_match(row)
        others = [row.concept for row in rows[_NUM_DRAWN:]]
        if others:
            self._print(Text(f"also: {'; '.join(others)}", style="dim"))
        self._print(Text(f"next: {_next_command(rows)}"))

    def draw_route(self, document: dict[str, Any]) -> None:
        """A reading route, one breakpoint after the other."""
        self._print(self._heading(document["title"], document["chinese"]))
        for number, stop in enumerate(document["stops"], 1):
            head = Text(f"{number:>2}. ", style="bold").append(stop["ours"]["symbol"].partition(":")[2])
            head.append("  ").append_text(self._place(stop["ours"]))
            self._print(head)
            self._print(Padding(Text(stop["question"]), (0, 0, 0, 4), expand=False))
            self._print(Padding(self._labelled("break", Text(f"b {stop['breakpoint']}")), (0, 0, 0, 4), expand=False))
            if self._console.width >= _NARROW:
                vllm = self._vllm(stop["vllm"][PINNED], PINNED)
                self._print(Padding(self._labelled("vLLM", vllm), (0, 0, 0, 4), expand=False))
        self._print(Text("All breakpoints at once:"))
        self._print_line(Text(document["pdb"]))
        self._print_line(Text(f"next: {document['stops'][0]['pdb']}"))

    def draw_tree(self, entries: list[Entry]) -> None:
        """Folders and files; what they own stands beside them, or below where there is no room."""
        is_narrow = self._console.width < _NARROW
        table = Table(box=None, pad_edge=False, show_header=not is_narrow, padding=(0, 2, 0, 0))
        table.add_column("file", no_wrap=True)
        if not is_narrow:
            table.add_column("process", no_wrap=True, style="dim")
            table.add_column("owns")
        if self._console.width >= _WIDE:
            table.add_column("vLLM", no_wrap=True, style="dim")
        for entry in entries:
            depth = entry.path.count("/")
            name = "  " * depth + entry.path.rpartition("/")[2] + "/" * entry.is_folder
            label = Text(name, style=self._link(PACKAGE.parent / entry.path) + Style(bold=entry.is_folder))
            if is_narrow:
                self._print(label)
                owns = entry.owns.partition(". ")[0].removeprefix("Owns ")
                self._print(
                    Padding(Text(f"{_shown_process(entry.process)}: {owns}", style="dim"), (0, 0, 0, 2 * depth + 2))
                )
                continue
            cells: list[RenderableType] = [label, _shown_process(entry.process), _first_sentence(entry.owns)]
            table.add_row(*cells, *([entry.upstream] if self._console.width >= _WIDE else []))
        if not is_narrow:
            self._print(table)
        self._print(Text("next: minivllm where --path request"))

    def draw_verdicts(self, document: dict[str, Any]) -> None:
        """Counts, then everything that is not where the map says."""
        counts = f" {self._glyphs.dot} ".join(f"{document[name]} {name}" for name in _STYLES)
        self._print(Text(f"vLLM {document['version']} against the map of {document['pinned']}: {counts}", style="bold"))
        for row in document["rows"]:
            if row["status"] != "ok":
                line = Text(f"{row['status']:<8}", style=_STYLES[row["status"]]).append(row["symbol"], style="default")
                self._print_line(line)
                details = [("now", row["found"])] if row["found"] else []
                details += [("maybe", name) for name in row["candidates"]]
                details += [("for", "; ".join(row["concepts"]))]
                for label, value in details:
                    self._print_line(Text("        ").append_text(self._labelled(label, Text(value))))
        drift = sum(document[name] for name in ("moved", "renamed", "gone"))
        again = f"minivllm where --verify --vllm {shlex.quote(document['source'])} --json"
        self._print_line(Text(f"next: {again if drift else 'minivllm where --path step'}"))

    def _draw_match(self, row: Row) -> None:
        self._print(self._heading(row.concept, row.chinese))
        if row.ours is None:
            self._detail(
                "", Text("not built yet", style="yellow").append(f". {row.says}" if row.says else "", "default")
            )
        else:
            where = [row.layer, _shown_process(row.process), f"{row.plane} plane", f"state: {row.owner}"]
            self._detail("", Text(f" {self._glyphs.dot} ".join(where), style="dim"))
            self._detail("", Text(row.says))
            ours = ours_document(row)
            assert ours is not None
            self._detail("here", self._place(ours).append(f"  {row.ours.partition(':')[2]}"))
        self._draw_vllm(row)
        if row.differs:
            self._detail("differs", Text(row.differs))
        if row.articles and not self._ascii_only and self._console.width >= _NARROW:
            self._detail("articles", Text("; ".join(_ARTICLES[key] for key in row.articles), style="dim"))
        self._print(Text(""))

    def _draw_vllm(self, row: Row) -> None:
        pinned, newer = row.vllm[PINNED], row.vllm[NEWER]
        if pinned is None and newer is None:
            self._detail("vLLM", Text("no counterpart", style="dim"))
        elif pinned == newer:
            self._detail("vLLM", self._vllm(pinned, PINNED).append(f"  ({PINNED} and {NEWER})", style="dim"))
        elif self._console.width >= _WIDE:
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_row(
                self._vllm(pinned, PINNED).append(f"  ({PINNED})", style="dim"),
                self._vllm(newer, NEWER).append(f"  ({NEWER})", style="dim"),
            )
            self._detail("vLLM", table)
        else:
            self._detail("vLLM", self._vllm(pinned, PINNED).append(f"  ({PINNED})", style="dim"))
            self._detail("", self._vllm(newer, NEWER).append(f"  ({NEWER})", style="dim"))

    def _heading(self, name: str, chinese: str) -> Text:
        heading = Text(name, style="bold")
        return heading if self._ascii_only or not chinese else heading.append(f"  {chinese}", style="not bold")

    def _detail(self, label: str, text: Text | Table) -> None:
        """A line below a heading; at 80 columns and more labels have a column of their own."""
        if self._console.width < _NARROW:
            line = self._labelled(label, text) if label and isinstance(text, Text) else text
            self._print(Padding(line, (0, 0, 0, 2), expand=False))
            return
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(width=10, no_wrap=True, style="dim")
        table.add_column(overflow="fold")
        table.add_row(f"  {label}", text)
        self._print(table)

    def _labelled(self, label: str, text: Text) -> Text:
        return Text(f"{label} ", style="dim").append_text(text)

    def _place(self, ours: dict[str, Any]) -> Text:
        """Our place in plain text; a link where the terminal has them."""
        place = f"{ours['path']}:{ours['line']}"
        return Text("").append(place, style=self._link(PACKAGE.parent / ours["path"], ours["line"]))

    def _vllm(self, symbol: str | None, version: str) -> Text:
        if symbol is None:
            return Text("").append("none", style="dim")
        path = symbol.partition("::")[0]
        url = f"https://github.com/vllm-project/vllm/blob/v{version}/{path}"
        if len(symbol) > self._console.width - _MARGIN:
            symbol = symbol.replace("::", "\n::")
        return Text("").append(symbol, style=Style(link=url) if self._has_links else "default")

    def _link(self, path: Path, line: int | None = None) -> Style:
        if not self._has_links:
            return Style()
        return Style(link=path.as_uri() + (f"#L{line}" if line else ""))

    def _print_line(self, line: Text) -> None:
        """A line that is there to be copied: the terminal wraps it, not we."""
        self._print(line, soft_wrap=True)

    def _print(self, renderable: RenderableType, soft_wrap: bool = False) -> None:
        if not self._ascii_only:
            self._console.print(renderable, soft_wrap=soft_wrap)
            return
        with self._console.capture() as capture:
            self._console.print(renderable, soft_wrap=soft_wrap)
        self._console.file.write(to_ascii(capture.get()))


def _shown_process(process: str) -> str:
    return _PROCESS.get(process, process)


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".").removeprefix("Owns ")


def _next_command(rows: list[Row]) -> str:
    """The reading route that passes by the first match; else a look at the whole."""
    from minivllm.sourcemap.routes import ROUTES

    for row in rows[:_NUM_DRAWN]:
        for name, route in ROUTES.items():
            if any(stop.ours == row.ours for stop in route.stops):
                return f"minivllm where --path {name}"
    return "minivllm where --tree"
