"""The source map is whole: every idea once, every symbol there, every decorated function with its words."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from minivllm.sourcemap.locate import locate
from minivllm.sourcemap.registry import entries
from minivllm.sourcemap.resolve import resolve
from minivllm.sourcemap.rows import ARTICLES, NEWER, NUM_IDEAS, PINNED, Row, decorated_entries, not_built, rows
from minivllm.sourcemap.signatures import owner_of, pinned_signatures, pinned_symbols, render
from minivllm.sourcemap.vllm_source import open_vllm
from tests.sourcemap.test_locate import all_entries

PYTHON = os.environ.get("MINIVLLM_VLLM_PYTHON")


def test_every_idea_of_the_articles_is_built_or_said_not_to_be() -> None:
    built = {number for row in rows() for number in row.numbers}
    missing = [number for row in not_built() for number in row.numbers]
    assert not built & set(missing)
    assert built | set(missing) == set(range(1, NUM_IDEAS + 1))
    assert max(Counter(missing).values()) == 1


def test_no_two_rows_have_one_name() -> None:
    names = Counter(row.concept for row in (*rows(), *not_built()))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.concept)
def test_a_row_is_complete_and_its_symbol_is_a_line_of_our_source(row: Row) -> None:
    assert row.ours is not None
    place = locate(row.ours)
    assert place is not None, f"{row.ours} is not there any more"
    path, line = place
    assert row.ours.rpartition(".")[2].rpartition(":")[2] in path.read_text(encoding="utf-8").splitlines()[line - 1]
    assert row.chinese, f"add a line for {row.concept!r} to minivllm/sourcemap/concepts.tsv"
    for value in (row.says, row.layer, row.domain, row.owner):
        assert value
    assert row.process in ("frontend", "engine_core", "worker", "reader")
    assert row.plane in ("control", "data")
    assert set(row.articles) <= set(ARTICLES)
    assert bool(row.numbers) or not row.articles
    for symbol in filter(None, row.vllm.values()):
        assert symbol.startswith("vllm/")
        assert "::" in symbol


@pytest.mark.parametrize("row", not_built(), ids=lambda row: row.concept)
def test_what_is_not_built_is_named_in_both_languages(row: Row) -> None:
    assert row.ours is None
    assert row.chinese
    assert row.numbers
    assert row.articles or row.vllm[PINNED] or row.vllm[NEWER]


def test_searching_the_files_for_decorators_finds_what_importing_registers() -> None:
    found = {entry.ours: entry for entry, _ in decorated_entries()}
    assert found == {entry.ours: entry for entry in all_entries()}
    assert len(found) == len([entry for entry in entries() if entry.module.startswith("minivllm.")])


def test_the_first_sentence_of_a_decorated_function_is_that_of_its_docstring() -> None:
    from minivllm.sourcemap.locate import definition

    for entry, doc in decorated_entries():
        found = definition(entry.ours)
        assert found is not None
        assert doc == found.doc, entry.ours


def test_signatures_are_known_of_every_symbol_and_of_its_class() -> None:
    wanted = {*pinned_symbols(), *map(owner_of, pinned_symbols())} - {""}
    assert set(pinned_signatures()) == {symbol for symbol in wanted if "::" in symbol}


def test_reading_the_map_imports_neither_torch_nor_the_engine() -> None:
    code = (
        "import sys; from minivllm.sourcemap.search import search; assert search('scheduler'); "
        "print([m for m in sys.modules if m.partition('.')[0] in ('torch', 'numpy', 'msgspec', 'vllm')"
        " or m.startswith(('minivllm.core', 'minivllm.engine', 'minivllm.worker'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.skipif(not PYTHON, reason="MINIVLLM_VLLM_PYTHON names no Python with vLLM 0.27.1")
def test_every_symbol_is_in_the_real_vllm_and_looks_as_we_wrote_down() -> None:
    code = "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])"
    folder = subprocess.run([str(PYTHON), "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    source = open_vllm(folder)
    assert source.version == PINNED
    assert [symbol for symbol in pinned_symbols() if resolve(source, symbol) is None] == []
    lines = (line.split("\t") for line in render(source).splitlines())
    assert {symbol: (kind, frozenset(names.split())) for symbol, kind, names in lines} == pinned_signatures()
