"""Owns a picture as one HTML file that needs no network: text that can be searched and copied, in light and in dark."""

from __future__ import annotations

from html import escape
from itertools import groupby

from minivllm.maps.render.palette import css
from minivllm.maps.render.runs import Run, clusters

_PAGE = (
    "body{margin:0;background:var(--paper)}"
    "pre{margin:0;padding:16px;overflow-x:auto;line-height:1.3;color:var(--ink);"
    "font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:14px}"
    ".r{background:var(--ink)}"
    # Fonts draw a Chinese character at a width of their own; here it gets its two cells.
    ".w{display:inline-block;width:2ch;overflow:hidden;vertical-align:bottom}"
)


def to_html(lines: list[list[Run]], title: str) -> str:
    """A picture as one HTML document.

    Args:
        lines: What `runs.drawn` gave.
        title: Of the page.
    """
    body = "\n".join("".join(_line(line)) for line in lines)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{css(':root', 'color')}{_PAGE}</style>\n</head>\n<body>\n"
        f"<pre>{body}</pre>\n</body>\n</html>\n"
    )


def _line(line: list[Run]) -> list[str]:
    parts = []
    column = 0
    for run in line:
        parts.append(" " * (run.column - column))
        text = _text(run.text)
        flags = ((run.colour, run.colour is not None), ("b", run.bold), ("d", run.dim), ("i", run.italic))
        classes = [name for name, is_set in flags if is_set and name]
        if run.reverse:
            classes = ["on", "r", *(["b"] if run.bold else [])]
        parts.append(f'<span class="{" ".join(classes)}">{text}</span>' if classes else text)
        column = run.column + run.cells
    return parts


def _text(text: str) -> str:
    parts = []
    for is_wide, group in groupby(clusters(text), key=lambda cluster: cluster[1] == 2):
        if is_wide:
            parts += [f'<span class="w">{escape(part)}</span>' for part, _ in group]
        else:
            parts.append(escape("".join(part for part, _ in group)))
    return "".join(parts)
