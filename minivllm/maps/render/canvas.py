"""Owns one line of a picture as cells: pieces are put at columns, and a wide character takes two of them."""

from __future__ import annotations

from itertools import groupby

from rich.style import Style
from rich.text import Text

from minivllm.maps.render.runs import clusters


class Row:
    """A line of so many cells, blank at first. What is put later covers what was there; nothing leaves the line."""

    def __init__(self, width: int) -> None:
        self._cells: list[tuple[str, str | Style]] = [(" ", "")] * width

    def put(self, column: int, text: str, style: str | Style = "") -> int:
        """Write from a column on.

        Returns:
            The column behind it.
        """
        for part, width in clusters(text):
            if column < 0 or width < 1:
                continue
            if column + width > len(self._cells):
                break
            self._clear(column)
            self._clear(column + width - 1)
            self._cells[column] = (part, style)
            for covered in range(column + 1, column + width):
                self._cells[covered] = ("", style)
            column += width
        return column

    def _clear(self, column: int) -> None:
        """Blank a cell, and with it the other half of a wide character."""
        if self._cells[column][0] == "":
            self._cells[column - 1] = (" ", self._cells[column - 1][1])
        elif column + 1 < len(self._cells) and self._cells[column + 1][0] == "":
            self._cells[column + 1] = (" ", self._cells[column + 1][1])
        self._cells[column] = (" ", "")

    def text(self) -> Text:
        """The line, without blanks at its end."""
        line = Text(no_wrap=True, overflow="crop")
        for style, group in groupby(self._cells, key=lambda cell: cell[1]):
            line.append("".join(part for part, _ in group), style=style or None)
        line.rstrip()
        return line
