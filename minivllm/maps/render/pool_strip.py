"""Owns drawing the block pool: one character a block, who owns it, and what the iteration did to it.

A pool of thousands of blocks still fits a screen: rows in which all is the same are drawn as one, and where that is not
enough, a character stands for several neighbours.
"""

from __future__ import annotations

import string
from collections import Counter
from typing import Any

from rich.text import Text

from minivllm.maps.render.state_cells import BLOCK_STYLE
from minivllm.maps.render.style import ASCII, UNICODE

_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_MAX_ROWS = 8
_MAX_OWNERS = 6
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
# What happened to a block, the most telling first.
_MARKS = {"evicted": "x", "taken": "+", "freed": "-", "stored": "^"}
_MARK_WORDS = {"x": "lost its hash", "+": "taken", "-": "given back", "^": "published"}
_Cell = tuple[str, str, str]  # glyph, style, mark


class PoolStrip:
    """Draws the pool of an iteration of a state map.

    Args:
        colours: Of each request, in order of arrival.
        width: Columns.
        ascii_only: Use no character beyond ASCII.
    """

    def __init__(self, colours: dict[str, str], width: int, *, ascii_only: bool) -> None:
        self._colours = colours
        self._letters = {request_id: _LETTERS[k % len(_LETTERS)] for k, request_id in enumerate(colours)}
        self._width = width
        self._row_length = 128 if width >= 145 else 96 if width >= 112 else 64 if width >= 80 else max(width - 14, 8)
        self._ascii_only = ascii_only
        self._glyphs = ASCII if ascii_only else UNICODE
        self._cached, self._free, self._mixed = (":", ".", "%") if ascii_only else ("░", "·", "▒")

    def lines(self, iteration: dict[str, Any]) -> list[Text]:
        """The pool, what its characters mean, and both ends of the free queue."""
        pool = iteration["pool"]
        cells = [self._cell(block) for block in pool]
        per_cell, rows = self._folded(cells)
        lines = [self._title(iteration, per_cell)]
        for first, row, num_rows in rows:
            lines += self._row(first, row, num_rows, per_cell)
        is_mixed = any(glyph == self._mixed for _, row, _ in rows for glyph, _, _ in row)
        lines += self._legend(iteration, is_mixed)
        lines.append(self._free_queue(iteration["free_queue"]))
        return lines

    def _cell(self, block: dict[str, Any]) -> _Cell:
        mark = next((sign for word, sign in _MARKS.items() if word in block["happened"]), "")
        if block["changed"] and not mark:
            mark = "+"
        state = block["state"]
        if state == "owned" and block["owners"]:
            owner = block["owners"][0]
            return self._letters[owner], self._colours[owner], mark
        if state in ("owned", "shared"):
            return self._count(block["ref_cnt"]), "bold", mark
        glyph = {"null": "0", "cached_free": self._cached, "free": self._free}[state]
        return glyph, "dim", mark

    def _count(self, users: int) -> str:
        if users > 9:
            return "+" if self._ascii_only else "⁺"
        return str(users) if self._ascii_only else _SUPERSCRIPTS[users]

    def _folded(self, cells: list[_Cell]) -> tuple[int, list[tuple[int, list[_Cell], int]]]:
        """Rows of cells, few enough: how many blocks a cell stands for, and (first cell, cells, rows that it is)."""
        per_cell = 1
        while True:
            merged = [self._merged(cells[k : k + per_cell]) for k in range(0, len(cells), per_cell)]
            rows: list[tuple[int, list[_Cell], int]] = []
            for first in range(0, len(merged), self._row_length):
                row = merged[first : first + self._row_length]
                if rows and len(set(row)) == 1 and set(row) == set(rows[-1][1]):
                    rows[-1] = (rows[-1][0], rows[-1][1], rows[-1][2] + 1)
                else:
                    rows.append((first, row, 1))
            if len(rows) <= _MAX_ROWS:
                return per_cell, rows
            # Twice as many blocks a character can at best halve the rows, so what cannot be enough is not tried.
            per_cell *= 2 ** max((len(rows) // _MAX_ROWS).bit_length() - 1, 1)

    def _merged(self, cells: list[_Cell]) -> _Cell:
        """One cell for several: what at least half of them are, and the most telling thing that happened to any."""
        if len(cells) == 1:
            return cells[0]
        happened = {mark for _, _, mark in cells}
        mark = next((mark for mark in _MARK_WORDS if mark in happened), "")
        (look, count), *_ = Counter((glyph, style) for glyph, style, _ in cells).most_common(1)
        return (*look, mark) if 2 * count >= len(cells) else (self._mixed, "bold", mark)

    def _row(self, first: int, row: list[_Cell], num_rows: int, per_cell: int) -> list[Text]:
        line = Text("  ")
        line.append(f"#{first * per_cell:<6}", style=BLOCK_STYLE)
        for glyph, style, mark in row:
            line.append(glyph, style=_changed(glyph, style) if mark else style)
        if num_rows > 1:
            line.append(f" {num_rows} rows", style="dim")
        marks = "".join(mark or " " for _, _, mark in row).rstrip()
        return [line, Text(" " * 9 + marks, style="bold")] if marks else [line]

    def _title(self, iteration: dict[str, Any], per_cell: int) -> Text:
        title = Text("POOL ", style="bold")
        title.append(f" {len(iteration['pool'])} blocks of {iteration['block_size']} tokens", style="not bold")
        if per_cell > 1:
            title.append(f"; a character is {per_cell} blocks", style="not bold dim")
        return title

    def _legend(self, iteration: dict[str, Any], is_mixed: bool) -> list[Text]:
        """Of what is to be seen, what it means and how many there are."""
        pool, counts = iteration["pool"], iteration["pool_counts"]
        owned = [block["owners"][0] for block in pool if block["state"] == "owned" and block["owners"]]
        owners = [request_id for request_id in self._colours if request_id in set(owned)]
        entries = []
        for owner in owners[:_MAX_OWNERS]:
            entry = Text(f"{self._letters[owner]} ", style=self._colours[owner])
            entry.append(owner, style="bold").append(f" {_num_blocks(owned.count(owner))}", style="not bold dim")
            entries.append(entry)
        if len(owners) > _MAX_OWNERS:
            entries.append(Text(f"{self._glyphs.more} {len(owners) - _MAX_OWNERS} more owners", style="dim"))
        if is_mixed:
            entries.append(Text(f"{self._mixed} blocks of several", style="dim"))
        if counts["shared"]:
            entries.append(Text(f"{self._count(2)} shared by 2, {counts['shared']} shared in all", style="dim"))
        if counts["cached_free"]:
            entries.append(Text(f"{self._cached} {counts['cached_free']} free, can still be hit", style="dim"))
        if counts["free"]:
            entries.append(Text(f"{self._free} {counts['free']} free", style="dim"))
        entries.append(Text("0 null block", style="dim"))
        marks = {mark for _, _, mark in map(self._cell, pool) if mark}
        for mark, word in _MARK_WORDS.items():
            if mark in marks:
                entries.append(Text(f"{mark} ", style="bold").append(word, style="not bold dim"))
        return in_lines(entries, self._width)

    def _free_queue(self, queue: dict[str, Any]) -> Text:
        """The next blocks to be used, as many as fit, and the last ones."""
        for count in range(10, 0, -1):
            text = self._ends_of_queue(queue, count)
            if text.cell_len <= self._width:
                break
        return text

    def _ends_of_queue(self, queue: dict[str, Any], count: int) -> Text:
        text = Text("  free queue: ", style="dim")
        if not queue["num_blocks"]:
            return text.append("empty", style="not dim bold")
        head = queue["head"][:count]
        text.append("next ").append(_ids(head), style=f"not dim {BLOCK_STYLE}")
        if queue["num_blocks"] > len(head):
            text.append(f" {self._glyphs.more} {queue['num_blocks']} in all, last ")
            text.append(_ids([*queue["head"], *queue["tail"]][-2:]), style=f"not dim {BLOCK_STYLE}")
        return text


def _changed(glyph: str, style: str) -> str:
    """Letters and numbers stand out reversed; a shade would become another shade."""
    return f"{style} bold reverse" if glyph.isalnum() else "bold"


def in_lines(entries: list[Text], width: int) -> list[Text]:
    """As many entries in a line as fit."""
    lines: list[Text] = []
    for entry in entries:
        if lines and lines[-1].cell_len + 3 + entry.cell_len <= width:
            lines[-1].append("   ").append_text(entry)
        else:
            lines.append(Text("  ").append_text(entry))
    return lines


def _num_blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{count} blocks"


def _ids(block_ids: list[int]) -> str:
    return " ".join(f"#{block_id}" for block_id in block_ids)
