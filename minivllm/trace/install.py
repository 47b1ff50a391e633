"""Owns putting probes on registered symbols and taking them off again.

A symbol that carries `@on_map` is a plain function until a probe is installed on it; afterwards it is the very same
object again. Off therefore costs nothing.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from minivllm.sourcemap.registry import MapEntry, lookup


@dataclass(slots=True)
class Call:
    """One finished call of a probed symbol.

    Attributes:
        entry: The symbol's row of the source map.
        args: Its positional arguments, `self` first for a method.
        result: What it returned.
        start_ns, end_ns: Monotonic clock around it.
        memo: What the probe noted before the call.
    """

    entry: MapEntry
    args: tuple[Any, ...]
    result: Any
    start_ns: int
    end_ns: int
    memo: Any = None


After = Callable[[Call], None]


@dataclass(frozen=True, slots=True)
class Around:
    """A probe that also looks before the call.

    Attributes:
        before: Gets the arguments; what it returns is `Call.memo` afterwards.
        after: Gets the finished call; None if looking before is all.
    """

    before: Callable[[tuple[Any, ...]], Any]
    after: After | None = None


Probe = After | Around
Probes = dict[str, list[Probe]]
OnFailure = Callable[[MapEntry, str], None]


def merge(groups: Iterable[Mapping[str, Probe]]) -> Probes:
    """All the probes of several groups, by symbol; on one symbol they are told in the order of the groups."""
    merged: Probes = {}
    for group in groups:
        for symbol, probe in group.items():
            merged.setdefault(symbol, []).append(probe)
    return merged


class Installation:
    """Probes on symbols, for the length of a `with` block.

    Args:
        probes: Our symbol, "module:qualname", to the probe (or probes) that hear of each of its calls.
        on_failure: Is told, once, of each probe that failed.

    A probe that fails is switched off, and counted in `failures`; the engine goes on.
    """

    def __init__(
        self, probes: Mapping[str, Probe] | Mapping[str, list[Probe]], on_failure: OnFailure | None = None
    ) -> None:
        self._probes: Probes = {
            symbol: probe if isinstance(probe, list) else [probe] for symbol, probe in probes.items()
        }
        self._on_failure = on_failure
        self._originals: list[tuple[Any, str, Any]] = []
        self.failures: dict[str, str] = {}

    def __enter__(self) -> Installation:
        # Everything is looked up before anything is changed: a name that is not there leaves all symbols as they were.
        found = [(*_find(symbol), lookup(symbol), probes) for symbol, probes in self._probes.items()]
        for owner, name, original, entry, probes in found:
            self._originals.append((owner, name, original))
            setattr(owner, name, self._wrap(original, entry, probes))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for owner, name, original in reversed(self._originals):
            setattr(owner, name, original)
        self._originals.clear()

    def _wrap(self, original: Callable[..., Any], entry: MapEntry, probes: list[Probe]) -> Callable[..., Any]:
        wrapped = original
        for probe in probes:
            wrapped = self._wrap_once(wrapped, entry, probe)
        return wrapped

    def _wrap_once(self, original: Callable[..., Any], entry: MapEntry, probe: Probe) -> Callable[..., Any]:
        before = probe.before if isinstance(probe, Around) else None
        after = probe.after if isinstance(probe, Around) else probe
        is_on = True

        def fail(error: Exception) -> None:
            nonlocal is_on
            is_on = False
            message = f"{type(error).__name__}: {error}"
            self.failures[entry.ours] = message
            if self._on_failure is not None:
                self._on_failure(entry, message)

        @functools.wraps(original)
        def probed_before(*args: Any, **kwargs: Any) -> Any:
            if is_on:
                try:
                    before(args)  # type: ignore[misc]
                except Exception as error:
                    fail(error)
            return original(*args, **kwargs)

        @functools.wraps(original)
        def probed(*args: Any, **kwargs: Any) -> Any:
            memo = None
            if is_on and before is not None:
                try:
                    memo = before(args)
                except Exception as error:
                    fail(error)
            start_ns = time.monotonic_ns()
            result = original(*args, **kwargs)
            end_ns = time.monotonic_ns()
            if is_on:
                try:
                    after(Call(entry, args, result, start_ns, end_ns, memo))  # type: ignore[misc]
                except Exception as error:
                    fail(error)
            return result

        return probed_before if after is None else probed


def _find(symbol: str) -> tuple[Any, str, Any]:
    """Where "module:Class.method" is defined: its class (or module), its name there, and itself."""
    module, _, qualname = symbol.partition(":")
    owner: Any = importlib.import_module(module)
    *path, name = qualname.split(".")
    for part in path:
        owner = getattr(owner, part)
    return owner, name, owner.__dict__[name]
