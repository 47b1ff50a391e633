"""Owns the colours of pictures in files: the terminal's sixteen, in light and in dark, as a style sheet."""

from __future__ import annotations

from minivllm.maps.render.runs import COLOUR_NAMES

# paper, ink; then in the order of COLOUR_NAMES. Each is readable on its paper (a contrast of 4.5 or more).
_LIGHT = """
    #ffffff #1f2328
    #24292f #b42318 #116329 #7d4e00 #0550ae #8250df #0b6472 #57606a
    #57606a #c4320a #1a7f37 #8a5a00 #0969da #a333c8 #0b7285 #24292f
"""
_DARK = """
    #0d1117 #e6edf3
    #8b949e #ff7b72 #56d364 #e3b341 #79c0ff #d2a8ff #56d4dd #c9d1d9
    #8b949e #ffa198 #7ee787 #f2cc60 #a5d6ff #e2c5ff #9be9f0 #ffffff
"""


def css(root: str, prop: str) -> str:
    """The rules for one kind of document.

    Args:
        root: Selector of the element that holds the picture.
        prop: What colours its text: "fill" in SVG, "color" in HTML.
    """
    names = [f"--{name}" for name in ("paper", "ink", *COLOUR_NAMES)]

    def variables(colours: str) -> str:
        return f"{root}{{{';'.join(f'{n}:{c}' for n, c in zip(names, colours.split(), strict=True))}}}"

    rules = [variables(_LIGHT), f"@media(prefers-color-scheme:dark){{{variables(_DARK)}}}"]
    named = {"paper": "paper", "c": "ink", "on": "paper"} | {name: name for name in COLOUR_NAMES}
    rules += [f"{root} .{name}{{{prop}:var(--{variable})}}" for name, variable in named.items()]
    rules += [f"{root} .b{{font-weight:700}}", f"{root} .d{{opacity:.62}}", f"{root} .i{{font-style:italic}}"]
    return "".join(rules)
