"""Owns where a run's time went: the floor of its steps, what the device needed beyond it, and when it had no work.

    run = floor + device beyond the floor + host            device: of a CPU the calls that compute

Pure arithmetic on observed steps; the floor of a step is that of `minivllm.analysis.roofline`, without activations,
which need not go through memory.
"""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from minivllm.analysis.roofline import step_work
from minivllm.bench.step_observer import ObservedStep

_KINDS = ("prefill", "mixed", "decode")


def step_floor(step: ObservedStep, shape: dict[str, Any], bytes_per_s: float, flops_per_s: float) -> float:
    """Seconds that the step needs at least: its bytes or its operations, whichever takes longer."""
    if not step.lengths:
        return 0.0
    work = step_work(shape, step.lengths, step.num_logits, step.prefix_tokens)
    return max((work.bytes - work.activations) / bytes_per_s, work.flops / flops_per_s)


def breakdown(
    steps: list[ObservedStep], seconds: float, shape: dict[str, Any], bytes_per_s: float, flops_per_s: float
) -> dict[str, Any]:
    """Where a run's time went.

    Args:
        steps: All of them.
        seconds: From the first request to the last token.
        shape: The model's, see `minivllm.scenarios.model_shape`.
        bytes_per_s, flops_per_s: What the machine does at best.
    """
    floors = [step_floor(step, shape, bytes_per_s, flops_per_s) for step in steps]
    worked = sum(map(_worked, steps))
    floor = sum(floors)
    padded, tokens = sum(step.padded for step in steps), sum(step.tokens for step in steps)
    kinds = {}
    for kind in _KINDS:
        chosen = [(step, low) for step, low in zip(steps, floors, strict=True) if step.kind == kind]
        if chosen:
            kinds[kind] = _kind([step for step, _ in chosen], [low for _, low in chosen])
    return {
        "seconds": seconds,
        "floor_s": floor,
        "beyond_floor_s": worked - floor,
        "host_s": seconds - worked,
        "steps": len(steps),
        "kinds": kinds,
        "padding": {"tokens": tokens, "padded_tokens": padded, "share": 1 - tokens / padded if padded else 0.0},
        "graphs": _graphs(steps),
        "attention_backends": sorted({step.attention_backend for step in steps if step.lengths}),
    }


def _worked(step: ObservedStep) -> float:
    """Seconds in which the device worked on a step; of a CPU the calls that compute."""
    return step.computed if step.device is None else step.device


def _kind(steps: list[ObservedStep], floors: list[float]) -> dict[str, Any]:
    """Steps of one kind; times of one step are medians."""
    hosts = [_host_busy(step) for step in steps]
    return {
        "steps": len(steps),
        "tokens": sum(step.tokens for step in steps),
        "seconds": sum(step.seconds for step in steps),
        "floor_s": sum(floors),
        "step_ms": statistics.median(step.seconds for step in steps) * 1e3,
        "floor_ms": statistics.median(floors) * 1e3,
        "worked_ms": statistics.median(map(_worked, steps)) * 1e3,
        "host_ms": statistics.median(hosts) * 1e3,
        "waited_ms": statistics.median(step.waited for step in steps) * 1e3,
    }


def _host_busy(step: ObservedStep) -> float:
    """Seconds in which the CPU worked for the host's own sake; a GPU's work may hide them."""
    return step.seconds - step.waited - (step.computed if step.device is None else 0.0)


def _graphs(steps: list[ObservedStep]) -> list[dict[str, Any]]:
    """How many steps ran in which mode, and why; numbers in a reason are left out, so that equal reasons are one."""
    counts = Counter((step.graph_mode, _without_numbers(step.reason)) for step in steps if step.lengths)
    return [{"mode": mode, "reason": reason, "steps": count} for (mode, reason), count in counts.most_common()]


def _without_numbers(reason: str) -> str:
    return " ".join("N" if word.strip(",.").isdigit() else word for word in reason.split())
