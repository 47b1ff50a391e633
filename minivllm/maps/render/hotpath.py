"""Owns drawing the hot-path map: the call tree of one step with its times, then the stages over many steps.

Three layouts: with the planes and vLLM's places beside each call, without, and, below 80 columns, names and times only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from minivllm.maps.render.frame import MEDIUM, NARROW, WIDE, Frame, cuttable, in_ms, in_percent, vllm_place
from minivllm.maps.stages import SYNC
from minivllm.maps.tell_hotpath import tell
from minivllm.maps.tell_process import TITLES
from minivllm.trace.events import Header

_EIGHTHS = " ▏▎▍▌▋▊▉"
_PLANE_STYLE = {"control": "cyan", "data": "magenta"}
_VLLM = Text("vLLM, below vllm/v1/", no_wrap=True, overflow="ellipsis")
_PLANE_NAME = {"control": "ctrl", "data": "data"}
_ROOM_FOR_BARS = 116
_MAX_KERNELS = 12
# Below, vLLM's places beside the stages would be cut to nothing.
_ROOM_FOR_VLLM = 112
_MAX_REQUESTS = 16
_SYNC_STYLE = "bold yellow"


class HotPathRenderer:
    """Draws a hot-path map.

    Args:
        step: What `hot_map` made of the iteration whose calls are shown.
        run: What `hot_map` made of all iterations, for the table of stages.
        header: The log's header.
        console: Where to draw; its width decides the layout.
        ascii_only: Use no character beyond ASCII.
        lang: Language of the sentences: "en" or "zh".
    """

    def __init__(
        self,
        step: dict[str, Any],
        run: dict[str, Any],
        header: Header,
        console: Console,
        *,
        ascii_only: bool = False,
        lang: str = "en",
    ) -> None:
        self._step = step
        self._lang = lang
        self._run = run
        requests = [row["request"] for row in run["latency"]["requests"]]
        self._frame = Frame(header, requests, console, ascii_only=ascii_only)
        self._timed = run["clock"] == "wall"

    def draw_header(self) -> None:
        """One line that says what ran."""
        self._frame.draw_header()

    def draw_step(self) -> None:
        """What the time of the step went into, and its calls."""
        frame, dot = self._frame, self._frame.glyphs.dot
        [iteration] = self._step["iterations"]
        whole = f"{in_ms(self._step['total_ns'])} of work" if self._timed else "no clocks: counts only"
        frame.print(frame.rule(f"hot path {dot} iteration {iteration}", whole))
        for sentence in tell(self._step, self._run, frame.header, self._lang):
            frame.print(frame.sentence(sentence))
        frame.print(Text(""))
        frame.print(self._tree())
        frame.print(Text(""))

    def draw_run(self) -> None:
        """The articles' table of stages, measured; and what the callers felt. Nothing without clocks."""
        if not self._timed:
            return
        frame, count = self._frame, self._run["steps"]
        frame.print(frame.rule(f"stages over {count} {'iteration' if count == 1 else 'iterations'}"))
        frame.print(self._stages())
        frame.print(Text(""))
        frame.print(self._latencies())
        frame.print(Text(""))
        if passes := self._run["kernels"]["iterations"]:
            count = f"{len(passes)} profiled {'pass' if len(passes) == 1 else 'passes'}"
            frame.print(frame.rule(f"kernels of forward {frame.glyphs.dot} {count}, each slower for being profiled"))
            frame.print(self._kernels())
            frame.print(Text(""))

    # ---- the tree -------------------------------------------------------------------------------------------------

    def _tree(self) -> Table:
        width = self._frame.width
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        rows = list(self._lines(self._step["tree"], "", is_root=True))
        longest = max((cell_len(f"{prefix}{node['name']}") for prefix, node in rows), default=0)
        # Where there is not enough room, a column gives way whose cells may be cut: all others are no_wrap.
        table.add_column("call", min_width=24, max_width=max(longest + 4, 34), no_wrap=width >= WIDE)
        if width >= NARROW:
            table.add_column("plane", no_wrap=True)
        if self._timed:
            table.add_column("total", justify="right", no_wrap=True)
            table.add_column("self", justify="right", no_wrap=True)
            table.add_column("share", justify="right", no_wrap=True)
            if self._has_bar():
                table.add_column("", no_wrap=True)
            if self._has_device():
                table.add_column("device", justify="right", no_wrap=True)
        else:
            table.add_column("calls", justify="right", no_wrap=True)
        if width >= MEDIUM:
            table.add_column("our source", no_wrap=True)
        if width >= WIDE:
            table.add_column(_VLLM)
        for prefix, node in rows:
            table.add_row(*self._row(prefix, node))
        return table

    def _lines(self, nodes: list[dict[str, Any]], prefix: str, *, is_root: bool = False) -> Iterator[tuple[str, Any]]:
        for node in nodes:
            is_last = node is nodes[-1]
            yield ("" if is_root else prefix + ("└ " if is_last else "├ ")), node
            below = "" if is_root else prefix + ("  " if is_last else "│ ")
            yield from self._lines(node["children"], below)

    def _row(self, prefix: str, node: dict[str, Any]) -> list[str | Text]:
        width = self._frame.width
        style = _SYNC_STYLE if node["is_sync"] else _PLANE_STYLE[node["plane"]]
        call = Text(no_wrap=True, overflow="ellipsis").append(prefix, style="dim")
        call.append(node["name"], style=style)
        if self._timed and node["calls"] > 1:
            call.append(f" ×{node['calls']}")
        if node["is_sync"]:
            call.append(" ◀ waits for the device" if node["name"] == SYNC else " ◀ sync", style=_SYNC_STYLE)
        if not prefix and self._timed:
            thread = f", {node['thread']}" if node["thread"] else ""
            call.append(f"  in {TITLES[node['process']]}{thread}", style="dim")
        cells: list[str | Text] = [call]
        if width >= NARROW:
            cells.append(Text(_PLANE_NAME[node["plane"]], style=_PLANE_STYLE[node["plane"]]))
        if self._timed:
            cells += [in_ms(node["cpu_ns"]), in_ms(node["self_ns"]), in_percent(node["share"])]
            if self._has_bar():
                cells.append(Text(bar(node["share"] or 0.0, 8 if width >= WIDE else 6), style=style))
            if self._has_device():
                cells.append(in_ms(node["device_ns"]) if node["device_ns"] is not None else "")
        else:
            cells.append(str(node["calls"]))
        if width >= MEDIUM:
            cells.append(self._frame.place(node["src"]))
        if width >= WIDE:
            cells.append(cuttable(vllm_place(node["ref"])))
        return cells

    def _has_bar(self) -> bool:
        """Between these widths the source has its place."""
        width = self._frame.width
        return NARROW <= width < MEDIUM or width >= _ROOM_FOR_BARS

    def _has_device(self) -> bool:
        return any(row["device_ns"] is not None for row in self._run["stages"])

    # ---- the run --------------------------------------------------------------------------------------------------

    def _stages(self) -> Table:
        width = self._frame.width
        has_bar, has_vllm, has_plane = width >= WIDE, width >= _ROOM_FOR_VLLM, width >= MEDIUM
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        table.add_column("stage", no_wrap=True)
        if has_plane:
            table.add_column("plane", no_wrap=True)
        for heading in ("times", "median", "p99"):
            table.add_column(heading, justify="right", no_wrap=True)
        if has_bar:
            table.add_column("in all", justify="right", no_wrap=True)
        if width >= NARROW:
            table.add_column("share", justify="right", no_wrap=True)
        if has_bar:
            table.add_column("", no_wrap=True)
        if width >= NARROW:
            table.add_column("our source", no_wrap=True)
        if has_vllm:
            table.add_column(_VLLM)
        for row in self._run["stages"]:
            style = _PLANE_STYLE[row["plane"]]
            cells: list[str | Text] = [Text(row["name"], style=style)]
            if has_plane:
                cells.append(Text(_PLANE_NAME[row["plane"]], style=style))
            cells += [str(row["calls"]), in_ms(row["median_ns"]), in_ms(row["p99_ns"])]
            if has_bar:
                cells.append(in_ms(row["cpu_ns"]))
            if width >= NARROW:
                cells.append(in_percent(row["share"]))
            if has_bar:
                cells.append(Text(bar(row["share"] or 0.0, 8 if width >= WIDE else 6), style=style))
            if width >= NARROW:
                cells.append(self._frame.place(row["src"]))
            if has_vllm:
                cells.append(cuttable(vllm_place(row["ref"])))
            table.add_row(*cells)
        return table

    def _kernels(self) -> Table:
        """What a forward pass is made of where no Python runs: in a graph, in compiled code, on the device."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
        table.add_column("kernel")
        for heading in ("calls", "CPU", "device"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self._run["kernels"]["rows"][:_MAX_KERNELS]:
            name = Text(row["name"], style=_PLANE_STYLE["data"], no_wrap=True, overflow="ellipsis")
            device = in_ms(row["device_ns"]) if row["device_ns"] else ""
            table.add_row(name, str(row["calls"]), in_ms(row["cpu_ns"]), device)
        return table

    def _latencies(self) -> Table:
        """What the callers felt, request by request and in all."""
        latency = self._run["latency"]
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
        table.add_column("request", no_wrap=True)
        table.add_column("queued", justify="right", no_wrap=True)
        table.add_column("TTFT", justify="right", no_wrap=True)
        table.add_column("TPOT", justify="right", no_wrap=True)
        table.add_column("ITL", justify="right", no_wrap=True)
        if self._frame.width >= NARROW:
            table.add_column("output", justify="right", no_wrap=True)
        keys = ("queue_ms", "ttft_ms", "tpot_ms", "itl_ms")
        for row in latency["requests"][:_MAX_REQUESTS]:
            name = Text(row["request"], style=f"bold {self._frame.colours[row['request']]}")
            count = row["num_output_tokens"]
            output = [f"{count} {'token' if count == 1 else 'tokens'}"] if self._frame.width >= NARROW else []
            table.add_row(name, *(_ms(row[key]) for key in keys), *output)
        if (left_out := len(latency["requests"]) - _MAX_REQUESTS) > 0:
            table.add_row(Text(f"{self._frame.glyphs.more} {left_out} more", style="dim"))
        for name_of_all, numbers in (("median", latency), ("p99", latency["p99"])):
            table.add_row(Text(name_of_all, style="bold"), *(_ms(numbers[key]) for key in keys))
        return table


def bar(share: float, width: int) -> str:
    """A share of the whole as a bar, to an eighth of a cell; what is there is never too small to see."""
    eighths = max(round(min(share, 1.0) * width * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _ms(ms: float | None) -> str:
    return in_ms(None if ms is None else ms * 1e6)
