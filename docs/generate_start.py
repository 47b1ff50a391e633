"""Writes the trace on the start page: some iterations of the recorded run of mixed-batch, as text in two widths.

python docs/generate_start.py

The page can be read without JavaScript; with it (assets/start.js) one goes through the iterations.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME

from minivllm.maps.plan import plan_map
from minivllm.maps.render.plan import PlanRenderer
from minivllm.scenarios.registry import get_scenario
from minivllm.trace.events import Header
from minivllm.trace.reader import read_log

PAGES = {"en": Path(__file__).parent / "index.md", "zh": Path(__file__).parent / "zh" / "index.md"}
SCENARIO = "mixed-batch"
# Those around the one to look at; a page that holds all of them would be slow.
BEFORE, AFTER = 3, 3
# Characters a line: on a screen, and on a phone.
WIDTHS = {"wide": 100, "narrow": 48}
# What rich writes for a colour's name. Any other colour is one that was dimmed.
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_COLOURS = {SVG_EXPORT_THEME.ansi_colors[number].hex: f"t-{name}" for number, name in enumerate(_NAMES * 2)}
_SPAN = re.compile(r'<span style="([^"]*)">(.*?)</span>', re.S)
# What the control says, by language.
_WORDS = {
    "en": {"option": "", "label": "", "number": "iteration {}", "figure": "Iteration {} of " + SCENARIO}
    | {"before": "Previous iteration", "after": "Next iteration", "range": "Iteration"},
    "zh": {"option": " --lang zh", "label": ' data-label="第 {} 轮"', "number": "第 {} 轮"}
    | {"figure": SCENARIO + " 的第 {} 轮", "before": "上一轮", "after": "下一轮", "range": "轮次"},
}
_BLOCK = re.compile(r"(<!-- trace:begin -->\n).*?(<!-- trace:end -->)", re.S)


def render(lang: str = "en") -> str:
    """The trace: a range control, and one figure an iteration, each in both widths."""
    words = _WORDS[lang]
    scenario = get_scenario(SCENARIO)
    log = read_log(scenario.log_path)
    plan = plan_map(log, lang)
    assert scenario.look_at is not None
    shown = range(scenario.look_at - BEFORE, scenario.look_at + AFTER + 1)
    entries = {entry["iteration"]: entry for entry in plan["iterations"]}
    parts = [
        f'<div class="mv-trace" data-first="{shown[0]}"{words["label"]}>',
        f'<p class="mv-command"><code>$ minivllm trace -s {SCENARIO} --map plan{words["option"]}</code></p>',
        _control(shown, scenario.look_at, words),
    ]
    for iteration in shown:
        hidden = "" if iteration == scenario.look_at else " hidden"
        parts.append(f'<div class="mv-iteration" data-iteration="{iteration}"{hidden}>')
        for name, width in WIDTHS.items():
            label = words["figure"].format(iteration)
            text = _iteration(plan, log.header, entries[iteration], width)
            parts.append(f'<pre class="mv-{name}" tabindex="0" role="region" aria-label="{label}">{text}</pre>')
        parts.append("</div>")
    return "\n".join([*parts, "</div>"]) + "\n"


def _control(shown: range, look_at: int, words: dict[str, str]) -> str:
    return (
        '<div class="mv-scrubber" hidden>'
        f'<button type="button" data-go="-1" aria-label="{words["before"]}">‹</button>'
        f'<input type="range" min="{shown[0]}" max="{shown[-1]}" value="{look_at}" aria-label="{words["range"]}">'
        f'<button type="button" data-go="1" aria-label="{words["after"]}">›</button>'
        f"<output>{words['number'].format(look_at)}</output>"
        "</div>"
    )


def _iteration(plan: dict[str, Any], header: Header, entry: dict[str, Any], width: int) -> str:
    """The drawing of one iteration, with a class for each style: colours differ on light and dark pages."""
    console = Console(file=io.StringIO(), width=width, highlight=False, record=True)
    PlanRenderer(plan, header, console).draw(entry)
    drawn = console.export_html(theme=SVG_EXPORT_THEME, code_format="{code}", inline_styles=True)
    drawn = _SPAN.sub(_with_classes, drawn)
    return "\n".join(line.rstrip() for line in drawn.rstrip().splitlines())


def _with_classes(span: re.Match[str]) -> str:
    return f'<span class="{_classes(span[1])}">{span[2]}</span>' if span[2].strip() else span[2]


def _classes(style: str) -> str:
    colours = re.findall(r"(?<![\w-])color: (#\w{6})", style)
    names = [_COLOURS.get(colour, "t-dim") for colour in colours]
    return " ".join([*names, *(["t-bold"] if "font-weight: bold" in style else [])])


def filled(text: str, lang: str = "en") -> str:
    """The page's text with the trace replaced."""
    return _BLOCK.sub(lambda match: match[1] + render(lang) + match[2], text)


if __name__ == "__main__":
    for lang, page in PAGES.items():
        page.write_text(filled(page.read_text(encoding="utf-8"), lang), encoding="utf-8")
        print(f"wrote {page}")
