"""Owns how an explanation looks: the answer, the formula twice, its parts line by line, places, the next command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from minivllm.entrypoints.cli.common import note

if TYPE_CHECKING:
    from rich.console import Console

    from minivllm.analysis.explain_answer import Explanation
    from minivllm.analysis.explain_answer import Table as Rows
    from minivllm.maps.render.frame import Frame
    from minivllm.maps.wording import Words
    from minivllm.trace.reader import Log

# Rows of one table, on the screen; JSON has all.
_SHOWN = 40


def draw_explanation(
    explanation: Explanation, log: Log, source: str, console: Console, *, ascii_only: bool, lang: str = "en"
) -> None:
    """Print an explanation.

    Args:
        explanation: What was found out.
        log: The run that it is about.
        source: How the command named that run: "-s hello".
        console: Where to.
        ascii_only: Use no character beyond ASCII.
        lang: The language of the explanation.
    """
    from minivllm.analysis.words_explain import EXPLAIN_WORDS
    from minivllm.maps.render.frame import MEDIUM, Frame
    from minivllm.maps.stages import requests_of
    from minivllm.maps.wording import Words

    words = Words(lang, EXPLAIN_WORDS)
    frame = Frame(log.header, requests_of(log), console, ascii_only=ascii_only)
    frame.draw_header()
    frame.print(frame.sentence(explanation.answer, style="bold"))
    frame.print(Padding(Text(explanation.formula, style="dim"), (0, 0, 0, 4)))
    frame.print(Padding(Text(explanation.filled), (0, 0, 0, 4)))
    for rows in explanation.tables:
        _draw_table(frame, rows, words)
    for line in explanation.more:
        frame.print(frame.sentence(line))
    place = Text(f"  {words('here')}  ", style="dim").append_text(frame.place(explanation.ours))
    vllm = Text(f"  vLLM  {explanation.vllm}", style="dim")
    if frame.width >= MEDIUM and place.cell_len + 4 + vllm.cell_len <= frame.width:
        frame.print(place.append("    ").append_text(vllm))
    else:
        frame.print(place)
        frame.print(vllm)
    command, _, options = explanation.hint.partition(" ")
    topic, _, rest = options.partition(" ")
    # Groups and topics stand before the source, options behind it.
    parts = [command, topic, source, rest] if not topic.startswith("-") else [command, source, options]
    note(words("next", command=f"minivllm {' '.join(part for part in parts if part)}"))


def _draw_table(frame: Frame, rows: Rows, words: Words) -> None:
    """A table set in under its title. On a narrow screen cells are folded, never cut."""
    from minivllm.maps.render.wrap import WrappedText

    if not rows.rows:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=len(rows.columns) > 2)
    for place, column in enumerate(rows.columns):
        is_number = all(row[place][:1].isdigit() for row in rows.rows)
        is_right = is_number and place not in rows.at_left
        table.add_column(column, overflow="fold", justify="right" if is_right else "left")
    for row in rows.rows[:_SHOWN]:
        cells = [WrappedText(cell) for cell in row]
        for cell in cells:
            if cell.plain in frame.colours:
                cell.stylize(f"bold {frame.colours[cell.plain]}")
        table.add_row(*cells)
    frame.print(Padding(Text(rows.title, style="bold"), (0, 0, 0, 2)))
    frame.print(Padding(table, (0, 0, 0, 4), expand=False))
    if len(rows.rows) > _SHOWN:
        more = words("more_rows", count=len(rows.rows) - _SHOWN)
        frame.print(Padding(Text(more, style="dim"), (0, 0, 0, 4)))
