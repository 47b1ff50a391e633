"""Owns putting probes on registered symbols and taking them off again.

A symbol that carries `@on_map` is a plain function until a probe is installed on it; afterwards it, and every name
that was bound to it, is the very same object again. Off therefore costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType, TracebackType
from typing import Any

from minivllm.sourcemap.registry import lookup
from minivllm.trace.wrap import Around, OnFailure, Probe, ProbedSymbol, wrap

Probes = dict[str, list[Probe]]


def merge(groups: Iterable[Mapping[str, Probe]]) -> Probes:
    """All the probes of several groups, by symbol; on one symbol they are told in the order of the groups."""
    merged: Probes = {}
    for group in groups:
        for symbol, probe in group.items():
            merged.setdefault(symbol, []).append(probe)
    return merged


class Installation:
    """Probes on symbols, for the length of a `with` block, in every thread of this process.

    Names that were bound to a function by `from module import function` are replaced, too. Not so what was put
    elsewhere before (into a list, into a closure): install first, and make the engine inside.

    Args:
        probes: Our symbol, "module:qualname", to the probe (or probes) that hear of each of its calls.
        on_failure: Is told, once, of each probe that failed.
        nested: Tell each call in which other one it happened (`Call.id`, `parent`, `depth`).

    Raises:
        KeyError: A symbol that is not registered.
        TypeError: A symbol that is no function: a class, a property.

    A probe that fails is switched off, and named in `failures`; the engine goes on.
    """

    def __init__(
        self,
        probes: Mapping[str, Probe] | Mapping[str, list[Probe]],
        on_failure: OnFailure | None = None,
        *,
        nested: bool = False,
    ) -> None:
        self._probes: Probes = {
            symbol: probe if isinstance(probe, list) else [probe] for symbol, probe in probes.items()
        }
        self._on_failure = on_failure
        self._nested = nested
        self._originals: list[tuple[Any, str, Any]] = []
        self._wrapped: dict[int, tuple[Any, Any]] = {}  # id of a wrapper: itself, and the function in it
        self.failures: dict[str, str] = {}

    def __enter__(self) -> Installation:
        # Everything is made before anything is changed: whoever is refused leaves all symbols as they were.
        ready = []
        for symbol, probes in self._probes.items():
            owner, name, original = _find(symbol)
            probed = ProbedSymbol(lookup(symbol), probes, self._failed, nested=self._nested)
            ready.append((owner, name, original, _rewrap(original, probed)))
        aliased = {
            id(original): (original, wrapper) for owner, _, original, wrapper in ready if isinstance(owner, ModuleType)
        }
        for owner, name, original, wrapper in ready:
            self._replace(owner, name, original, wrapper)
        for module, name, value in _names_of(aliased):
            self._replace(module, name, value, aliased[id(value)][1])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for owner, name, original in reversed(self._originals):
            setattr(owner, name, original)
        # A module that was first imported inside the block has bound the wrapper itself.
        for module, name, value in _names_of(self._wrapped):
            setattr(module, name, self._wrapped[id(value)][1])
        self._originals.clear()
        self._wrapped.clear()

    def _replace(self, owner: Any, name: str, original: Any, wrapper: Any) -> None:
        self._originals.append((owner, name, original))
        if isinstance(owner, ModuleType):
            self._wrapped[id(wrapper)] = (wrapper, original)
        setattr(owner, name, wrapper)

    def _failed(self, symbol: str, message: str) -> None:
        self.failures[symbol] = message
        if self._on_failure is not None:
            self._on_failure(symbol, message)


def _rewrap(original: Any, symbol: ProbedSymbol) -> Any:
    """A wrapper of the same kind as what it wraps."""
    if isinstance(original, staticmethod | classmethod):
        return type(original)(wrap(original.__func__, symbol))
    if isinstance(original, type | property) or not callable(original):
        what = "class" if isinstance(original, type) else type(original).__name__
        raise TypeError(f"{symbol.entry.ours} is a {what}: only functions and methods can have probes")
    return wrap(original, symbol)


def _names_of(values: Mapping[int, tuple[Any, Any]]) -> Iterator[tuple[ModuleType, str, Any]]:
    """Where any of these objects (by id) is a global name of a module."""
    if not values:
        return
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(module, ModuleType) or names is None:
            continue
        for name, value in list(names.items()):
            if id(value) in values and values[id(value)][0] is value:
                yield module, name, value


def _find(symbol: str) -> tuple[Any, str, Any]:
    """Where "module:Class.method" is defined: its class (or module), its name there, and itself."""
    module, _, qualname = symbol.partition(":")
    owner: Any = importlib.import_module(module)
    *path, name = qualname.split(".")
    for part in path:
        owner = getattr(owner, part)
    if name not in owner.__dict__:
        raise KeyError(f"{symbol} is not there")
    return owner, name, owner.__dict__[name]


__all__ = ["Around", "Installation", "Probe", "Probes", "merge"]
