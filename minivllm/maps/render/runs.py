"""Owns a drawn picture as data: lines of runs, each with its place in cells, its text and its looks.

Pictures are drawn once, for a terminal, with rich; files are written from what came out. So a file shows what a
terminal shows, cell by cell, whatever a browser's fonts are like.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.ansi import AnsiDecoder
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment

# What a picture may stand in: the sixteen colours of a terminal, by number, on the reader's own background.
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
COLOUR_NAMES = (*_NAMES, *(f"bright-{name}" for name in _NAMES))


@dataclass(frozen=True, slots=True)
class Run:
    """Characters of one look that stand next to each other.

    Attributes:
        column: Its first cell, from 0.
        text: The characters.
        cells: How many cells it takes; a Chinese character takes two.
        colour: A name out of COLOUR_NAMES, or None for the reader's own.
    """

    column: int
    text: str
    cells: int
    colour: str | None
    bold: bool
    dim: bool
    italic: bool
    reverse: bool


def drawn(draw: Callable[[Console], None], width: int) -> list[list[Run]]:
    """Let something draw on a console of so many columns.

    Returns:
        Its lines; no run is blank.
    """
    out = io.StringIO()
    # Nothing of this machine may reach a file: no environment, no terminal size, no window system.
    console = Console(
        file=out,
        width=width,
        force_terminal=True,
        color_system="standard",
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        no_color=False,
        _environ={},
    )
    draw(console)
    lines = [list(_runs(line)) for line in _decoded(out.getvalue(), width)]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _decoded(ansi: str, width: int) -> Iterator[list[Segment]]:
    decoder = AnsiDecoder()
    plain = Console(file=io.StringIO(), width=width, color_system="standard", force_terminal=True, _environ={})
    for line in ansi.split("\n"):
        yield list(decoder.decode_line(line).render(plain))


def _runs(segments: list[Segment]) -> Iterator[Run]:
    column = 0
    for segment in segments:
        text = segment.text.rstrip("\n")
        cells = cell_len(text)
        style = segment.style
        blank = not text.strip() and not (style is not None and style.reverse)
        if text and not blank:
            colour = style.color.number if style is not None and style.color is not None else None
            yield Run(
                column,
                text,
                cells,
                None if colour is None else COLOUR_NAMES[colour],
                *(bool(style is not None and getattr(style, name)) for name in ("bold", "dim", "italic", "reverse")),
            )
        column += cells


def clusters(text: str) -> list[tuple[str, int]]:
    """A text as what stands in cells of its own: a character with the marks that go onto it, and its width."""
    parts: list[tuple[str, int]] = []
    for character in text:
        width = cell_len(character)
        if width == 0 and parts:
            parts[-1] = (parts[-1][0] + character, parts[-1][1])
        else:
            parts.append((character, width))
    return parts
