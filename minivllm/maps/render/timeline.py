"""Owns drawing the timeline in a terminal: requests against iterations, and against time where the log has clocks.

Iterations in which everyone does what they did before are folded, so that a long run shows where something happens.
"""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from minivllm.maps.render.style import ASCII, UNICODE, Glyphs, request_colours, to_ascii
from minivllm.maps.wording import Words
from minivllm.maps.words_maps import MAP_WORDS
from minivllm.trace.events import Header

# Neighbours that are alike are folded from this many on: the first and the last of them stay.
_FOLD_FROM = 6
_MAX_GRIDS = 6
_MAX_ROWS = 24
# Prompt tokens of a cell, as a part of the step's budget: up to a quarter, up to three quarters, more.
_SMALL, _MIDDLE = 0.25, 0.75
_PREFILL = "pPB"
_GLYPHS = {"decode": "D", "waiting": "w", "preempted": "x", "aborted": "a", "refused": "r", "passed_over": "-"}
_LEGEND = "pPBhDfwxar-"
Cell = dict[str, Any] | None


class TimelineRenderer:
    """Draws a timeline map.

    Args:
        timeline: What `timeline_map` made of a log.
        header: That log's header.
        console: Where to draw; its width decides how many iterations stand in a row.
        ascii_only: Use no character beyond ASCII.
        lang: Language of the legend: "en" or "zh".
    """

    def __init__(
        self,
        timeline: dict[str, Any],
        header: Header,
        console: Console,
        *,
        ascii_only: bool = False,
        lang: str = "en",
    ) -> None:
        self._timeline = timeline
        self._words = Words(lang, MAP_WORDS)
        self._colours = request_colours(timeline["order"])
        self._console = console
        self._width = console.width
        self._ascii_only = ascii_only
        self._glyphs: Glyphs = ASCII if ascii_only else UNICODE
        self._budget = timeline["budget"] or header.config.get("scheduler_config", {}).get("max_num_batched_tokens", 1)
        self._fold = "~" if ascii_only else "┄"

    def draw(self) -> None:
        """The grid; below it, if the log has clocks, the same over time."""
        for line in self._grid():
            self._print(line)
        if self._timeline["times"]:
            for line in self._gantt():
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

    # ---- requests and iterations ----------------------------------------------------------------------------------

    def _grid(self) -> list[Text]:
        iterations = self._timeline["iterations"]
        lines = [self._rule("TIMELINE", f"iterations {iterations[0]} to {iterations[-1]}" if iterations else "empty")]
        requests = self._timeline["requests"][:_MAX_ROWS]
        label_width = max((len(entry["request"]) for entry in requests), default=0) + 4
        columns = self._folded(requests)
        per_grid = max(self._width - label_width - 1, 10)
        grids = [columns[k : k + per_grid] for k in range(0, len(columns), per_grid)]
        seen: set[str] = set()
        for number, grid in enumerate(grids):
            if len(grids) > _MAX_GRIDS and number == _MAX_GRIDS // 2:
                left_out = [k for part in grids[number : -(_MAX_GRIDS // 2)] for k in part if k is not None]
                first, last = iterations[left_out[0]], iterations[left_out[-1]]
                more = f"  {self._glyphs.more} iterations {first} to {last} are left out (see --iteration A:B)"
                lines.append(Text(more, style="dim"))
            if _MAX_GRIDS // 2 <= number < len(grids) - _MAX_GRIDS // 2 and len(grids) > _MAX_GRIDS:
                continue
            lines.append(self._scale(grid, label_width))
            lines += [row for entry in requests if (row := self._row(entry, grid, label_width, seen)) is not None]
        if len(self._timeline["requests"]) > len(requests):
            num_more = len(self._timeline["requests"]) - len(requests)
            lines.append(Text(f"  {self._glyphs.more} and {num_more} more requests (see --request)", style="dim"))
        lines += self._legend(seen, None in columns)
        return lines

    def _folded(self, requests: list[dict[str, Any]]) -> list[int | None]:
        """Places of the iterations that are drawn, in order; None for a run of them that is folded."""
        looks = [tuple(_glyph(entry["cells"][k], self._budget) for entry in requests) for k in self._places()]
        columns: list[int | None] = []
        first = 0
        while first < len(looks):
            end = first
            while end < len(looks) and looks[end] == looks[first]:
                end += 1
            is_long = end - first >= _FOLD_FROM
            columns += [first, None, end - 1] if is_long else list(range(first, end))
            first = end
        return columns

    def _places(self) -> range:
        return range(len(self._timeline["iterations"]))

    def _scale(self, grid: list[int | None], label_width: int) -> Text:
        """Numbers of iterations: the first, every tenth, and those at both ends of a fold, where there is room."""
        iterations = self._timeline["iterations"]
        scale = ""
        for column, place in enumerate(grid):
            if place is None:
                continue
            after_fold = column > 0 and grid[column - 1] is None
            wanted = column == 0 or after_fold or iterations[place] % 10 == 0
            if wanted and (column >= len(scale) + 1 or not scale):
                scale = scale.ljust(column) + str(iterations[place])
        return Text(" " * label_width + scale, style="dim")

    def _row(self, entry: dict[str, Any], grid: list[int | None], label_width: int, seen: set[str]) -> Text | None:
        colour = self._colours[entry["request"]]
        row = Text()
        for place in grid:
            cell = entry["cells"][place] if place is not None else None
            if place is None:
                row.append(self._fold, style="dim")
                continue
            glyph = _glyph(cell, self._budget)
            if glyph != " ":
                seen.add(glyph)
            is_event = glyph not in "Dw- "
            is_dim = glyph in "w-"
            row.append(glyph, style=f"{colour}{' bold' if is_event else ''}{' dim' if is_dim else ''}")
        if not row.plain.replace(self._fold, " ").strip():
            return None  # not there in any of these iterations
        return _label(entry["request"], colour, label_width).append_text(self._without_idle_folds(row))

    def _without_idle_folds(self, row: Text) -> Text:
        """No line through the time in which a request was not there."""
        plain = row.plain
        kept = Text()
        for k, character in enumerate(plain):
            outside = character == self._fold and plain[k - 1 : k] in (" ", "")
            kept.append_text(Text(" ") if outside else row[k])
        kept.rstrip()
        return kept

    def _legend(self, seen: set[str], has_folds: bool) -> list[Text]:
        words = [f"{glyph} {self._words(f'glyph_{glyph}')}" for glyph in _LEGEND if glyph in seen]
        if has_folds:
            words.append(f"{self._fold} {self._words('glyph_fold')}")
        return _wrapped(words, self._width)

    def _rule(self, left: str, right: str) -> Text:
        rule = self._glyphs.rule
        start, end = f"{rule * 2} {left} ", f" {right} {rule * 2}"
        return Text(start + rule * max(self._width - len(start) - len(end), 2) + end, style="bold")

    # ---- over time ------------------------------------------------------------------------------------------------

    def _gantt(self) -> list[Text]:
        """What each request did over time: every column is a piece of time, and says what most of it was."""
        times = self._timeline["times"]
        total = max(times[-1]["end_ns"], 1)
        requests = self._timeline["requests"][:_MAX_ROWS]
        label_width = max((len(entry["request"]) for entry in requests), default=0) + 4
        width = self._width - label_width - 1
        columns = _columns_of_time(times, self._timeline["iterations"], width, total)
        lines = [self._rule("OVER TIME", f"{total / 1e6:.1f} ms, {total / width / 1e6:.2f} ms a column")]
        for entry in requests:
            line = _label(entry["request"], self._colours[entry["request"]], label_width)
            for place in columns:
                cell = entry["cells"][place] if place is not None else None
                line.append(self._time_glyph(cell), style=self._colours[entry["request"]])
            line.rstrip()
            lines.append(line)
        glyphs = self._glyphs
        drawn = {glyphs.cached: "glyph_w", glyphs.now: "prompt", glyphs.computed: "glyph_D", "x": "glyph_x"}
        lines.append(Text("  " + " ".join(f"{glyph} {self._words(key)}" for glyph, key in drawn.items()), style="dim"))
        return lines

    def _time_glyph(self, cell: Cell) -> str:
        if cell is None:
            return " "
        glyphs = self._glyphs
        bars = {"prefill": glyphs.now, "decode": glyphs.computed, "waiting": glyphs.cached, "passed_over": glyphs.owed}
        return bars.get(cell["state"]) or _GLYPHS[cell["state"]]


def _label(request_id: str, colour: str, width: int) -> Text:
    label = Text("  ").append(request_id, style=f"bold {colour}")
    return label.append(" " * (width - label.cell_len))


def _glyph(cell: Cell, budget: int) -> str:
    """One character for what a request did in an iteration."""
    if cell is None:
        return " "
    if cell["state"] != "prefill":
        return "f" if cell["finished"] and cell["state"] in ("decode", "passed_over") else _GLYPHS[cell["state"]]
    if cell["num_cached"]:
        return "h"
    share = cell["num_tokens"] / budget
    return _PREFILL[0 if share <= _SMALL else 1 if share <= _MIDDLE else 2]


def _columns_of_time(times: list[dict[str, int]], iterations: list[int], width: int, total: int) -> list[int | None]:
    """For each column the place of the iteration that takes most of its time; None between iterations."""
    places = {iteration: place for place, iteration in enumerate(iterations)}
    covered: list[dict[int, float]] = [{} for _ in range(width)]
    for span in times:
        start, end = span["start_ns"] * width / total, span["end_ns"] * width / total
        place = places[span["iteration"]]
        for column in range(int(start), min(int(end) + 1, width)):
            overlap = min(end, column + 1) - max(start, column)
            if overlap > 0:
                covered[column][place] = overlap
    return [max(column, key=column.__getitem__) if column else None for column in covered]


def _wrapped(words: list[str], width: int) -> list[Text]:
    """Entries of a legend, as many in a line as fit."""
    lines: list[str] = []
    for word in words:
        if lines and cell_len(lines[-1]) + 3 + cell_len(word) <= width:
            lines[-1] += f"   {word}"
        else:
            lines.append(f"  {word}")
    return [Text(line, style="dim") for line in lines]
