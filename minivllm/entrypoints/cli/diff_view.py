"""Owns how two runs side by side look: settings, where they part, what it changed, numbers, requests, work a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

    from minivllm.analysis.diff import Diff
    from minivllm.analysis.diff_numbers import RequestNumbers
    from minivllm.maps.render.frame import Frame
    from minivllm.trace.reader import Log

# Of a run with more requests, those that changed most are shown.
_MAX_ROWS = 16
_RUN_ROWS = (
    ("iterations", "iterations"),
    ("computed", "tokens computed"),
    ("fullest", "fullest iteration, tokens"),
    ("most_running", "most requests at once"),
    ("preemptions", "preemptions"),
    ("lost", "computed tokens lost"),
    ("hit", "tokens from the prefix cache"),
    ("peak_blocks", "most blocks in use"),
    ("in_vain", "tokens sampled in vain"),
)
# Columns of the requests' table, the most telling first, and from which width on each is shown.
_REQUEST_COLUMNS = (
    ("waited", "waited", 0),
    ("finished", "ends in", 0),
    ("preemptions", "preempted", 60),
    ("hit", "hit", 60),
    ("first_token", "first token in", 80),
    ("lost", "lost", 80),
    ("reason", "end", 100),
)
_ARROW = "→"
_BARS, _ASCII_BARS = " ▁▂▃▄▅▆▇█", " .:-=+*%#"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is drawn.

    Attributes:
        diff: Both runs.
        sentences: What is said of them.
        labels: What the runs are called in tables.
        titles: What each of them is, in a line; none to leave that out.
        aspects: What alone was compared: "plans", "tokens", "logits"; none if everything was.
    """

    diff: Diff
    sentences: Sequence[str]
    labels: tuple[str, str] = ("A", "B")
    titles: tuple[str, ...] = ()
    aspects: tuple[str, ...] = ()


def draw_comparison(comparison: Comparison, log: Log, console: Console, *, ascii_only: bool, lang: str = "en") -> None:
    """Print two runs side by side.

    Args:
        comparison: What to draw.
        log: The first run.
        console: Where to; its width decides the layout.
        ascii_only: Use no character beyond ASCII.
        lang: Language of the sentences.
    """
    from minivllm.maps.render.frame import Frame
    from minivllm.maps.stages import requests_of

    frame = Frame(log.header, requests_of(log), console, ascii_only=ascii_only)
    diff, labels = comparison.diff, comparison.labels
    if not comparison.titles:
        frame.draw_header()
    for label, title in zip(labels, comparison.titles, strict=False):
        frame.print(Text(f"{label}  {title}", style="bold", overflow="fold"))
    for setting in diff.settings:
        frame.print(frame.sentence(_plain(f"{setting.name}: {_shown(setting.a)} → {_shown(setting.b)}", frame)))
    frame.print(_verdict(diff, comparison.aspects, lang))
    if diff.first is not None:
        for label, value in zip(labels, (diff.first.a, diff.first.b), strict=True):
            frame.print(
                Padding(Text(f"{label}  {_shown(value)}", style="dim", overflow="fold"), (0, 0, 0, 4), expand=False)
            )
    for sentence in comparison.sentences:
        frame.print(frame.sentence(_plain(sentence, frame)))
    run, requests = _run_table(diff, labels), _request_table(diff, frame)
    frame.print(Text(""))
    if frame.width >= 140 and requests is not None:
        both = Table.grid(padding=(0, 6))
        both.add_row(run, requests)
        frame.print(both)
    else:
        frame.print(run)
        if requests is not None:
            frame.print(Text(""))
            frame.print(requests)
    _draw_work(diff, labels, frame)


def _verdict(diff: Diff, aspects: tuple[str, ...], lang: str) -> Text:
    from minivllm.analysis.words_diff import DIFF_WORDS
    from minivllm.maps.wording import Words

    words, first = Words(lang, DIFF_WORDS), diff.first
    if first is None:
        said = words("equal_in", what=" and ".join(aspects)) if aspects else words("equal")
        return Text(said, style="bold green")
    where = words("of_request", request=first.more["request"]) if "request" in first.more else ""
    if first.more.get("position") is not None:
        where += words("at_position", position=first.more["position"])
    return Text(words("part", step=first.iteration, field=first.field, where=where), style="bold yellow")


