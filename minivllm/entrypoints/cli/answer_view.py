"""Owns how an answer looks: the sentence, its arithmetic line by line, where the rule stands, and what to try next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from minivllm.entrypoints.cli.common import note

if TYPE_CHECKING:
    from rich.console import Console

    from minivllm.analysis.answer import Answer
    from minivllm.trace.reader import Log


def draw_answer(answer: Answer, log: Log, source: str, console: Console, *, ascii_only: bool, lang: str = "en") -> None:
    """Print an answer.

    Args:
        answer: The answer.
        log: The run that it is about.
        source: How the command named that run: "-s hello".
        console: Where to.
        ascii_only: Use no character beyond ASCII.
        lang: The language of the answer.
    """
    from minivllm.analysis.words_why import WHY_WORDS
    from minivllm.maps.render.frame import Frame
    from minivllm.maps.render.wrap import WrappedText
    from minivllm.maps.stages import requests_of
    from minivllm.maps.wording import Words

    frame = Frame(log.header, requests_of(log), console, ascii_only=ascii_only)
    words = Words(lang, WHY_WORDS)
    head, colon, tail = answer.answer.partition(words("colon"))
    frame.print(Text(head + colon + answer.reason.upper() if tail else answer.answer, style="bold"))
    if tail:
        frame.print(frame.sentence(tail))
    if answer.steps:
        table = Table.grid(padding=(0, 2))
        table.add_column()
        table.add_column(justify="right")
        table.add_column(style="dim")
        for what, number, meaning in answer.steps:
            table.add_row(WrappedText(what), number, WrappedText(meaning, style="dim"))
        frame.print(Padding(table, (0, 0, 0, 2), expand=False))
    for line in answer.more:
        frame.print(frame.sentence(line))
    frame.print(Text(f"  {words('here')}  ", style="dim").append_text(frame.place(answer.ours)))
    frame.print(Text(f"  vLLM  {answer.vllm}", style="dim"))
    command, dashes, options = _filled(answer.hint, log).partition("--")
    note(words("next", command=f"minivllm {command.rstrip()} {source} {dashes}{options}".rstrip()))


def _filled(hint: str, log: Log) -> str:
    """The hint with a value for the setting that it names: twice of what the run had."""
    config = log.header.config
    for part in ("scheduler_config", "cache_config"):
        for name, value in config.get(part, {}).items():
            if f"{name}=…" in hint and isinstance(value, int):
                return hint.replace("…", str(2 * value))
    return hint
