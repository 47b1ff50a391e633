"""Owns where a line of Chinese may end: between any two characters, but not before a comma or behind a bracket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions
from rich.containers import Lines
from rich.measure import Measurement
from rich.text import Text

_NEVER_FIRST = frozenset("，。；：、！？）」》”’…—～)].,;:!?%")
_NEVER_LAST = frozenset("（「《“‘([#")


class WrappedText(Text):
    """A text that is wrapped by the rules of Chinese where it has Chinese in it, and as any other text elsewhere."""

    def wrap(self, console: Console, width: int, *, no_wrap: bool | None = None, **how: Any) -> Lines:
        """Its lines, none of them wider than so many cells."""
        if no_wrap or self.no_wrap or not has_wide(self.plain):
            return super().wrap(console, width, no_wrap=no_wrap, **how)
        lines = Lines()
        for line in self.split(allow_blank=True):
            for piece in line.divide(breaks(line.plain, width)):
                piece.rstrip()
                lines.append(piece)
        return lines

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        if not has_wide(self.plain):
            return super().__rich_measure__(console, options)
        widest = max((cell_len(line) for line in self.plain.splitlines()), default=0)
        return Measurement(max((cell_len(unit.rstrip()) for unit in _units(self.plain)), default=0), widest)


def has_wide(text: str) -> bool:
    """Whether a character takes two cells."""
    return not text.isascii() and any(cell_len(character) == 2 for character in text)


def breaks(text: str, width: int) -> list[int]:
    """The offsets at which a line of text is divided, so that no piece is wider than so many cells."""
    found: list[int] = []
    offset = used = 0
    for unit in _units(text):
        for piece in [unit] if cell_len(unit.rstrip()) <= width else chop_cells(unit, width):
            if used and used + cell_len(piece.rstrip()) > width:
                found.append(offset)
                used = 0
            used += cell_len(piece)
            offset += len(piece)
    return found


def _units(text: str) -> Iterator[str]:
    """What stays together on a line, with the blanks behind it."""
    start = 0
    for place in range(1, len(text)):
        if _may_part(text[place - 1], text[place]):
            yield text[start:place]
            start = place
    if text:
        yield text[start:]


def _may_part(before: str, after: str) -> bool:
    if after.isspace() or before.isspace():
        return before.isspace() and not after.isspace()
    if after in _NEVER_FIRST or before in _NEVER_LAST:
        return False
    return cell_len(before) == 2 or cell_len(after) == 2
