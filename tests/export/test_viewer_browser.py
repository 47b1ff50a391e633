"""The viewer in a real browser: headless Chromium, with the network shut."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minivllm.export.viewer import viewer_document, viewer_page
from minivllm.scenarios.registry import get_scenario
from minivllm.trace.reader import Log, read_log, read_window
from tests.export.test_viewer import EVIL, evil_log
from tests.trace.workloads import mixed_workload, simulated_log

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
ARGS += ["--disable-component-update", "--disable-sync"]

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine: apt-get install chromium"),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="Playwright is not installed: pip install playwright"
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield browser
        browser.close()


class Opened:
    """A page, and what went wrong in it."""

    def __init__(self, browser: Any, path: Path, fragment: str = "", width: int = 1280, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("request", self._asked)
        self.page.goto(f"file://{path}{fragment}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith("file://"):
            self.wrong.append(request.url)

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())

    def wait_for(self, number: str) -> None:
        """Until this iteration is shown."""
        from playwright.sync_api import expect

        expect(self.page.locator("#number")).to_have_text(number)

    def close(self) -> None:
        self.context.close()
        assert self.wrong == []


def written(log: Log, look_at: int, folder: Path) -> Path:
    path = folder / "run.html"
    last = max(log.by_step())
    path.write_text(viewer_page(viewer_document(log, look_at, last)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(read_log(get_scenario("mixed-batch").log_path), 13, tmp_path_factory.mktemp("mixed"))


def test_it_opens_with_the_iteration_that_is_best_looked_at(browser: Any, mixed: Path) -> None:
    opened = Opened(browser, mixed)
    assert opened.text("#number") == "13"
    assert "R3 waits: the token budget is spent (260 of 260)." in opened.text("#story").replace("\n", " ")
    assert "512–767" in opened.text("#map")
    assert "core/scheduler.py:" in opened.text("#map")
    opened.close()


def test_keys_move_through_iterations_and_maps(browser: Any, mixed: Path) -> None:
    opened = Opened(browser, mixed)
    press = opened.page.keyboard.press
    press("ArrowRight")
    assert opened.text("#number") == "14"
    press("Home")
    assert opened.text("#number") == "0"
    press("End")
    assert opened.text("#number") == "21"
    for key, title in zip("12345", ("Plan", "State", "Processes", "Hot path", "Timeline"), strict=True):
        press(key)
        assert opened.page.locator("#map h2").first.inner_text() == title or key == "1"
    press("?")
    assert opened.page.locator("#keys").is_visible()
    press("Escape")
    assert not opened.page.locator("#keys").is_visible()
    opened.close()


def test_the_slider_and_the_strip_scrub(browser: Any, mixed: Path) -> None:
    opened = Opened(browser, mixed)
    opened.page.eval_on_selector("#slider", "s => { s.value = 3; s.dispatchEvent(new Event('input')) }")
    assert opened.text("#number") == "3"
    opened.page.locator("#strip span").nth(16).click()
    assert opened.text("#number") == "16"
    opened.page.locator("#play").click()
    opened.wait_for("17")
    opened.page.locator("#play").click()
    opened.close()


def test_an_address_leads_to_what_was_seen(browser: Any, mixed: Path) -> None:
    opened = Opened(browser, mixed, "#iteration=15&map=state&request=R1")
    assert opened.text("#number") == "15"
    assert opened.page.locator("#tab-state").get_attribute("aria-selected") == "true"
    assert "Following R1" in opened.text("#card").replace("\n", " ")
    opened.page.keyboard.press("ArrowLeft")
    opened.page.keyboard.press("3")
    assert opened.page.url.endswith("#iteration=14&map=process&request=R1")
    opened.page.evaluate("location.hash = 'iteration=999&map=nonsense&request=R77'")
    opened.wait_for("21")
    assert not opened.page.locator("#card").is_visible()
    opened.close()


def test_a_click_follows_a_request(browser: Any, mixed: Path) -> None:
    opened = Opened(browser, mixed)
    opened.page.locator("#requests [data-request=R1]").click()
    assert "request=R1" in opened.page.url
    assert opened.page.locator("#requests [data-request=R1]").get_attribute("aria-pressed") == "true"
    assert opened.page.locator("#map tr.other").count() > 0
    opened.page.keyboard.press("Escape")
    assert opened.page.locator("#map tr.other").count() == 0
    opened.close()


@pytest.mark.parametrize(
    ("query", "found", "shown"),
    [
        ("prepare_inputs", "GPUModelRunner.prepare_inputs", "map=plan"),
        ("R3 waits budget", "the token budget is spent", "iteration=13"),
        ("find the coin", "R1", "request=R1"),
        ("#300", "#300 in the pool", "map=state"),
    ],
)
def test_a_search_leads_there(browser: Any, mixed: Path, query: str, found: str, shown: str) -> None:
    opened = Opened(browser, mixed)
    opened.page.keyboard.press("/")
    opened.page.keyboard.type(query)
    assert found in opened.page.locator("#found [role=option]").first.inner_text()
    opened.page.keyboard.press("Enter")
    assert shown in opened.page.url
    opened.close()


@pytest.mark.parametrize("map_name", ["plan", "state", "process", "hot", "timeline"])
@pytest.mark.parametrize("name", ["mixed-batch", "two-processes", "simulated"])
def test_a_phone_shows_every_map_without_scrolling_sideways(
    browser: Any, tmp_path: Path, name: str, map_name: str
) -> None:
    simulated = simulated_log(mixed_workload()) if name == "simulated" else None
    path = written(read_log(simulated or get_scenario(name).log_path), 3, tmp_path)
    opened = Opened(browser, path, f"#map={map_name}", width=390)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 390
    for _ in range(4):
        opened.page.keyboard.press("ArrowRight")
        assert opened.page.evaluate("document.documentElement.scrollWidth") == 390
    opened.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_what_was_found_is_on_the_screen(browser: Any, mixed: Path, width: int) -> None:
    opened = Opened(browser, mixed, width=width)
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("schedule")
    box = opened.page.locator("#found").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    opened.close()


def test_light_and_dark_follow_the_system_and_the_button(browser: Any, mixed: Path) -> None:
    opened = Opened(browser, mixed, scheme="dark")

    def paper() -> str:
        return str(opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    dark = paper()
    opened.page.keyboard.press("t")
    light = paper()
    assert light != dark
    opened.page.keyboard.press("t")
    assert paper() == dark
    opened.close()


CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("map_name", ["plan", "state", "process", "hot"])
def test_text_can_be_read(browser: Any, mixed: Path, scheme: str, map_name: str) -> None:
    opened = Opened(browser, mixed, f"#map={map_name}&iteration=14", scheme=scheme)
    assert opened.page.evaluate(CONTRAST) == []
    opened.close()


def test_every_control_has_a_name_and_can_be_reached(browser: Any, mixed: Path) -> None:
    opened = Opened(browser, mixed)
    nameless = opened.page.evaluate(
        "[...document.querySelectorAll('button, input')]"
        ".filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim())).map((e) => e.outerHTML)"
    )
    assert nameless == []
    seen = set()
    for _ in range(14):
        opened.page.keyboard.press("Tab")
        seen.add(opened.page.evaluate("document.activeElement.id"))
    assert {"search", "theme", "help", "back", "play", "next", "slider"} <= seen
    opened.close()


def test_a_prompt_is_shown_and_not_run(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, written(evil_log(), 0, tmp_path), "#request=R0&iteration=1")
    assert opened.page.title() != "owned"
    assert EVIL.split("\u2028")[0] in opened.text("#card")
    assert opened.page.locator("img").count() == 0
    opened.close()


def test_a_window_says_that_it_is_one(browser: Any, tmp_path: Path) -> None:
    log = read_window(get_scenario("kv-pressure").log_path, 9, 14)
    path = tmp_path / "window.html"
    path.write_text(viewer_page(viewer_document(log, 12, 21)), encoding="utf-8")
    opened = Opened(browser, path)
    assert "iterations 9 to 14 of 0 to 21" in opened.text("#notes")
    assert opened.text("#number") == "12"
    for key in "2345":
        opened.page.keyboard.press(key)
    opened.close()


def test_the_state_is_drawn_from_the_whole_pool(browser: Any, mixed: Path) -> None:
    from minivllm.maps.state import state_map

    opened = Opened(browser, mixed, "#map=state&iteration=16")
    [entry] = state_map(read_log(get_scenario("mixed-batch").log_path), [16])["iterations"]
    drawn = opened.page.eval_on_selector_all(".pool .cell", "cells => cells.map((c) => c.className)")
    assert len(drawn) == len(entry["pool"])
    for block, looks in zip(entry["pool"], drawn, strict=True):
        assert block["state"] in looks.split()
        assert ("changed" in looks.split()) == block["changed"]
    opened.close()
