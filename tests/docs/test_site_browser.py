"""The site in a real browser: headless Chromium, phone and desktop, light and dark, with keys, without a network."""

from __future__ import annotations

import importlib.util
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from minivllm.export.serve import FolderServer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
ARGS += ["--disable-component-update", "--disable-sync", "--disable-quic"]

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine: apt-get install chromium"),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="Playwright is not installed: pip install playwright"
    ),
]

PHONE, DESKTOP = 390, 1280
MOST_BYTES = 500_000  # of a page with all that it fetches, unpacked, without a viewer and before a search
INDEX = "/search/search_index.json"
PAGES = (
    "index.html",
    "viewer.html",
    "kernels.html",
    "batch.html",
    "architecture.html",
    "glossary.html",
    "source-map.html",
)
PAGES += ("lessons/plan.html", "reference/core.html", "maps.html", "cli.html", "zh/index.html", "zh/lessons/plan.html")


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with FolderServer(site) as server:
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield browser
        browser.close()


class Reader:
    """Somebody who reads the site, and what went wrong meanwhile."""

    def __init__(self, browser: Any, address: str, width: int, scheme: str) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.address, self.width = address, width
        self.wrong: list[str] = []
        self.fetched: set[str] = set()
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("request", self._asked)
        self.page.on("response", self._answered)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.text} {message.location.get('url', '')}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.wrong.append(request.url)

    def _answered(self, response: Any) -> None:
        if response.ok and "/assets/viewer-" not in response.url:
            self.fetched.add(urlsplit(response.url).path)

    def open(self, name: str, until: str = "networkidle") -> None:
        self.fetched.clear()
        self.page.goto(self.address + name, wait_until=until)

    def close(self) -> None:
        self.context.close()
        assert self.wrong == []


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "dark"), (DESKTOP, "light")])
def test_pages_fit_are_small_and_say_nothing_on_the_console(
    browser: Any, address: str, site: Path, width: int, scheme: str
) -> None:
    reader = Reader(browser, address, width, scheme)
    for name in PAGES:
        if not (site / name).exists():
            continue
        reader.open(name, "networkidle" if name == "index.html" else "load")
        assert reader.page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert reader.page.locator("h1").first.is_visible(), name
        background = reader.page.evaluate("getComputedStyle(document.body).backgroundColor")
        is_dark = sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(","))) < 384
        assert is_dark == (scheme == "dark"), name
        sizes = {file: (site / file.lstrip("/")).stat().st_size for file in reader.fetched}
        assert sum(sizes.values()) < MOST_BYTES, (name, sizes)
    reader.close()


def test_the_start_page_shows_an_iteration_and_steps_through_others(browser: Any, address: str) -> None:
    for width, shown, hidden in ((DESKTOP, "wide", "narrow"), (PHONE, "narrow", "wide")):
        reader = Reader(browser, address, width, "dark")
        reader.open("index.html")
        page = reader.page
        assert "[0, 1, 257, 260]" in page.locator(f"pre.mv-{shown}:visible").inner_text()
        assert page.locator(f"pre.mv-{hidden}:visible").count() == 0
        page.locator(".mv-scrubber input").focus()
        page.keyboard.press("ArrowRight")
        assert "iteration 14" in page.locator(f"pre.mv-{shown}:visible").inner_text()
        page.get_by_role("button", name="Previous iteration").press("Enter")
        page.get_by_role("button", name="Previous iteration").press("Enter")
        assert "iteration 12" in page.locator(f"pre.mv-{shown}:visible").inner_text()
        assert page.locator(".mv-scrubber output").inner_text() == "iteration 12"
        reader.close()


def test_without_javascript_the_start_page_shows_its_iteration_and_no_dead_control(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}index.html")
    assert page.locator("pre.mv-wide:visible").count() == 1
    assert page.locator(".mv-scrubber:visible").count() == 0
    context.close()


def test_the_first_key_leads_to_the_text(browser: Any, address: str) -> None:
    reader = Reader(browser, address, DESKTOP, "light")
    reader.open("scheduling.html")
    reader.page.keyboard.press("Tab")
    assert reader.page.evaluate("document.activeElement.textContent").strip() == "Skip to content"
    reader.page.keyboard.press("Enter")
    reader.page.wait_for_url("**/scheduling.html#how-one-step-is-planned")
    reader.close()


