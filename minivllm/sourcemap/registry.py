"""Owns the table from concept to our symbol to vLLM's symbol. Standard library only.

A function that stands on a map carries one line, `@on_map(...)`. The decorator registers it and returns the very
same function: nothing is wrapped and nothing is slowed down. Tracing installs wrappers on the registered symbols
(see `minivllm.trace.install`) and takes them off again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T", bound=Callable[..., object] | type)


@dataclass(frozen=True, slots=True)
class MapEntry:
    """One row of the source map.

    Attributes:
        concept: The idea in a few words, e.g. "schedule one step".
        plane: "control" (decides who and how much) or "data" (moves tensors).
        process: The process that runs it: "frontend", "engine_core" or "worker".
        ours: Our symbol, "minivllm.core.scheduler:Scheduler.schedule".
        vllm: vLLM 0.27.1's symbol, "vllm/v1/core/sched/scheduler.py::Scheduler.schedule".
    """

    concept: str
    plane: str
    process: str
    ours: str
    vllm: str

    @property
    def module(self) -> str:
        return self.ours.partition(":")[0]

    @property
    def qualname(self) -> str:
        return self.ours.partition(":")[2]


_ENTRIES: dict[str, MapEntry] = {}


def on_map(concept: str, *, vllm: str, plane: str = "control", process: str = "engine_core") -> Callable[[T], T]:
    """Register a function or class as standing on the maps, and return it unchanged.

    Args:
        concept: The idea in a few words.
        vllm: The symbol of vLLM 0.27.1 that does the same work, `path::Class.method`.
        plane: "control" or "data".
        process: "frontend", "engine_core" or "worker".
    """

    def register(symbol: T) -> T:
        ours = f"{symbol.__module__}:{symbol.__qualname__}"
        _ENTRIES[ours] = MapEntry(concept, plane, process, ours, vllm)
        return symbol

    return register


def entries() -> list[MapEntry]:
    """Every symbol registered by the modules imported so far, in order of registration."""
    return list(_ENTRIES.values())


def lookup(ours: str) -> MapEntry:
    """The row of one of our symbols, "module:qualname". Raises KeyError if it was never registered."""
    return _ENTRIES[ours]