def _shown(value: Any) -> str:
    """A value of a log, in few characters."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict) and value.keys() == {"from", "items"}:
        return f"from {value['from']}: {_shown(value['items'])}"
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_shown(v)}" for k, v in value.items()) or "–"
    if isinstance(value, list | tuple):
        is_pair = len(value) == 2 and isinstance(value[0], str) and not isinstance(value[1], str)
        text = (" " if is_pair else ", ").join(map(_shown, value))
        return text or "–"
    return str(value)


def _run_table(diff: Diff, labels: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("")
    for label in (*labels, "change"):
        table.add_column(label, justify="right")
    for name, title in _RUN_ROWS:
        a, b = getattr(diff.a, name), getattr(diff.b, name)
        if not a and not b:
            continue
        values = [f"{a} of {diff.a.blocks}", f"{b} of {diff.b.blocks}"] if name == "peak_blocks" else [str(a), str(b)]
        style = "dim" if a == b else ""
        table.add_row(title, *values, f"{b - a:+d}" if a != b else "", style=style)
    return table


def _request_table(diff: Diff, frame: Frame) -> Table | None:
    rows = [(i, x, diff.b.requests[i]) for i, x in diff.a.requests.items() if i in diff.b.requests]
    if not rows:
        return None
    columns = [column for column in _REQUEST_COLUMNS if frame.width >= column[2]]
    left_out = max(len(rows) - _MAX_ROWS, 0)
    if left_out:
        rows.sort(key=lambda row: -_change(row[1], row[2]))
        rows = rows[:_MAX_ROWS]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("request")
    for _, title, _ in columns:
        table.add_column(title, justify="right")
    for request, x, y in rows:
        cells = [_pair(getattr(x, name), getattr(y, name), frame) for name, _, _ in columns]
        table.add_row(Text(request, style=frame.colours.get(request, "")), *cells)
    if left_out:
        table.caption = f"and {left_out} requests that changed less"
    return table


def _change(x: RequestNumbers, y: RequestNumbers) -> int:
    return abs((x.finished or 0) - (y.finished or 0)) + abs((x.waited or 0) - (y.waited or 0))


def _pair(a: Any, b: Any, frame: Frame) -> Text:
    return Text(_shown(a), style="dim") if a == b else Text(_plain(f"{_shown(a)} → {_shown(b)}", frame))


def _plain(text: str, frame: Frame) -> str:
    """Arrows in ASCII take two columns: they are replaced before the layout is made."""
    return text.replace(_ARROW, "->") if frame.ascii_only else text


def _draw_work(diff: Diff, labels: tuple[str, str], frame: Frame) -> None:
    """Tokens that each iteration computed, as bars of one scale."""
    most = max(diff.a.fullest, diff.b.fullest)
    if not most or frame.width < 60:
        return
    room = max(map(len, labels))
    columns = frame.width - room - 2
    per_column = -(-max(diff.a.iterations, diff.b.iterations) // columns)
    each = "each iteration" if per_column == 1 else f"the fullest of every {per_column} iterations"
    frame.print(Text(f"\ntokens of {each} (the highest bar is {most})", style="dim"))
    glyphs = _ASCII_BARS if frame.ascii_only else _BARS
    for label, run in zip(labels, (diff.a, diff.b), strict=True):
        bars = _bars(run.tokens_per_step, most, per_column, glyphs)
        frame.print(Text(f"{label:<{room}}  {bars}".rstrip(), no_wrap=True, overflow="crop"))


def _bars(steps: list[int], most: int, per_column: int, glyphs: str) -> str:
    heights = [max(steps[i : i + per_column]) for i in range(0, len(steps), per_column)]
    return "".join(glyphs[-(-height * (len(glyphs) - 1) // most)] for height in heights)
