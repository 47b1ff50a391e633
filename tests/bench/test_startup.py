"""A start is told phase by phase, and the phases are the whole of it."""

from __future__ import annotations

import time

import pytest

from minivllm.bench import startup
from minivllm.bench.startup_script import KernelCount, Phases


def test_a_phase_inside_another_interrupts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 21.0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(moments))
    phases = Phases()
    phases.begin("outer")  # at 1
    phases.begin("inner")  # at 3
    phases.end()  # at 6
    phases.begin("inner")  # at 10
    phases.end()  # at 15
    phases.end()  # at 21
    assert phases.seconds == {"outer": 2.0 + 4.0 + 6.0, "inner": 3.0 + 5.0}


def test_cold_and_warm_starts_share_a_cache_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    caches: list[str] = []

    def start_once(arguments: object, prompt_tokens: int, cache: str) -> dict[str, object]:
        caches.append(cache)
        is_warm = caches.count(cache) > 1
        kernels = {"compiled": 0, "from_cache": 9} if is_warm else {"compiled": 9, "from_cache": 0}
        return {"total_s": 2.0 if is_warm else 5.0, "phases": {"load": 1.5}, "kernels": kernels, "graphs": 3}

    monkeypatch.setattr(startup, "start_once", start_once)
    cold, warm = startup.measure_startup({}, 4, 2)
    assert (cold["cache"], cold["starts"], cold["total_s"]["median"]) == ("cold", 2, 5.0)
    assert (warm["cache"], warm["kernels"]["from_cache"]) == ("warm", 9)
    assert [phase["median"] for phase in warm["phases"]] == [1.5, 0.5]
    assert len(set(caches)) == 2


def test_triton_is_heard() -> None:
    triton = pytest.importorskip("triton")
    count = KernelCount()
    count.listen()
    try:
        times = type("Times", (), {"total": 2_000_000})()
        for cache_hit in (False, True, True):
            triton.knobs.compilation.listener(
                src=None, metadata={}, metadata_group={}, times=times, cache_hit=cache_hit
            )
    finally:
        triton.knobs.compilation.listener = None
    assert (count.compiled, count.from_cache, count.compile_s) == (1, 2, 2.0)
