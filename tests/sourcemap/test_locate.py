"""Every symbol on the map is a line of a file."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import pytest

import minivllm
from minivllm.sourcemap import registry
from minivllm.sourcemap.locate import locate, shown
from minivllm.sourcemap.registry import MapEntry, entries, lookup, on_map


def all_entries() -> list[MapEntry]:
    for package in (
        "core",
        "engine",
        "entrypoints",
        "executor",
        "worker",
        "models",
        "attention",
        "sample",
        "layers",
        "kernels",
    ):
        module = importlib.import_module(f"minivllm.{package}")
        for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
            importlib.import_module(found.name)
    return [entry for entry in entries() if entry.module.startswith("minivllm.")]


@pytest.mark.parametrize("entry", all_entries(), ids=lambda entry: entry.ours)
def test_a_registered_symbol_is_where_the_map_says(entry: MapEntry) -> None:
    place = locate(entry.ours)
    assert place is not None
    path, line = place
    text = path.read_text(encoding="utf-8").splitlines()[line - 1]
    assert entry.qualname.rpartition(".")[2] in text
    assert text.lstrip().startswith(("def ", "class ", "async def "))
    assert shown(entry.ours).endswith(f":{line}")


@pytest.mark.parametrize("entry", all_entries(), ids=lambda entry: entry.ours)
def test_a_row_says_which_plane_and_process_and_what_stands_for_it_in_vllm(entry: MapEntry) -> None:
    assert entry.concept
    assert entry.plane in ("control", "data")
    assert entry.process in ("frontend", "engine_core", "worker")
    path, separator, symbol = entry.vllm.partition("::")
    assert path.startswith("vllm/")
    assert path.endswith(".py")
    assert separator
    assert symbol


def test_registering_returns_the_very_same_object(monkeypatch: pytest.MonkeyPatch) -> None:
    # In a copy of the table: a function of a test is no place for a probe.
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))

    def function() -> None: ...

    assert on_map("an idea", vllm="vllm/a.py::f")(function) is function
    symbol = f"{__name__}:{function.__qualname__}"
    assert lookup(symbol).concept == "an idea"


def test_unknown_symbols_have_no_place() -> None:
    for symbol in ("minivllm.nothing:f", "minivllm.core.scheduler:Scheduler.nothing", "minivllm.core.scheduler:"):
        assert locate(symbol) is None
        assert shown(symbol) == symbol


def test_a_line_is_that_of_the_definition() -> None:
    from minivllm.core.block_pool import BlockPool

    place: Any = locate("minivllm.core.block_pool:BlockPool.get_num_free_blocks")
    assert place[1] == inspect.getsourcelines(BlockPool.get_num_free_blocks)[1]
    assert place[0].is_relative_to(next(iter(minivllm.__path__)))
