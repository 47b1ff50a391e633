"""A value of a JSON text is found on its line, however the text is written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minivllm.scenarios.json_place import line_of, line_of_repeated_key

_LEAVES = st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text()
_DOCUMENTS = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


def numbered(value: Any, numbers: Iterator[int]) -> Any:
    """The same shape, with a number of its own at every leaf."""
    if isinstance(value, list):
        return [numbered(inner, numbers) for inner in value]
    if isinstance(value, dict):
        return {key: numbered(inner, numbers) for key, inner in value.items()}
    return f"leaf {next(numbers)} here"


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else None
    if items is None:
        yield path, value
    for key, inner in items or ():
        yield from leaves(inner, (*path, key))


@given(document=_DOCUMENTS, indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans())
def test_every_value_is_found_on_its_line(document: Any, indent: int | None, ascii_only: bool) -> None:
    document = numbered(document, itertools.count())
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    lines = text.split("\n")
    for path, leaf in leaves(document):
        assert leaf in lines[line_of(text, path) - 1]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ([], 1),
        (["a"], 2),
        (["b"], 3),
        (["b", 0], 4),
        (["b", 1, "c"], 6),
        (["b", 1, "missing"], 5),
        (["b", 7], 3),
        (["b", "not a list"], 3),
        (["a", "not an object"], 2),
        (["missing"], 1),
    ],
)
def test_what_is_missing_is_found_where_it_should_be(path: list[str | int], line: int) -> None:
    text = '{\n"a": 1,\n"b": [\n 5,\n {"d": "x]}",\n  "c": 2}\n]\n}'
    json.loads(text)
    assert line_of(text, path) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"a": 1,\n"a": 2}', 2),
        ('{"a": {"a": 1},\n"b": [{"a": 1}, {"a": 1}],\n"b": 1}', 3),
        ('{"x\\"": ":",\n"y": "{[",\n"x\\u0022": 1}', 3),
        ('{"a": 1}', 1),
    ],
)
def test_the_line_of_a_key_that_stands_twice(text: str, line: int) -> None:
    assert line_of_repeated_key(text) == line
