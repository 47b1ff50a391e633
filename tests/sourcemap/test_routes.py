"""A reading route is met in its order by one real request."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

import pytest

from minivllm.sourcemap.locate import PACKAGE
from minivllm.sourcemap.routes import ROUTES


@pytest.fixture(scope="module")
def met(tiny_model: Path) -> list[tuple[str, str, int]]:
    """File, qualified name and first line of every function of ours, in the order of their first calls."""
    from minivllm import LLM, SamplingParams

    llm = LLM(model=str(tiny_model))
    calls: dict[CodeType, None] = {}

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            calls.setdefault(frame.f_code)

    sys.setprofile(profile)
    try:
        llm.generate([{"prompt_token_ids": list(range(2, 40))}], SamplingParams(max_tokens=4, ignore_eos=True))
    finally:
        sys.setprofile(None)
    package = str(PACKAGE.resolve())
    return [(code.co_filename, code.co_qualname, code.co_firstlineno) for code in calls if package in code.co_filename]


def test_there_are_five_routes() -> None:
    assert list(ROUTES) == ["request", "step", "kv", "runner", "output"]


@pytest.mark.parametrize("name", ROUTES)
def test_a_request_meets_every_stop_in_order(name: str, met: list[tuple[str, str, int]]) -> None:
    order = [(Path(file).resolve(), qualname) for file, qualname, _ in met]
    stops = [(stop.row.path.resolve(), stop.ours.partition(":")[2]) for stop in ROUTES[name].stops if stop.row.path]
    places = [order.index(stop) for stop in stops]
    assert places == sorted(places)


@pytest.mark.parametrize("name", ROUTES)
def test_a_breakpoint_is_a_line_inside_the_function(name: str, met: list[tuple[str, str, int]]) -> None:
    for stop in ROUTES[name].stops:
        defined = stop.row.defined
        assert defined is not None
        assert defined.body_line > defined.line
        assert stop.question.rstrip(".")
        assert stop.row.vllm["0.27.1"]
