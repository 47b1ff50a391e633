"""A picture in a file is the picture of the terminal, cell by cell, with nothing loaded from anywhere."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from minivllm.maps.process import process_map
from minivllm.maps.render.canvas import Row
from minivllm.maps.render.html import to_html
from minivllm.maps.render.process import ProcessRenderer
from minivllm.maps.render.runs import COLOUR_NAMES, Run, clusters, drawn
from minivllm.maps.render.svg import to_svg
from tests.maps.hand_made import gpu_log

CHINESE = "从前有一座山, said R1: 山里有座庙。"
CELL, MARGIN, LINE = 8.4, 14, 18
SVG = "{http://www.w3.org/2000/svg}"


def chinese(console: Console) -> None:
    console.print(Text(CHINESE, style="bold cyan"))
    console.print(Text("▒▒██▋ 12 of 20 tokens é e\u0301 <&>", style="dim"))
    console.print(Text.assemble(("反白", "reverse"), (" and", "bold"), (" 更多", "green")))


def process(console: Console) -> None:
    log = gpu_log().log()
    document = process_map(log)
    ProcessRenderer(document, log.header, console).draw(document["iterations"][1])


PICTURES: dict[str, Callable[[Console], None]] = {"chinese": chinese, "process": process}


def cells_of(lines: list[list[Run]]) -> list[dict[int, str]]:
    """What stands in each cell of each line."""
    screen = []
    for line in lines:
        cells: dict[int, str] = {}
        for run in line:
            column = run.column
            for part, width in clusters(run.text):
                if part != " ":
                    cells[column] = part
                column += width
        screen.append(cells)
    return screen


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("width", [80, 120, 160])
def test_an_svg_has_every_character_in_its_cell(name: str, width: int) -> None:
    lines = drawn(PICTURES[name], width)
    root = ET.fromstring(to_svg(lines, "a title", width))
    found: list[dict[int, str]] = [{} for _ in lines]
    for text in root.iter(f"{SVG}text"):
        column = (float(text.attrib["x"]) - MARGIN) / CELL
        row = (float(text.attrib["y"]) - MARGIN) // LINE
        content = text.text or ""
        assert column == pytest.approx(round(column), abs=0.01), "text begins at a cell"
        assert float(text.attrib["textLength"]) == pytest.approx(cell_len(content) * CELL, abs=0.01), content
        place = round(column)
        for part, cells in clusters(content):
            if part != " ":
                found[int(row)][place] = part
            place += cells
    blocks = "█▓▒░▏▎▍▌▋▊▉"
    expected = [{c: part for c, part in line.items() if part not in blocks} for line in cells_of(lines)]
    assert found == expected


def test_every_wide_character_is_placed_by_itself_over_two_cells() -> None:
    root = ET.fromstring(to_svg(drawn(chinese, 80), "a title", 80))
    texts = {t.text: t for t in root.iter(f"{SVG}text")}
    for character in "从前有一座山里庙。反白更多":
        assert float(texts[character].attrib["textLength"]) == pytest.approx(2 * CELL)
    assert not any(len(t or "") > 1 and any(cell_len(c) == 2 for c in t or "") for t in texts)


def test_blocks_of_a_bar_are_rectangles_without_gaps() -> None:
    root = ET.fromstring(to_svg(drawn(chinese, 80), "a title", 80))
    rects = [r for r in root.iter(f"{SVG}rect") if "d" in r.attrib["class"].split()]
    spans = [(float(r.attrib["x"]), float(r.attrib["width"])) for r in rects]
    assert spans == [
        (MARGIN, pytest.approx(2 * CELL)),
        (pytest.approx(MARGIN + 2 * CELL, abs=0.01), pytest.approx(2 * CELL)),
        (pytest.approx(MARGIN + 4 * CELL, abs=0.01), pytest.approx(5 / 8 * CELL)),
    ]


def test_files_load_nothing_and_know_both_backgrounds() -> None:
    lines = drawn(process, 120)
    for text in (to_svg(lines, "a title", 120), to_html(lines, "a title")):
        assert re.findall(r"https?://[^\"]*", text) in ([], ["http://www.w3.org/2000/svg"])
        assert not re.search(r"@import|url\(|<script|<link|src=", text)
        assert "prefers-color-scheme:dark" in text
        assert "a title" in text


def test_files_are_the_same_whatever_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def both() -> tuple[str, str]:
        lines = drawn(process, 120)
        return to_svg(lines, "t", 120), to_html(lines, "t")

    before = both()
    for name, value in {"NO_COLOR": "1", "COLUMNS": "40", "TERM": "dumb", "FORCE_COLOR": "", "LINES": "3"}.items():
        monkeypatch.setenv(name, value)
    assert both() == before


def test_no_path_of_this_machine_gets_into_a_file() -> None:
    lines = drawn(process, 160)
    assert "file://" not in to_svg(lines, "t", 160) + to_html(lines, "t")


class _Text(HTMLParser):
    """What a page shows in its <pre>, and the characters in boxes of two cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.wide, self._in_pre, self._in_wide = "", "", False, False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_pre = self._in_pre or tag == "pre"
        self._in_wide = tag == "span" and dict(attrs).get("class") == "w"

    def handle_endtag(self, tag: str) -> None:
        self._in_pre = self._in_pre and tag != "pre"

    def handle_data(self, data: str) -> None:
        if self._in_pre:
            self.text += data
            self.wide += data if self._in_wide else ""
        self._in_wide = False


@pytest.mark.parametrize("name", PICTURES)
def test_an_html_page_shows_the_same_lines(name: str) -> None:
    lines = drawn(PICTURES[name], 100)
    shown = _Text(to_html(lines, "t")).text.split("\n")
    for line, cells in zip(shown, cells_of(lines), strict=True):
        column, found = 0, {}
        for part, width in clusters(line):
            if part != " ":
                found[column] = part
            column += width
        assert found == cells


def test_a_wide_character_gets_two_cells_in_html() -> None:
    assert _Text(to_html(drawn(chinese, 100), "t")).wide == "".join(c for c in CHINESE if cell_len(c) == 2) + "反白更多"


def test_colours_and_looks_survive() -> None:
    line, *_, reversed_line = drawn(chinese, 100)
    assert (line[0].colour, line[0].bold, line[0].column) == ("cyan", True, 0)
    assert [run.column for run in reversed_line] == [0, 4, 8]
    assert [run.reverse for run in reversed_line] == [True, False, False]
    assert len(set(COLOUR_NAMES)) == 16


def test_a_row_covers_what_was_there_and_never_half_a_character() -> None:
    row = Row(8)
    row.put(0, "山里有")
    row.put(3, "x")
    assert row.text().plain == "山 x有"
    row.put(7, "庙")
    assert row.text().plain == "山 x有", "what does not fit is left out"
    assert cell_len(row.text().plain) == 6
