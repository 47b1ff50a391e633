"""Owns a picture as an SVG file: every character in its cell, in light and in dark, with nothing loaded from anywhere.

A browser takes Chinese characters from another font, whose width is not two of ours. So no width is left to the font:
a run of narrow characters is stretched to its cells, and a wide character is placed by itself. Blocks of a bar are
rectangles, because fonts leave gaps between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from xml.sax.saxutils import escape

from minivllm.maps.render.palette import css
from minivllm.maps.render.runs import Run, clusters

_CELL = 8.4  # pixels; 0.6 of the font's size, as in nearly every monospaced font
_LINE = 18
_FONT_SIZE = 14
_WIDE_FONT_SIZE = 16
_BASELINE = 13
_MARGIN = 14

# Blocks: which part of the cell they fill (from the left), and how densely.
_BLOCKS = {"█": (1.0, 1.0), "▓": (1.0, 0.7), "▒": (1.0, 0.42), "░": (1.0, 0.22)}
_BLOCKS |= {character: (eighths / 8, 1.0) for eighths, character in enumerate("▏▎▍▌▋▊▉", 1)}


def to_svg(lines: list[list[Run]], title: str, width: int) -> str:
    """A picture as one SVG document.

    Args:
        lines: What `runs.drawn` gave.
        title: For those who cannot see it.
        width: Columns that it was drawn for.
    """
    pixel_width, pixel_height = _number(width * _CELL + 2 * _MARGIN), len(lines) * _LINE + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {pixel_width} {pixel_height}" width="{pixel_width}" '
        f'height="{pixel_height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{pixel_width}" height="{pixel_height}" rx="6"/>',
    ]
    for number, line in enumerate(lines):
        top = _MARGIN + number * _LINE
        for run in line:
            parts += _run(run, top)
    return "\n".join([*parts, "</svg>"]) + "\n"


_STYLE = (
    css("svg", "fill")
    + "text{white-space:pre;font:"
    + f"{_FONT_SIZE}px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,'Noto Sans Mono CJK SC',monospace}}"
    # A Chinese character is as wide as its font is large; at this size it fills two cells nearly by itself.
    + f"text.w{{font-size:{_WIDE_FONT_SIZE}px}}"
)


def _run(run: Run, top: float) -> Iterator[str]:
    classes = _classes(run)
    if run.reverse:
        yield (
            f'<rect class="{" ".join(c for c in classes if c in ("c", run.colour))}" x="{_x(run.column)}" '
            f'y="{top}" width="{_number(run.cells * _CELL)}" height="{_LINE}"/>'
        )
        classes = ["on", *(c for c in classes if c == "b")]
    column = run.column
    for kind, group in groupby(clusters(run.text), key=_kind):
        parts = list(group)
        cells = sum(width for _, width in parts)
        if kind == "block":
            yield from _blocks("".join(part for part, _ in parts), column, top, classes)
        elif kind == "wide":
            # One by one: their font's width is not two of our cells.
            place = column
            for part, part_width in parts:
                yield _text(part, place, part_width, top, [*classes, "w"])
                place += part_width
        elif kind == "narrow":
            yield _text("".join(part for part, _ in parts), column, cells, top, classes)
        column += cells


def _kind(cluster: tuple[str, int]) -> str:
    text, width = cluster
    if text == " ":
        return "blank"
    if text in _BLOCKS:
        return "block"
    return "narrow" if width == 1 else "wide"


def _text(text: str, column: int, cells: int, top: float, classes: list[str]) -> str:
    length = f' textLength="{_number(cells * _CELL)}" lengthAdjust="spacingAndGlyphs"' if cells else ""
    place = f'x="{_x(column)}" y="{_number(top + _BASELINE)}"'
    return f'<text class="{" ".join(classes)}" {place}{length}>{escape(text)}</text>'


def _blocks(text: str, column: int, top: float, classes: list[str]) -> Iterator[str]:
    for character, group in groupby(text):
        count = len(list(group))
        part, density = _BLOCKS[character]
        width = (count - 1 + part) * _CELL
        opacity = f' fill-opacity="{density}"' if density < 1 else ""
        yield (
            f'<rect class="{" ".join(classes)}" x="{_x(column)}" y="{_number(top + 2)}" width="{_number(width)}" '
            f'height="{_LINE - 4}"{opacity}/>'
        )
        column += count


def _classes(run: Run) -> list[str]:
    flags = (("b", run.bold), ("d", run.dim), ("i", run.italic))
    return [run.colour or "c", *(name for name, is_set in flags if is_set)]


def _x(column: int) -> str:
    return _number(_MARGIN + column * _CELL)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
