"""Pages in Chinese are those in English with other words: as many headings, the same programs, the same commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docs.generators import DOCS, ROOT, generator, page, without_line_numbers

ZH = DOCS / "zh"
# What a reader in Chinese begins with.
FIRST = ("index.md", "quickstart.md", "maps.md", "glossary.md", "lessons/index.md")
NAMES = sorted(str(path.relative_to(ZH)) for path in ZH.glob("**/*.md") if path.name != "english-only.md")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


def headings(text: str) -> list[tuple[int, str]]:
    """Level and anchor of each heading; "" for one that MkDocs names."""
    plain = _FENCED.sub("", text)
    return [(len(marks), anchor) for marks, anchor in re.findall(r"^(#+) [^{\n]*(?:\{ #([\w-]+) \})?$", plain, re.M)]


def blocks(text: str) -> list[tuple[str, str]]:
    """All of what is to be typed; the command of what is printed."""
    found = []
    for word, body in _FENCED.findall(text):
        first = body.splitlines()[0]
        told = body if word in ("bash", "python") else first if first.startswith("$") else ""
        found.append((word, told.replace(" --lang zh", "")))
    return found


@pytest.mark.parametrize("name", FIRST)
def test_what_one_begins_with_is_there(name: str) -> None:
    assert name in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_the_parts_of_the_one_in_english(name: str) -> None:
    english, chinese = page(name), page(f"zh/{name}")
    ours, theirs = headings(english), headings(chinese)
    assert [level for level, _ in theirs] == [level for level, _ in ours]
    assert blocks(chinese) == blocks(english)
    assert all(anchor for level, anchor in theirs if level > 1) or name == "lessons/index.md"
    rows = [len(re.findall(r"^\|", text, re.M)) for text in (english, chinese)]
    assert rows[0] == rows[1]
    assert chinese.count("??? question") == english.count("??? question")


def test_what_is_in_english_only_is_listed() -> None:
    untranslated = generator("untranslated")
    names = [name for _, _, name in untranslated.untranslated()]
    assert page("zh/english-only.md") == untranslated.render(), (
        f"run: PYTHONPATH=. python docs/generate_untranslated.py; in English only: {names}"
    )


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.zh.yml").read_text(encoding="utf-8")
    assert [name for name in NAMES if name not in menu] == []


@pytest.mark.parametrize("name", [*NAMES, "english-only.md"])
def test_links_to_the_english_site_lead_to_a_page(name: str) -> None:
    for target in re.findall(r'href="([^"#]+)', page(f"zh/{name}")):
        assert (ZH / target).with_suffix(".md").resolve().exists(), target


def test_the_start_page_and_the_glossary_are_up_to_date() -> None:
    start = page("zh/index.md")
    assert without_line_numbers(generator("start").filled(start, "zh")) == without_line_numbers(start), (
        "run: PYTHONPATH=. python docs/generate_start.py"
    )
    assert page("zh/glossary.md") == generator("glossary").render_zh(), "run: python docs/generate_glossary.py"
    assert [term.key for term in generator("glossary").terms() if not (term.zh_term and term.zh_meaning)] == []


@pytest.fixture(scope="module")
def index(site: Path) -> list[dict[str, str]]:
    """The search index of the built site."""
    pytest.importorskip("jieba")
    found: list[dict[str, str]] = json.loads((site / "zh/search/search_index.json").read_text(encoding="utf-8"))["docs"]
    return found


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("前缀", "缓存"), "lessons/prefix_cache.html"),
        (("抢占",), "lessons/preemption.html"),
        (("调度",), "glossary.html"),
        (("进程", "地图"), "maps.html"),
        (("停止",), "lessons/stop_strings.html"),
    ],
)
def test_the_search_finds_chinese(index: list[dict[str, str]], words: tuple[str, ...], where: str) -> None:
    """Words of Chinese stand between marks that the separator knows; without jieba a sentence would be one word."""
    separator = re.compile("[\\s\u200b\u3000\\-、。，．？！；<>/]+")
    hits = [
        entry["location"]
        for entry in index
        if set(words) <= set(separator.split(entry["title"])) | set(separator.split(entry["text"]))
    ]
    assert any(hit.startswith(where) for hit in hits), hits


def test_the_menu_of_languages_leads_from_one_site_to_the_other() -> None:
    configs = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("mkdocs.yml", "mkdocs.zh.yml")}
    assert "link: ./zh/index.html" in configs["mkdocs.yml"]
    assert "INHERIT: mkdocs.yml" in configs["mkdocs.zh.yml"]
    assert "language: zh" in configs["mkdocs.zh.yml"]
    assert Path(ZH / "assets/site.css").read_text(encoding="utf-8") == page("assets/site.css")
