"""Owns putting other functions and classes in the place of the engine's, for the length of a `with` block.

As with the probes of a trace, names that were bound by `from module import name` are replaced, too. The engine is made
inside the block; nothing of it outlives it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

# Whoever judges keeps the engine's own functions.
_SPARED = ("minivllm.exercises", "minivllm_exercise_", "minivllm_starter_")


@contextmanager
def replaced(parts: Mapping[str, Any]) -> Iterator[None]:
    """Replace symbols of the engine.

    Args:
        parts: "module:qualname" of a function, method or class, and what takes its place.

    Raises:
        KeyError: There is no such symbol.
    """
    # What a run imports later would bind the replacement for good.
    importlib.import_module("minivllm.scenarios.run")
    before: list[tuple[Any, str, Any]] = []
    try:
        for symbol, part in parts.items():
            owner, name = find(symbol)
            original = owner.__dict__[name]
            places = [(owner, name)]
            if isinstance(owner, ModuleType):
                places += [place for place in _names_of(original) if place != (owner, name)]
            for holder, key in places:
                before.append((holder, key, original))
                setattr(holder, key, part)
        yield
    finally:
        for holder, key, original in reversed(before):
            setattr(holder, key, original)


def find(symbol: str) -> tuple[Any, str]:
    """Where "module:Class.method" is defined: its class (or module), and its name there.

    Raises:
        KeyError: There is no such symbol.
    """
    module, _, qualname = symbol.partition(":")
    owner: Any = importlib.import_module(module)
    *path, name = qualname.split(".")
    for part in path:
        owner = getattr(owner, part)
    if name not in owner.__dict__:
        raise KeyError(f"{symbol} is not there")
    return owner, name


def _names_of(value: Any) -> list[tuple[ModuleType, str]]:
    """Where an object is a global name of one of our modules."""
    return [
        (module, key)
        for module_name, module in list(sys.modules.items())
        if module_name.startswith("minivllm") and not module_name.startswith(_SPARED)
        for key, held in list(vars(module).items())
        if held is value
    ]
