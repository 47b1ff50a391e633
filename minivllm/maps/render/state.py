"""Owns drawing the state map in a terminal: requests in their three places, then the block pool.

Three layouts: two lines a request below 112 columns, one line from there on, and from 140 on the block tables as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from minivllm.maps.render.pool_strip import PoolStrip, in_lines
from minivllm.maps.render.state_cells import MARK, StateCells
from minivllm.maps.render.style import ASCII, UNICODE, Glyphs, request_colours, to_ascii
from minivllm.sourcemap.locate import shown
from minivllm.trace.events import Header

_ONE_LINE, _WITH_IDS = 112, 140
_MIN_BAR, _MAX_BAR = 8, 48
_PLACE_NAMES = {"slots": "slot", "rows": "row"}
# Lines for requests; the rest of them is counted. With the pool, a map stays within a screen of about 40 lines.
_MAX_LINES = 16

Request = dict[str, Any]


class _Column(NamedTuple):
    """A column of the table. `owner` stands above the first column of each of the three places."""

    owner: str
    head: str
    cell: Callable[[Request], Text] | None  # None: the bar, which gets the width that is left


class StateRenderer:
    """Draws iterations of a state map.

    Args:
        state: What `state_map` made of a log.
        header: That log's header.
        console: Where to draw; its width decides the layout.
        ascii_only: Use no character beyond ASCII.
    """

    def __init__(self, state: dict[str, Any], header: Header, console: Console, *, ascii_only: bool = False) -> None:
        self._colours = request_colours(state["requests"])
        self._console = console
        self._width = console.width
        self._ascii_only = ascii_only
        self._glyphs: Glyphs = ASCII if ascii_only else UNICODE
        self._place = _PLACE_NAMES.get(header.config.get("batch", ""), "place")
        text_width = 30 if self._width >= _WITH_IDS else 22
        self._cells = StateCells(self._colours, self._place, text_width, ascii_only=ascii_only)
        self._strip = PoolStrip(self._colours, self._width, ascii_only=ascii_only)
        self._source = state["source"]

    def draw(self, iteration: dict[str, Any]) -> None:
        """One iteration."""
        self._print(self._rule(iteration))
        for line in self._request_lines(iteration["requests"]):
            self._print(line)
        self._print(self._queues(iteration["queues"]))
        for line in self._places("frontend", "scheduler", "worker"):
            self._print(line)
        if iteration["pool"]:
            title, *strip = self._strip.lines(iteration)
            (place,) = self._places("pool", room=self._width - title.cell_len - 4)
            self._print(title.append("  ").append_text(place))
            for line in strip:
                self._print(line)
        self._print(Text(""))

    def _print(self, text: Text) -> None:
        """One line: what is too long is cut, because a wrapped picture is none."""
        if not self._ascii_only:
            self._console.print(text, no_wrap=True, overflow="ellipsis")
            return
        with self._console.capture() as capture:
            self._console.print(text, no_wrap=True, overflow="ellipsis")
        self._console.file.write(to_ascii(capture.get()))

    def _rule(self, iteration: dict[str, Any]) -> Text:
        glyph = self._glyphs.rule
        left = f"{glyph * 2} STATE after iteration {iteration['iteration']} "
        right = f" {MARK} changed in it {glyph * 2}"
        return Text(left + glyph * max(self._width - len(left) - len(right), 2) + right, style="bold")

    def _places(self, *names: str, room: int = 0) -> list[Text]:
        """Where these parts of the state are kept, here; and in vLLM, where there is room for it."""
        places = []
        for name in names:
            source = self._source[name]
            text = Text(f"{name.upper()} " if len(names) > 1 else "", style="not bold dim")
            text.append(shown(source["ours"]), style="not dim")
            if text.cell_len + len(source["vllm"]) + 2 <= room:
                text.append(f"  {source['vllm']}")
            places.append(text)
        return in_lines(places, self._width)

    # ---- requests -------------------------------------------------------------------------------------------------

    def _request_lines(self, requests: list[Request]) -> list[Text]:
        has_text = any(request["frontend"] is not None for request in requests)
        has_worker = any(request["worker"] is not None or request["worker_left"] for request in requests)
        is_wide = self._width >= _ONE_LINE
        needs_two_lines = not is_wide and (has_text or has_worker)
        shown = _most_changed(requests, _MAX_LINES // 2 if needs_two_lines else _MAX_LINES)
        if not shown:
            return [Text("  nobody is here", style="dim")]
        columns = self._columns(has_text and is_wide, has_worker and is_wide)
        lines = self._table(columns, shown)
        if needs_two_lines:
            indent = max(cell_len(request["request"]) for request in shown) + 4
            head, rows, legend = lines[:1], lines[1 : 1 + len(shown)], lines[1 + len(shown) :]
            pairs = zip(rows, (self._second_line(request, indent, has_worker) for request in shown), strict=True)
            lines = [*head, *(line for pair in pairs for line in pair), *legend]
        if left_out := [request for request in requests if request not in shown]:
            statuses = [request["scheduler"]["status"] for request in left_out]
            counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
            lines.append(Text(f"  {self._glyphs.more} and {len(left_out)} more: {counts}", style="dim"))
        return lines

    def _columns(self, with_text: bool, with_worker: bool) -> list[_Column]:
        """The columns for which there is room, and something to say. (Without a model there is no text, no worker.)"""
        cells, with_ids = self._cells, self._width >= _WITH_IDS
        columns = [_Column("", "", cells.id)]
        if with_text:
            columns.append(_Column("FRONTEND", "text", cells.text))
        columns += [
            _Column("SCHEDULER, the truth", "status", cells.status),
            _Column("", "computed of known", cells.progress),
            _Column("", self._bar_legend(), None),
            _Column("", "blocks", cells.num_blocks),
        ]
        if with_ids:
            columns.append(_Column("", "block table", cells.block_ids))
        if with_worker:
            columns += [
                _Column("WORKER, a mirror", self._place, cells.row),
                _Column("", "computed", cells.mirror),
                _Column("", "its block table" if with_ids else "block table", cells.copy),
            ]
        return columns

    def _table(self, columns: list[_Column], requests: list[Request]) -> list[Text]:
        """One line a request, under the names of the columns."""
        rows = [[column.cell(r) if column.cell else Text("") for column in columns] for r in requests]
        widths = [
            max(cell_len(column.head) if column.cell else 0, *(row[k].cell_len for row in rows))
            for k, column in enumerate(columns)
        ]
        for k, column in enumerate(columns):
            if column.owner and k + 1 < len(columns) and columns[k + 1].owner:  # its name has one column for itself
                widths[k] = max(widths[k], len(column.owner))
        heads = [column.head for column in columns]
        bar = next(k for k, column in enumerate(columns) if column.cell is None)
        widths[bar] = max(min(self._width - sum(widths) - 2 * len(widths) - 1, _MAX_BAR), 0)
        lines: list[Text] = []
        if widths[bar] < _MIN_BAR:
            widths[bar] = 0
        elif len(heads[bar]) > widths[bar]:
            lines.append(Text(f"  bar: {heads[bar]}", style="dim"))
        if len(heads[bar]) > widths[bar]:
            heads[bar] = ""
        if widths[bar]:
            longest = max(map(_end, requests))
            for row, request in zip(rows, requests, strict=True):
                row[bar] = self._cells.bar(request, widths[bar], longest)
        head = _joined([Text(name) for name in heads], widths)
        head.stylize("dim")
        over = [self._owners(columns, widths)] if self._width >= _ONE_LINE else []
        return [*over, head, *(_joined(row, widths) for row in rows), *lines]

    @staticmethod
    def _owners(columns: list[_Column], widths: list[int]) -> Text:
        line = ""
        start = 2
        for column, width in zip(columns, widths, strict=True):
            if column.owner:
                line = line.ljust(start) + column.owner
            start += width + 2 if width else 0
        return Text(line, style="bold dim")

    def _second_line(self, request: Request, indent: int, has_worker: bool) -> Text:
        """What the frontend and the worker have of a request, where one line is too short."""
        line = Text(" " * indent)
        line.append("text ", style="dim").append_text(self._cells.text(request))
        if has_worker:
            is_placed = request["worker"] is not None or request["worker_left"]
            line.append(f" {self._glyphs.dot} {'' if is_placed else f'{self._place} '}", style="dim")
            line.append_text(self._cells.row(request))
        if request["worker"] is not None:
            line.append(", ").append_text(self._cells.mirror(request))
            line.append(f" computed {self._glyphs.dot} table ", style="dim")
            line.append_text(self._cells.copy(request))
        return line

    def _bar_legend(self) -> str:
        glyphs = self._glyphs
        return f"{glyphs.computed} computed {glyphs.now} now {glyphs.owed} owed"

    def _queues(self, queues: dict[str, list[str]]) -> Text:
        """Who runs and who waits, in order."""
        line = Text("  ")
        names = {"running": "running", "waiting": "waiting", "skipped_waiting": "passed over"}
        told = {name: ids for name, ids in queues.items() if ids or name != "skipped_waiting"}
        room = self._width // len(told) - 26
        for name, ids in told.items():
            line.append(f"{names[name]} ", style="dim")
            start = line.cell_len
            for number, request_id in enumerate(ids):
                if number and line.cell_len - start + cell_len(request_id) > room:
                    line.append(f"and {len(ids) - number} more ")
                    break
                line.append(f"{request_id} ", style=f"bold {self._colours.get(request_id, '')}")
            line.append("  " if ids else "nobody   ")
        line.rstrip()
        return line


def _end(request: Request) -> int:
    return max(request["scheduler"]["num_tokens"], request["scheduler"]["num_computed_tokens"], 1)


def _joined(cells: list[Text], widths: list[int]) -> Text:
    """Cells side by side; a column without width is left out."""
    line = Text("  ")
    for cell, width in zip(cells, widths, strict=True):
        if width:
            line.append_text(cell)
            line.append(" " * (width - cell.cell_len + 2))
    line.rstrip()
    return line


def _most_changed(requests: list[Request], limit: int) -> list[Request]:
    """At most so many requests, in their order: those whose status or blocks changed are the last to be left out."""
    if len(requests) <= limit:
        return requests

    def weight(request: Request) -> int:
        changed = request["scheduler"]["changed"]
        return 2 * ("status" in changed) + ("block_ids" in changed)

    kept = sorted(range(len(requests)), key=lambda k: -weight(requests[k]))[:limit]
    return [requests[k] for k in sorted(kept)]
