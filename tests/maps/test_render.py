"""A picture keeps to its width, to ASCII where asked, and to one line a text."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from minivllm.maps.plan import plan_map
from minivllm.maps.render.plan import PlanRenderer
from minivllm.maps.render.style import printable, ranges, request_colours, to_ascii
from minivllm.scenarios.registry import get_scenario, prompts_scenario
from minivllm.scenarios.run import run_scenario
from minivllm.trace.events import Header
from minivllm.trace.reader import Log, read_log
from tests.trace.workloads import mixed_workload, simulated_log

WIDTHS = [40, 60, 80, 120, 160]
CHINESE = "从前有一座山,山里有一座庙,庙里有一个老和尚在给小和尚讲故事。" * 3


@pytest.fixture(scope="module")
def logs(tiny_model: Path) -> dict[str, Log]:
    model = {"model": str(tiny_model)}
    odd = prompts_scenario([CHINESE, "a\tb\nc\x1b[31md", "[bold]not markup[/bold] :smile:"], 20, {})
    return {
        "mixed-batch": run_scenario(get_scenario("mixed-batch"), model).log,
        "drafts": run_scenario(get_scenario("mixed-batch-drafts"), model).log,
        "odd texts": run_scenario(odd, model).log,
        "simulated": read_log(simulated_log(mixed_workload())),
    }


def drawn(log: Log, width: int, *, ascii_only: bool = False, **console: Any) -> str:
    plan = plan_map(log)
    file = io.StringIO()
    renderer = PlanRenderer(plan, log.header, Console(file=file, width=width, **console), ascii_only=ascii_only)
    renderer.draw_header()
    for iteration in plan["iterations"]:
        renderer.draw(iteration)
    renderer.draw_requests()
    renderer.draw_note("A remark that is long enough to need a second line, at least on a narrow screen. " * 2)
    return file.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["mixed-batch", "drafts", "odd texts", "simulated"])
def test_no_line_is_wider_than_the_screen(logs: dict[str, Log], name: str, width: int) -> None:
    for ascii_only in (False, True):
        for line in drawn(logs[name], width, ascii_only=ascii_only).splitlines():
            assert cell_len(line) <= width, line


@pytest.mark.parametrize("name", ["mixed-batch", "odd texts", "simulated"])
def test_ascii_has_no_other_character(logs: dict[str, Log], name: str) -> None:
    assert drawn(logs[name], 100, ascii_only=True).isascii()


def test_a_pipe_gets_no_colours_and_a_terminal_does(logs: dict[str, Log]) -> None:
    assert "\x1b" not in drawn(logs["mixed-batch"], 100)
    assert "\x1b[" in drawn(logs["mixed-batch"], 100, force_terminal=True)
    colour = "\x1b[1;36m"
    assert colour in drawn(logs["mixed-batch"], 100, force_terminal=True, color_system="standard")
    assert colour not in drawn(logs["mixed-batch"], 100, force_terminal=True, no_color=True)


def test_a_prompt_cannot_move_the_cursor(logs: dict[str, Log]) -> None:
    picture = drawn(logs["odd texts"], 160)
    assert r"a\tb\nc\x1b[31md" in picture
    assert "[bold]not markup[/bold] :smile:" in picture


def test_ids_that_begin_alike_keep_their_own_colours() -> None:
    document = prompts_scenario([f"prompt {k}" for k in range(12)], 1, {})
    ids = [request.id for request in document.requests]
    colours = request_colours(ids)
    plan = {"iterations": [], "requests": [{"request": i} for i in ids]}
    renderer = PlanRenderer(plan, Header(), Console(width=80))
    text = renderer._sentence("R11 was preempted for R1.")
    assert [(text.plain[s.start : s.end], s.style) for s in text.spans] == [
        ("R11", f"bold {colours['R11']}"),
        ("R1", f"bold {colours['R1']}"),
    ]


@pytest.mark.parametrize(
    ("numbers", "limit", "shown"),
    [
        ([], 6, ""),
        ([3], 6, "3"),
        ([3, 4], 6, "3–4"),
        ([3, 7, 8, 9], 6, "3, 7–9"),
        ([9, 8, 7], 6, "9, 8, 7"),
        ([1, 3, 5, 7], 2, "1, 3 and 2 more"),
        ([1, 2, 3, 10, 20, 21], 1, "1–3 and 3 more"),
    ],
)
def test_numbers_are_shown_as_ranges(numbers: list[int], limit: int, shown: str) -> None:
    assert ranges(numbers, limit=limit) == shown


def test_ascii_keeps_every_character_in_its_column() -> None:
    text = "–·─…█▓▒“”→é中"
    assert to_ascii(text) == '-|-~#+:""????', "a wide character stays two columns wide"
    assert to_ascii("p\u0320e") == "pe", "a combining mark has no column of its own"


def test_what_moves_the_cursor_is_written_out() -> None:
    assert printable("a\n\t\x1b\u2028 é中\ufffd") == "a\\n\\t\\x1b\\u2028 é中\ufffd"


@pytest.mark.parametrize("width", [6, 17, 60])
def test_a_bar_is_to_scale_and_what_happens_now_can_be_seen(width: int) -> None:
    plan = {"iterations": [], "requests": [{"request": "R0"}]}
    renderer = PlanRenderer(plan, Header(), Console(width=80), ascii_only=True)
    longest = 40
    for known in range(1, longest + 1):
        for before in range(known):
            for now in range(1, known - before + 1):
                for hit in {0, before // 2, before}:
                    bar = renderer._bar(hit, before, now, known, width, longest)
                    assert re.fullmatch(r":*#*\++\.*", bar), bar
                    assert len(bar) == max(round(known * min(width / longest, 1)), 1), "the whole is to scale"
                    if width >= longest:
                        assert [bar.count(c) for c in ":#+."] == [hit, before - hit, now, known - before - now]


def test_a_bar_shows_the_hit_of_its_own_admission_and_not_of_a_later_one() -> None:
    """R2 enters without a hit, is preempted, and comes back with 4 tokens out of the cache."""
    plan = plan_map(read_log(get_scenario("kv-pressure").log_path))
    came_back = next(e for e in plan["iterations"] if any(s["kind"] == "resumed" for s in e["scheduled"]))
    for iteration in plan["iterations"]:
        file = io.StringIO()
        PlanRenderer(plan, Header(), Console(file=file, width=120)).draw(iteration)
        is_later = iteration["iteration"] >= came_back["iteration"]
        runs = any(entry["request"] == "R2" for entry in iteration["scheduled"])
        assert ("▒▒▒▒" in file.getvalue().partition("owed")[2]) == (runs and is_later)


@pytest.mark.parametrize("width", [80, 120, 160])
def test_no_cell_of_a_plan_is_cut_in_the_middle_of_a_word(width: int) -> None:
    for name in ("mixed-batch", "thrash", "kv-pressure", "priority", "long-prefill-interference", "n2"):
        log = read_log(get_scenario(name).log_path)
        cut = [line for line in drawn(log, width).splitlines() if re.search(r"\w…", line)]
        assert not cut, (name, cut)
