"""Owns drawing the process map: one column a process, time downwards, messages across the numbered boundaries.

Three layouts: with the source beside each line, without, and, below 80 columns, one line after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from minivllm.maps.process import in_order, messages_of, moment
from minivllm.maps.render.canvas import Row
from minivllm.maps.render.frame import MEDIUM, NARROW, WIDE, Frame, cuttable, in_bytes, in_ms, vllm_place
from minivllm.maps.stages import ROLES, SYNC, WHOLE_STEP
from minivllm.maps.tell_process import TITLES, tell
from minivllm.trace.events import Header

Item = tuple[str, dict[str, Any]]

_BOUNDARIES = {("frontend", "engine_core"): "①", ("engine_core", "worker"): "②", ("worker", "device"): "③"}
# How much of the width each column gets.
_SHARES = {"frontend": 23, "engine_core": 23, "worker": 21, "device": 13}
_TIME_WIDTH = 9
_PLACE_WIDTH = 34
_WAIT_STYLE = "yellow"
_PLANE_STYLE = {"control": "cyan", "data": "magenta"}


class ProcessRenderer:
    """Draws iterations of a process map.

    Args:
        process: What `process_map` made of a log.
        header: That log's header.
        console: Where to draw; its width decides the layout.
        ascii_only: Use no character beyond ASCII.
        lang: Language of the sentences: "en" or "zh".
    """

    def __init__(
        self,
        process: dict[str, Any],
        header: Header,
        console: Console,
        *,
        ascii_only: bool = False,
        lang: str = "en",
    ) -> None:
        self._map = process
        self._lang = lang
        self._frame = Frame(header, process["requests"], console, ascii_only=ascii_only)
        self._roles = [entry["name"] for entry in process["processes"]]
        self._timed = process["clock"] == "wall"
        self._device_until = 0
        self._has_times = self._timed and self._frame.width >= MEDIUM
        self._columns = self._layout(self._frame.width)

    def draw_header(self) -> None:
        """One line that says what ran."""
        self._frame.draw_header()

    def draw(self, iteration: dict[str, Any]) -> None:
        """One iteration."""
        frame = self._frame
        messages = messages_of(self._map, iteration)
        right = f"one column a process {frame.glyphs.dot} time runs down"
        frame.print(frame.rule(f"process map {frame.glyphs.dot} iteration {iteration['iteration']}", right))
        for sentence in tell(self._map, iteration, messages, frame.header, self._lang):
            frame.print(frame.sentence(sentence))
        frame.print(Text(""))
        items = in_order(iteration, messages)
        lines = self._one_by_one(items) if frame.width < NARROW else self._in_columns(items, iteration["start_ns"])
        for line in lines:
            frame.print(line)
        frame.print(Text(""))
        if frame.width >= NARROW:
            frame.print(self._places(items))
            frame.print(Text(""))

    # ---- columns --------------------------------------------------------------------------------------------------

    def _layout(self, width: int) -> dict[str, int]:
        """The cell in which each role's line runs down; "end" is where the last column ends."""
        start = _TIME_WIDTH if self._has_times else 1
        end = width - (_PLACE_WIDTH if width >= WIDE else 1)
        whole = sum(_SHARES[role] for role in self._roles)
        columns = {}
        before = 0
        for role in self._roles:
            columns[role] = start + (end - start) * before // whole
            before += _SHARES[role]
        return {**columns, "end": end}

    def _in_columns(self, items: list[Item], start_ns: int | None) -> Iterator[Text]:
        yield from self._titles()
        self._device_until = 0
        waiting: dict[str, int] = {}
        for kind, item in items:
            began = moment(kind, item)
            waiting = {role: end for role, end in waiting.items() if began is None or end > began}
            if kind == "message":
                waiting.pop(item["to"], None)
                yield from self._message(item, start_ns, waiting)
            elif kind == "wait":
                waiting[item["process"]] = (item["start_ns"] or 0) + (item["dur_ns"] or 0)
                yield self._wait(item, start_ns, waiting)
            else:
                yield self._stage(item, start_ns, waiting)

    def _titles(self) -> Iterator[Text]:
        entries = {entry["name"]: entry for entry in self._map["processes"]}
        titles, pids = Row(self._frame.width), Row(self._frame.width)
        if self._has_times:
            titles.put(5, "ms", "dim")
        for role in self._roles:
            column = self._columns[role]
            titles.put(column, TITLES[role], "bold")
            pid = entries[role]["pid"]
            device = self._frame.header.device if role == "device" else ""
            pids.put(column, f"pid {pid}" if pid is not None else device, "dim")
        for (left, right), number in _BOUNDARIES.items():
            if left in self._columns and right in self._columns:
                channel = self._channel(int(" ①②③".index(number)))
                text = f"{number} {channel}" if channel else number
                titles.put(self._columns[right] - cell_len(text) - 2, text, "bold")
        yield titles.text()
        yield pids.text()
        loops = _loops(self._map["processes"])
        for k in range(max(map(len, loops.values()), default=0)):
            row = Row(self._frame.width)
            for role, names in loops.items():
                if k < len(names):
                    row.put(self._columns[role], _cut(names[k], self._space(role)), "dim italic")
            yield row.text()

    def _channel(self, boundary: int) -> str | None:
        channels = dict.fromkeys(m["channel"] for m in self._map["messages"] if m["boundary"] == boundary)
        return "/".join(channel for channel in channels if channel) or None

    def _space(self, role: str) -> int:
        """Cells of a role's column, up to the next line."""
        edges = sorted(self._columns.values())
        return edges[edges.index(self._columns[role]) + 1] - self._columns[role] - 1

    def _blank(self, began: int | None, start_ns: int | None, waiting: dict[str, int]) -> Row:
        row = Row(self._frame.width)
        for role in self._roles:
            row.put(self._columns[role], "┊" if role in waiting else "│", _WAIT_STYLE if role in waiting else "dim")
        if began is not None and start_ns is not None and began >= start_ns and self._has_times:
            row.put(0, f"{(began - start_ns) / 1e6:7.2f}", "dim")
        if began is not None and began < self._device_until:
            row.put(self._columns["device"], "▒", _PLANE_STYLE["data"])
        return row

    def _stage(self, stage: dict[str, Any], start_ns: int | None, waiting: dict[str, int]) -> Text:
        row = self._blank(stage["start_ns"], start_ns, waiting)
        column, space = self._columns[stage["process"]], self._space(stage["process"])
        if stage["name"] == SYNC and self._frame.header.device != "cpu":
            glyph, style, name = "┊", f"bold {_WAIT_STYLE}", "sync: waits for device"
        else:
            glyph, name = "├", stage["name"]
            style = "bold" if name == WHOLE_STEP else _PLANE_STYLE[stage["plane"]]
        time = in_ms(stage["dur_ns"]) if stage["dur_ns"] is not None else ""
        if 3 + cell_len(name) + len(time) > space:
            name, time = (SYNC, time) if stage["name"] == SYNC else (name, "")
        behind = row.put(column, f"{glyph} {_cut(name, space - 2)} ", style)
        row.put(behind, time)
        if stage["device_ns"] is not None and "device" in self._columns:
            self._device_until = max(self._device_until, stage["start_ns"] or 0) + stage["device_ns"]
            row.put(self._columns["device"], f"▒ {in_ms(stage['device_ns'])}", _PLANE_STYLE["data"])
        elif stage["name"] == "forward" and "device" in self._columns:
            # A CPU has no queue to put work into: the call is the work.
            row.put(self._columns["device"], f"▒ {time}".rstrip(), _PLANE_STYLE["data"])
        return self._with_place(row, stage)

    def _wait(self, wait: dict[str, Any], start_ns: int | None, waiting: dict[str, int]) -> Text:
        row = self._blank(wait["start_ns"], start_ns, waiting)
        is_sync = wait["for"] == "device"
        text = f"┊ waits for {TITLES[wait['for']]}"
        space = self._space(wait["process"])
        time = f" {in_ms(wait['dur_ns'])}" if wait["dur_ns"] is not None else ""
        if cell_len(text) + len(time) > space:
            text = "┊ waits"
        row.put(self._columns[wait["process"]], text + time, f"bold {_WAIT_STYLE}" if is_sync else _WAIT_STYLE)
        return row.text()

    def _message(self, message: dict[str, Any], start_ns: int | None, waiting: dict[str, int]) -> Iterator[Text]:
        """An arrow from column to column; what does not fit on it stands above it."""
        left, right = sorted((message["from"], message["to"]), key=ROLES.index)
        room = self._columns[right] - self._columns[left] - 7
        label = message["type"]
        if message["boundary"] == 1 and 0 < len(message["requests"]) <= 2:
            named = f"{label} {' '.join(message['requests'])}"
            label = named if cell_len(named) <= room + 4 else label
        facts = _facts(message)
        whole = " · ".join([label, *facts])
        if cell_len(whole) > room and (facts or cell_len(label) > room):
            row = self._blank(message["send_ns"], None, waiting)
            row.put(self._columns[left] + 2, _cut(label, room + 4), "bold")
            yield row.text()
            whole = " · ".join(facts)
            if cell_len(whole) > room:
                whole = facts[0]
        row = self._blank(message["send_ns"], start_ns, waiting)
        self._arrow(row, message, left, right, _cut(whole, room))
        yield self._with_place(row, message)

    def _arrow(self, row: Row, message: dict[str, Any], left: str, right: str, label: str) -> None:
        """Solid between processes, dotted where it is a call."""
        is_call = message["channel"] in ("call", None) and message["boundary"] != 3
        line, forwards, backwards = ("┄", "▷", "◁") if is_call else ("─", "▶", "◀")
        start, end = self._columns[left], self._columns[right]
        colour = self._colour(message)
        for column in range(start + 1, end):
            row.put(column, line, colour)
        if message["from"] == left:
            row.put(start, "├", colour)
            row.put(end - 1, forwards, colour)
        else:
            row.put(end, "┤", colour)
            row.put(start + 1, backwards, colour)
        if label:
            row.put(start + 3, f" {label} ", f"bold {colour}".strip())

    def _colour(self, message: dict[str, Any]) -> str:
        """That of its request, if it is of one only."""
        return self._frame.colours.get(message["requests"][0], "") if len(message["requests"]) == 1 else ""

    def _with_place(self, row: Row, item: dict[str, Any]) -> Text:
        line = row.text()
        if self._frame.width < WIDE or not item["src"]:
            return line
        line.append(" " * (self._columns["end"] + 1 - cell_len(line.plain)))
        place = self._frame.place(item["src"])
        place.stylize("dim")
        return line.append_text(place)

    # ---- one after the other --------------------------------------------------------------------------------------

    def _one_by_one(self, items: list[Item]) -> Iterator[Text]:
        for kind, item in items:
            line = Text("  ", no_wrap=True, overflow="ellipsis")
            if kind == "message":
                ends = f"{TITLES[item['from']]} ▶ {TITLES[item['to']]}"
                facts = "".join(f" · {fact}" for fact in _facts(item))
                line.append(f"{' ①②③'[item['boundary']]} {ends}: ", style="dim")
                line.append(item["type"], style=f"bold {self._colour(item)}".strip())
                line.append(facts)
            elif kind == "wait":
                time = f" {in_ms(item['dur_ns'])}" if item["dur_ns"] is not None else ""
                line.append(f"  {TITLES[item['process']]} waits for {TITLES[item['for']]}{time}", style=_WAIT_STYLE)
            else:
                time = f" {in_ms(item['dur_ns'])}" if item["dur_ns"] is not None else ""
                line.append(f"  {TITLES[item['process']]}: {item['name']}{time}")
                if item["device_ns"] is not None:
                    line.append(f" · device {in_ms(item['device_ns'])}", style="magenta")
            yield line
            if item.get("src"):
                place = self._frame.place(item["src"])
                place.stylize("dim")
                yield Text("      ", no_wrap=True).append_text(place)

    # ---- the source -----------------------------------------------------------------------------------------------

    def _places(self, items: list[Item]) -> Table:
        """Where each thing in the picture stands in our source, and in vLLM's."""
        frame = self._frame
        rows: dict[tuple[str, str], list[str | Text]] = {}
        for kind, item in items:
            if kind != "wait" and item["src"]:
                name = item["type"] if kind == "message" else item["name"]
                times = [_took(kind, item)] if self._timed else []
                places = [frame.place(item["src"]), cuttable(vllm_place(item["ref"]))]
                rows.setdefault((name, item["src"]), [name, *times, *places])
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
        # Where there is not enough room, vLLM's column alone gives way.
        headings = ("where it is", "took", "our source") if self._timed else ("where it is", "our source")
        for heading in headings:
            table.add_column(heading, justify="right" if heading == "took" else "left", no_wrap=True)
        if frame.width >= MEDIUM:
            table.add_column("vLLM 0.27.1, below vllm/v1/")
        for cells in rows.values():
            table.add_row(*cells[: len(table.columns)])
        return table


def _loops(processes: list[dict[str, Any]]) -> dict[str, list[str]]:
    """What stands in each column's title: the loops of its process, or that it has none of its own."""
    titles: dict[str, list[str]] = {}
    owners: dict[int, str] = {}
    for entry in processes:
        names = [f"{loop.rpartition(':')[2].rpartition('.')[2]}()" for loop in entry["loops"]]
        owner = owners.setdefault(entry["pid"], entry["name"]) if entry["pid"] is not None else entry["name"]
        titles[entry["name"]] = names if owner == entry["name"] else [f"in {TITLES[owner]}'s process"]
    return titles


def _took(kind: str, item: dict[str, Any]) -> str:
    if kind == "stage":
        return in_ms(item["dur_ns"])
    return in_ms(None if item["recv_ns"] is None else item["recv_ns"] - item["send_ns"])


def _facts(message: dict[str, Any]) -> list[str]:
    size = in_bytes(message["bytes"])
    sent, received = message["send_ns"], message["recv_ns"]
    is_told = sent is not None and received is not None and received - sent >= 500
    latency = in_ms(received - sent) if is_told else None
    return [fact for fact in (size, latency) if fact is not None]


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{text[: max(width - 1, 0)]}…"
