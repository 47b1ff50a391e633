"""Writes the trace on README's first screen, from the recorded run of the scenario mixed-batch.

python docs/generate_readme.py
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from minivllm.maps.plan import plan_map
from minivllm.maps.render.plan import PlanRenderer
from minivllm.scenarios.registry import get_scenario
from minivllm.trace.reader import read_log

README = Path(__file__).parents[1] / "README.md"
_BLOCK = re.compile(r"(<!-- trace:begin -->\n).*?(<!-- trace:end -->)", re.S)
_WIDTH = 100


def render() -> str:
    """What `minivllm trace -s mixed-batch --map plan` draws, as a fenced block."""
    scenario = get_scenario("mixed-batch")
    log = read_log(scenario.log_path)
    plan = plan_map(log)
    out = io.StringIO()
    renderer = PlanRenderer(plan, log.header, Console(file=out, width=_WIDTH, highlight=False))
    renderer.draw_header()
    renderer.draw(next(entry for entry in plan["iterations"] if entry["iteration"] == scenario.look_at))
    lines = [line.rstrip() for line in out.getvalue().rstrip().splitlines()]
    return "\n".join(["```text", "$ minivllm trace -s mixed-batch --map plan", *lines, "```"]) + "\n"


def filled(text: str) -> str:
    """README's text with the block replaced."""
    return _BLOCK.sub(lambda match: match[1] + render() + match[2], text)


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8")), encoding="utf-8")
