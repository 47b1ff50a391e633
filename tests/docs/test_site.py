"""The built site: links and anchors lead somewhere, nothing comes from elsewhere, pages are small, search finds."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from minivllm.sourcemap.reference import PACKAGES
from tests.docs.generators import DOCS, ROOT, generator

MOST_BYTES = 500_000  # of a page with all that it fetches, unpacked, without a viewer and before a search
STYLES_AND_SCRIPTS = (".css", ".js", ".svg", ".png")
# What a browser fetches by itself, as opposed to what a reader may click on.
FETCHED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}


class Page(HTMLParser):
    """The ids of a page, and where it leads: (tag, attribute, address)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[str, str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.links.append((tag, name, value))


@cache
def parsed(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def pages(site: Path) -> list[Path]:
    """What MkDocs wrote; viewers have tests of their own."""
    return [path for path in sorted(site.rglob("*.html")) if "assets" not in path.parts]


def links(site: Path) -> Iterator[tuple[Path, str, str, str]]:
    for path in pages(site):
        for tag, name, address in parsed(path).links:
            yield path, tag, name, address


def test_every_link_and_anchor_leads_somewhere(site: Path) -> None:
    has_chinese = (site / "zh").exists()
    dead = set()
    for path, _, _, address in links(site):
        parts = urlsplit(address)
        if parts.scheme or parts.netloc or (not has_chinese and "zh/" in parts.path):
            continue
        # 404.html is shown at any address, so its links begin at the top of its site.
        below = parts.path.lstrip("/") if path.name == "404.html" else parts.path
        target = (path.parent / unquote(below)).resolve() if below else path
        target = target / "index.html" if target.is_dir() else target
        is_page = target.suffix == ".html" and "assets" not in target.parts
        anchor = unquote(parts.fragment) if is_page and not parts.fragment.startswith("__") else ""
        if not target.exists() or (anchor and anchor not in parsed(target).ids):
            dead.add((str(path.relative_to(site)), address))
    assert sorted(dead) == []


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    fetched = [(p.name, address) for p, tag, name, address in links(site) if (tag, name) in FETCHED]
    assert [found for found in fetched if urlsplit(found[1]).netloc] == []
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style.name


def test_pages_are_small_with_all_that_they_fetch(site: Path) -> None:
    sizes = {}
    for path in pages(site):
        fetched = {urlsplit(address).path for tag, name, address in parsed(path).links if (tag, name) in FETCHED}
        below = "" if path.name == "404.html" else path.parent
        files = {(site / below / name.lstrip("/")).resolve() for name in fetched if name.endswith(STYLES_AND_SCRIPTS)}
        sizes[str(path.relative_to(site))] = sum(file.stat().st_size for file in files | {path.resolve()})
    assert len(sizes) > 100
    assert {name: size for name, size in sizes.items() if size > MOST_BYTES} == {}


def test_indentation_goes_and_what_is_shown_stays() -> None:
    lighter = generator("site").without_indentation
    assert (
        lighter("<p>\n    a\n\n  b</p>\n  <pre>x\n    y\n</pre>\n  <p>") == "<p>\na\nb</p>\n<pre>x\n    y\n</pre>\n<p>"
    )


def test_every_page_of_the_menu_is_there_also_as_plain_text(site: Path) -> None:
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    names = [name for _, _, name in generator("site").nav()]
    written = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if "zh" not in path.relative_to(DOCS).parts}
    assert set(names) == written
    for name in names:
        assert (site / name.replace(".md", ".html")).exists()
        assert "\n# " in "\n" + (site / name).read_text(encoding="utf-8")
        assert re.search(rf"^- \[.+\]\({re.escape(name)}\): .+", listed, re.M), name


def public_classes() -> Iterator[str]:
    for package in PACKAGES:
        for file in sorted((ROOT / "minivllm" / package).rglob("*.py")):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if any(part.startswith("_") for part in module.split(".")):
                continue
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and ast.get_docstring(node):
                    yield f"{module}.{node.name}"


def test_the_switch_of_languages_leads_to_the_same_page_where_there_is_one(site: Path) -> None:
    for page, lang, link in (
        ("lessons/preemption.html", "zh", "../zh/lessons/preemption.html"),
        ("zh/lessons/preemption.html", "en", "../../lessons/preemption.html"),
        ("zh/index.html", "en", "../index.html"),
        ("architecture.html", "zh", "zh/index.html"),  # there is no translation: to the start page
    ):
        assert f'<a href="{link}" hreflang="{lang}"' in (site / page).read_text(encoding="utf-8"), page


def test_the_reference_tells_every_public_class(site: Path) -> None:
    told = set().union(*(parsed(path).ids for path in (site / "reference").glob("*.html")))
    every = list(public_classes())
    assert len(every) > 200
    assert [name for name in every if name not in told] == []


# A question as a reader would type it, and the page that should be among the first results.
QUESTIONS = [
    ("slot mapping", "lessons/page_table.html"),
    ("preempted", "lessons/preemption.html"),
    ("online softmax", "kernels.html"),
    ("long_prefill_token_threshold", "lessons/chunked_prefill.html"),
    ("prefix cache hit rate", "explain.html"),
    ("hold back stop string", "lessons/stop_strings.html"),
    ("PIECEWISE graph", "articles.html"),
    ("import contracts", "architecture.html"),
    ("null block", "glossary.html"),
    ("ui.perfetto.dev", "export.html"),
]


@pytest.mark.parametrize(("query", "expected"), QUESTIONS, ids=[query for query, _ in QUESTIONS])
def test_the_index_of_the_search_has_the_words_on_the_right_page(site: Path, query: str, expected: str) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert index["config"]["lang"] == ["en", "zh"]
    by_page: dict[str, str] = {}
    for entry in index["docs"]:
        name = entry["location"].partition("#")[0]
        by_page[name] = by_page.get(name, "") + f" {entry['title']} {entry['text']}".lower()
    assert all(word in by_page[expected] for word in query.lower().split())


def test_chinese_can_be_found(site: Path) -> None:
    """Without word segmentation the search finds no Chinese, and says nothing about it."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    separator = re.compile(index["config"]["separator"])
    texts = [entry["text"] for entry in index["docs"] if "预算" in entry["text"].replace("\u200b", "")]
    assert texts, "the source map has this word"
    assert any("预算" in separator.split(re.sub(r"<[^>]*>", " ", text)) for text in texts)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zensical") is None, reason="Zensical is not installed: pip install zensical")
def test_the_successor_of_the_theme_builds_the_same_pages(site: Path, tmp_path: Path) -> None:
    for name in ("mkdocs.yml", "docs", "minivllm", "kernels", "walkthroughs"):
        source = ROOT / name
        shutil.copytree(source, tmp_path / name, symlinks=True) if source.is_dir() else shutil.copy(source, tmp_path)
    subprocess.run(["zensical", "build", "-f", "mkdocs.yml"], cwd=tmp_path, check=True, capture_output=True)
    other = tmp_path / "site"
    ours = {path.relative_to(site) for path in pages(site) if "zh" not in path.relative_to(site).parts}
    assert {path.relative_to(other) for path in pages(other)} == ours
    for name in sorted(ours):
        gone = {anchor for anchor in parsed(site / name).ids if not anchor.startswith("__")} - parsed(other / name).ids
        assert {anchor for anchor in gone if f"#{anchor}" in all_links(site)} == set(), name


@cache
def all_links(site: Path) -> frozenset[str]:
    """The anchors that some page leads to."""
    return frozenset(f"#{urlsplit(address).fragment}" for _, _, _, address in links(site))
