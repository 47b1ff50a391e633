"""Owns how things look in every map: one colour a request, glyphs that also work without colour, plain ASCII."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len

# Told apart on light and dark backgrounds, and repeated when there are more requests than colours.
_REQUEST_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters of a bar (tokens from the prefix cache, computed earlier, computed now, still owed), and of text."""

    cached: str
    computed: str
    now: str
    owed: str
    dash: str
    dot: str
    rule: str
    more: str


UNICODE = Glyphs("▒", "█", "▓", "·", "–", "·", "─", "…")
ASCII = Glyphs(":", "#", "+", ".", "-", "|", "-", "...")

# "~" is for the mark of a cell that was cut.
_ASCII_FOR = str.maketrans("–·─…█▓▒“”①②③│├┤┌└┊┄▶◀▷◁×µ▏▎▍▌▋▊▉░┃", '-|-~#+:""123||||`:.><><xu...####.|')


def request_colours(request_ids: list[str]) -> dict[str, str]:
    """A colour for each request, by order of arrival, so that it is the same in every iteration and map."""
    return {i: _REQUEST_COLOURS[k % len(_REQUEST_COLOURS)] for k, i in enumerate(request_ids)}


def to_ascii(text: str) -> str:
    """Replace what a plain terminal cannot show; every character keeps its width, so that nothing moves."""
    return "".join(c if c.isascii() else "?" * cell_len(c) for c in text.translate(_ASCII_FOR))


def printable(text: str) -> str:
    """A text on one line: what would move the cursor is written as in a Python string."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def ranges(numbers: list[int], dash: str = "–", limit: int = 6) -> str:
    """Numbers in few characters: "3, 7–12"; at most `limit` runs, then how many are left out."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(a) if a == b else f"{a}{dash}{b}" for a, b in runs[:limit]]
    left_out = len(numbers) - sum(b - a + 1 for a, b in runs[:limit])
    return ", ".join(shown) + (f" and {left_out} more" if left_out else "")