# What a reader types, and the page that should be among the first results.
QUESTIONS = {
    "slot mapping": "lessons/page_table",
    "why preempted": "why",
    "online softmax": "kernels",
    "long_prefill_token_threshold": "lessons/chunked_prefill",
    "prefix cache": "lessons/prefix_cache",
    "stop string": "lessons/stop_strings",
    "token budget": "glossary",
    "perfetto": "export",
    "null block": "glossary",
    "import contracts": "architecture",
    "hit rate": "explain",
    "allocate_slots": "source-map",
    "抢占": "source-map",
}
FIRST = 6  # pages


def test_the_index_is_fetched_when_somebody_searches(browser: Any, address: str) -> None:
    reader = Reader(browser, address, DESKTOP, "light")
    reader.open("why.html")
    assert INDEX not in reader.fetched
    with reader.page.expect_response(f"**{INDEX}"):
        reader.page.locator(".md-search__input").click()
    for shared in ("why.html?q=preempted", "why.html?h=preempted"):
        reader.open(shared)
        assert INDEX in reader.fetched
    reader.page.locator("mark").first.wait_for()
    reader.close()


# Whole questions in plain words: the page has to be among the first three.
PLAIN_QUESTIONS = {
    "why is my request waiting?": "why",
    "What is a block": "glossary",
    "how does it pick the next token": "sampling",
    "prefix cache not hit": "lessons/prefix_cache",
    "what happens when memory runs out": "kv-cache",
    "how do I run this without a gpu": "gpu",
    "how to install": "quickstart",
    "how to write my own scheduling policy": "scheduling",
    "run llama or qwen": "models",
    "how many requests fit at once": "kv-cache",
    "client disconnects": "lessons/abort_race",
    "temperature and top-p": "sampling",
    "does it support LoRA": "source-map",
    "how fast is it": "performance",
}
PLAIN_QUESTIONS_ZH = {
    "为什么请求会被抢占？": "lessons/preemption",
    "前缀缓存为什么没有命中": "lessons/prefix_cache",
    "怎么安装": "quickstart",
    "显存不够怎么办": "lessons/preemption",
    "下一个 token 是怎么选出来的": "lessons/logits_to_text",
    "取消请求 断开连接": "lessons/abort_race",
}


def found_by(page: Any, question: str, expected: str) -> list[str]:
    """The pages that the search shows for a question, once it shows the one that is expected."""
    for text in ("", question):
        page.locator(".md-search__input").fill(text)
        page.keyboard.press("End")  # it listens to keys
        if not text:
            page.locator(".md-search-result__item").first.wait_for(state="detached")
    page.locator(f".md-search-result__item a[href*='/{expected}.html']").first.wait_for(state="attached")
    found: list[str] = page.locator(".md-search-result__item").evaluate_all(
        "items => items.map(item => new URL(item.querySelector('a').href).pathname)"
    )
    return found


@pytest.mark.parametrize(
    ("below", "questions", "first"),
    [("", QUESTIONS, FIRST), ("", PLAIN_QUESTIONS, 3), ("zh/", PLAIN_QUESTIONS_ZH, 3)],
    ids=["words", "questions", "questions in Chinese"],
)
def test_the_search_answers(browser: Any, address: str, below: str, questions: dict[str, str], first: int) -> None:
    reader = Reader(browser, address, DESKTOP, "light")
    reader.open(f"{below}quickstart.html")
    reader.page.keyboard.press("/")
    reader.page.locator(".md-search__input:focus").wait_for()
    for question, expected in questions.items():
        found = found_by(reader.page, question, expected)
        assert f"/{below}{expected}.html" in found[:first], (question, found[:10])
    reader.close()


def test_an_embedded_viewer_opens_where_the_page_says_and_steps(browser: Any, address: str) -> None:
    from playwright.sync_api import expect

    reader = Reader(browser, address, DESKTOP, "light")
    reader.open("viewer.html")
    reader.page.get_by_text("kv-pressure", exact=True).first.click()
    frame = reader.page.frame_locator("iframe[src*='kv-pressure']")
    expect(frame.locator("#number")).to_have_text("7")
    frame.locator("#next").click()
    expect(frame.locator("#number")).to_have_text("8")
    reader.close()
