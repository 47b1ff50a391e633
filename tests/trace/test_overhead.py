"""The figures of what a trace costs are of real runs: the same steps with and without, and a log that was written."""

from __future__ import annotations

import statistics

import msgspec

from minivllm.bench.trace_overhead import measure_ahead, measure_decode, measure_simulate, simulated_workload
from minivllm.scenarios.simulate import simulate_to_log


def test_a_simulation_is_timed_with_and_without_its_log() -> None:
    result = measure_simulate(4, 16, 12, repeats=1)
    assert result["steps"] == 13, "a prefill that samples, eleven decodes, and a step that tells who finished"
    assert result["without_us"] > 0
    assert abs(result["ratio"] - result["with_us"] / result["without_us"]) < 0.02
    assert result["log_bytes_per_step"] > 500


def test_decode_steps_of_every_level_are_timed_in_turns() -> None:
    results = measure_decode("stories-5m", 8, 1 + 3 * 12, repeats=1)
    assert [(row["level"], row["steps"]) for row in results] == [("off", 8), ("step", 8), ("function", 8)]
    assert results[0]["overhead"] == 0
    off, step, function = (row["log_bytes_per_step"] for row in results)
    assert off == 0 < step < function


def test_steps_ahead_of_a_device_are_timed_in_turns() -> None:
    off, step = measure_ahead(3, 8, 60, repeats=1)
    assert off["steps"] >= step["steps"] > 10
    assert off["log_bytes_per_step"] == 0 < step["log_bytes_per_step"]
    assert off["overhead"] == off["beside_device_us"] == 0 < step["beside_device_us"]
    assert off["in_the_way_us"] < step["in_the_way_us"] < step["host_us"]


def bytes_of_decode_steps(prompt_len: int, num_requests: int = 4) -> float:
    """Bytes of a step in which everyone decodes and nobody gains a block, on average."""
    log, _ = simulate_to_log(simulated_workload(num_requests, prompt_len, 40))
    sizes: dict[int, int] = {}
    for event in log.events:
        sizes[event.step] = sizes.get(event.step, 0) + len(msgspec.json.encode(event))
    busy = {event.step for event in log.events if event.kind not in ("schedule", "update", "step.end")}
    plain = [size for step, size in sizes.items() if step not in busy]
    assert len(plain) > 20
    return statistics.mean(plain)


def test_a_step_of_the_log_does_not_grow_with_the_context() -> None:
    """A decode step says the same of the thousandth token as of the hundredth, with a digit more in some numbers."""
    assert bytes_of_decode_steps(1600) < bytes_of_decode_steps(100) + 4 * 4 + 12 * 2
    assert bytes_of_decode_steps(100, num_requests=8) > bytes_of_decode_steps(100) + 100, "it does with the batch"
