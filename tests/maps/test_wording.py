"""What is said in English is said in Chinese, with the same values; and Chinese keeps the lines of a map straight."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from string import Formatter

import pytest
from rich.cells import cell_len
from rich.console import Console

from minivllm.analysis.words_diff import DIFF_WORDS
from minivllm.analysis.words_explain import EXPLAIN_WORDS
from minivllm.analysis.words_why import WHY_WORDS
from minivllm.entrypoints.cli.map_view import KINDS, MapView
from minivllm.learning.wording import WORDING
from minivllm.maps.render.wrap import WrappedText, breaks
from minivllm.maps.words_maps import MAP_WORDS
from minivllm.scenarios.registry import get_scenario
from minivllm.trace.reader import read_log

TABLES: dict[str, Mapping[str, Mapping[str, str]]] = {
    "maps": MAP_WORDS,
    "lessons": WORDING,
    "why": WHY_WORDS,
    "explain": EXPLAIN_WORDS,
    "diff": DIFF_WORDS,
}
# Names that stay, and what Chinese needs no word for.
SAME = {"and", "of_tokens", "row_ttft_ms", "row_itl_ms", "row_boundary_2", "token", "unit_ms"}
WIDE = "[\u3000-\u9fff\uff00-\uffef]"


def values(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name}


@pytest.mark.parametrize("table", TABLES)
def test_both_languages_say_the_same_things(table: str) -> None:
    english, chinese = TABLES[table]["en"], TABLES[table]["zh"]
    assert list(english) == list(chinese)
    for key, template in english.items():
        assert values(template) == values(chinese[key]), key
        assert re.search(WIDE, chinese[key]) or not re.search("[a-z]{2}", template) or key in SAME, key


@pytest.mark.parametrize("width", [80, 120, 160])
@pytest.mark.parametrize("kind", KINDS)
def test_a_map_told_in_chinese_keeps_its_picture(kind: str, width: int) -> None:
    log = read_log(get_scenario("two-processes").log_path)

    def lines(lang: str) -> list[str]:
        out = io.StringIO()
        MapView(kind, "2", lang=lang).draw(log, Console(file=out, width=width))
        return [line.rstrip() for line in out.getvalue().splitlines()]

    english, chinese = lines("en"), lines("zh")
    assert max(map(cell_len, chinese)) <= width
    assert any(re.search(WIDE, line) for line in chinese)
    told = [line for line in chinese if re.search(WIDE, line)]
    # What is no sentence is the same picture, cell by cell.
    assert [line for line in chinese if line not in told] == [line for line in english if line in chinese]
    assert len(english) - len(chinese) < 8


def test_a_line_of_chinese_is_filled_and_does_not_begin_with_a_comma() -> None:
    text = "调度器先看运行中的请求，再看等待队列（waiting）里的请求；预算用完为止。"
    pieces = [text[a:b] for a, b in zip([0, *breaks(text, 24)], [*breaks(text, 24), None], strict=True)]
    assert "".join(pieces) == text
    assert all(18 <= cell_len(piece) <= 24 for piece in pieces[:-1])
    assert not any(piece[0] in "，；。）" or piece[-1] == "（" for piece in pieces)


def test_english_is_wrapped_as_ever() -> None:
    text = "A plan names requests, a model takes arrays."
    console = Console(width=20)
    assert [line.plain.rstrip() for line in WrappedText(text).wrap(console, 20)] == [
        "A plan names",
        "requests, a model",
        "takes arrays.",
    ]


def test_a_word_that_is_wider_than_the_line_is_cut() -> None:
    assert breaks("看 minivllm.core.scheduler", 10) == [2, 12, 22]
