"""Owns putting probes on registered symbols and taking them off again.

A symbol that carries `@on_map` is a plain function until a probe is installed on it; afterwards it is the very same
object again. Off therefore costs nothing.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from minivllm.sourcemap.registry import MapEntry, lookup


@dataclass(frozen=True, slots=True)
class Call:
    """One finished call of a probed symbol.

    Attributes:
        entry: The symbol's row of the source map.
        args: Its positional arguments, `self` first for a method.
        result: What it returned.
        start_ns, end_ns: Monotonic clock around it.
    """

    entry: MapEntry
    args: tuple[Any, ...]
    result: Any
    start_ns: int
    end_ns: int


Probe = Callable[[Call], None]


class Installation:
    """Probes on symbols, for the length of a `with` block.

    Args:
        probes: Our symbol, "module:qualname", to the probe that is told of each of its calls.

    A probe that fails is switched off, and counted in `failures`; the engine goes on.
    """

    def __init__(self, probes: Mapping[str, Probe]) -> None:
        self._probes = dict(probes)
        self._originals: list[tuple[Any, str, Any]] = []
        self.failures: dict[str, str] = {}

    def __enter__(self) -> Installation:
        # Everything is looked up before anything is changed: a name that is not there leaves all symbols as they were.
        found = [(*_find(symbol), lookup(symbol), probe) for symbol, probe in self._probes.items()]
        for owner, name, original, entry, probe in found:
            self._originals.append((owner, name, original))
            setattr(owner, name, self._wrap(original, entry, probe))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for owner, name, original in reversed(self._originals):
            setattr(owner, name, original)
        self._originals.clear()

    def _wrap(self, original: Callable[..., Any], entry: MapEntry, probe: Probe) -> Callable[..., Any]:
        @functools.wraps(original)
        def probed(*args: Any, **kwargs: Any) -> Any:
            start_ns = time.monotonic_ns()
            result = original(*args, **kwargs)
            end_ns = time.monotonic_ns()
            if entry.ours not in self.failures:
                try:
                    probe(Call(entry, args, result, start_ns, end_ns))
                except Exception as error:
                    self.failures[entry.ours] = f"{type(error).__name__}: {error}"
            return result

        return probed


def _find(symbol: str) -> tuple[Any, str, Any]:
    """Where "module:Class.method" is defined: its class (or module), its name there, and itself."""
    module, _, qualname = symbol.partition(":")
    owner: Any = importlib.import_module(module)
    *path, name = qualname.split(".")
    for part in path:
        owner = getattr(owner, part)
    return owner, name, owner.__dict__[name]
