"""Owns finding the line of a JSON text at which a value stands, so that a mistake in a file can be pointed at."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

_SPACE = " \t\n\r"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:]')
_decode = json.JSONDecoder().raw_decode


def line_of(text: str, path: Sequence[str | int]) -> int:
    """Line, from 1, of the value at a path of keys and indices; where a step is missing, of what should hold it.

    Args:
        text: Valid JSON.
        path: For instance ["requests", 3, "max_tokens"].
    """
    place = _skip_space(text, 0)
    for step in path:
        found = _member(text, place, step)
        if found is None:
            break
        place = found
    return text.count("\n", 0, place) + 1


def line_of_repeated_key(text: str) -> int:
    """Line, from 1, of the first key that its object has had before; of the beginning if there is none."""
    keys: list[set[str]] = []
    last = None
    for token in _TOKEN.finditer(text):
        if token[0] in "{[":
            keys.append(set())
        elif token[0] in "}]":
            keys.pop()
        elif token[0] == ":" and last is not None:
            key = json.loads(last[0])
            if key in keys[-1]:
                return text.count("\n", 0, last.start()) + 1
            keys[-1].add(key)
        last = token
    return 1


def _member(text: str, place: int, step: str | int) -> int | None:
    """Where a member of the object or list that stands at `place` starts; None if it has no such member."""
    is_object = text[place] == "{"
    if text[place] not in "{[" or is_object != isinstance(step, str):
        return None
    index = 0
    place = _skip_space(text, place + 1)
    while text[place] not in "}]":
        name: str | int = index
        if is_object:
            name, place = _decode(text, place)
            place = _skip_space(text, _skip_space(text, place) + 1)  # the colon
        if name == step:
            return place
        _, place = _decode(text, place)
        place = _skip_space(text, place)
        if text[place] == ",":
            place = _skip_space(text, place + 1)
        index += 1
    return None


def _skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place] in _SPACE:
        place += 1
    return place
