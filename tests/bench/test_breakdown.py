"""Where a run's time went: by hand for a small model, and of an engine with clocks of our own."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from minivllm import LLM, SamplingParams
from minivllm.bench.breakdown import breakdown, step_floor
from minivllm.bench.device_memory import device_memory
from minivllm.bench.shapes import model_arguments
from minivllm.bench.step_observer import ObservedStep, StepObserver
from minivllm.engine.arg_utils import EngineArgs
from minivllm.scenarios.model_shape import model_shape
from minivllm.trace.device_clock import DeviceClock
from tests.trace.fake_device import FakeClock

SHAPE: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "tie_word_embeddings": True,
    "bytes_per_number": 4,
    "weight_bytes": 10_000,
    "windows": [[None, 2]],
}


def step(seconds: float, lengths: list[tuple[int, int]], decodes: int, **more: Any) -> ObservedStep:
    tokens = sum(new for _, new in lengths)
    facts: dict[str, Any] = {"padded": tokens, "graph_mode": "NONE", "num_logits": len(lengths)}
    return ObservedStep(seconds, lengths=lengths, decode_requests=decodes, **(facts | more))


def test_a_floor_counts_weights_once_and_keys_and_values_of_each() -> None:
    weights, row, kv = 10_000, 8 * 4, 2 * (2 * 2) * 2 * 4
    one = step_floor(step(1, [(9, 1)], 1), SHAPE, 1.0, 1e30)
    assert one == weights + row + kv * (9 + 1)
    assert step_floor(step(1, [(9, 1), (9, 1)], 2), SHAPE, 1.0, 1e30) == weights + 2 * row + 2 * kv * (9 + 1)
    assert step_floor(ObservedStep(1.0), SHAPE, 1.0, 1.0) == 0.0


@pytest.mark.parametrize(
    ("lengths", "milliseconds"),
    [([(160, 1)], 0.271), ([(160, 1)] * 64, 0.532), ([(160, 1)] * 256, 1.325), ([(0, 4096)] * 4, 29.043)],
)
def test_floors_of_a_real_shape(lengths: list[tuple[int, int]], milliseconds: float) -> None:
    """Counted by another program: a Qwen3-0.6B in bfloat16 where 4.466 TB/s are read and 762 TFLOP/s multiplied."""
    args = EngineArgs.from_kwargs(**model_arguments("qwen3-0.6b"), dtype="bfloat16")
    shape = model_shape(args.resolve_engine_config(), "cpu")
    seconds = step_floor(step(1, lengths, 0), shape, 4.466e12, 762e12)
    assert seconds * 1e3 == pytest.approx(milliseconds, abs=0.0006)


def test_parts_add_up_and_a_gpus_work_hides_the_hosts() -> None:
    steps = [
        step(0.5, [(0, 6), (0, 2)], 0, computed=0.2, device=0.4, waited=0.1),
        step(0.25, [(6, 1), (2, 1)], 2, computed=0.05, device=0.2, waited=0.1, graph_mode="FULL", padded=4),
        step(0.25, [(7, 1), (3, 1)], 2, computed=0.05, device=0.2, waited=0.1, graph_mode="FULL", padded=4),
        ObservedStep(0.01),
    ]
    told = breakdown(steps, 1.1, SHAPE, 1e6, 1e30)
    assert told["floor_s"] + told["beyond_floor_s"] + told["host_s"] == pytest.approx(1.1)
    assert told["host_s"] == pytest.approx(1.1 - 0.8)
    assert {kind: row["steps"] for kind, row in told["kinds"].items()} == {"prefill": 1, "decode": 2}
    assert told["kinds"]["decode"]["host_ms"] == pytest.approx(150)  # the device hides what it may
    assert told["padding"] == {"tokens": 12, "padded_tokens": 16, "share": 0.25}
    assert [(graph["mode"], graph["steps"]) for graph in told["graphs"]] == [("FULL", 2), ("NONE", 1)]


def test_without_a_device_the_host_is_what_does_not_compute() -> None:
    told = breakdown([step(0.5, [(3, 1)], 1, computed=0.3, waited=0.1)], 0.6, SHAPE, 1e6, 1e30)
    assert told["host_s"] == pytest.approx(0.3)
    assert told["kinds"]["decode"]["host_ms"] == pytest.approx(100)


def test_reasons_that_differ_in_numbers_are_one() -> None:
    steps = [step(1, [(5, 1)], 1, reason=f"{n} decodes, padded to {n + 1}") for n in (3, 4)]
    assert breakdown(steps, 2.0, SHAPE, 1.0, 1.0)["graphs"] == [
        {"mode": "NONE", "reason": "N decodes, padded to N", "steps": 2}
    ]


def test_memory_is_told_of_a_gpu_only() -> None:
    sizing = SimpleNamespace(memory_bytes=60, reason="measured")
    worker = SimpleNamespace(device=SimpleNamespace(type="cuda"), kv_cache_sizing=sizing)
    cache_config = SimpleNamespace(gpu_memory_utilization=0.9)
    executor, config = SimpleNamespace(worker=worker), SimpleNamespace(cache_config=cache_config)
    core = SimpleNamespace(model_executor=executor, vllm_config=config)
    llm = SimpleNamespace(llm_engine=SimpleNamespace(engine_core=core))
    cuda = SimpleNamespace(mem_get_info=lambda: (11, 100), max_memory_reserved=lambda: 85)
    told = device_memory(llm, cuda)
    assert (told["used"], told["used_share"], told["asked_share"], told["kv_cache"]) == (89, 0.89, 0.9, 60)
    worker.device.type = "cpu"
    assert device_memory(llm, cuda) == {}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("stories-5m", max_model_len=64, max_num_seqs=4, num_gpu_blocks_override=32)


def observed(llm: LLM, device_clock: DeviceClock | None = None) -> list[ObservedStep]:
    ticks = itertools.count()
    prompts = [{"prompt_token_ids": [5 + n] * length} for n, length in enumerate((6, 3))]
    with StepObserver(llm, clock=lambda: float(next(ticks)), device_clock=device_clock) as observer:
        llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True), use_tqdm=False)
    return observer.steps


def test_an_observed_run_is_the_plans_and_leaves_nothing_behind(llm: LLM) -> None:
    steps = observed(llm)
    assert [one.kind for one in steps] == ["prefill", "decode", "decode"]
    assert [sorted(one.lengths or []) for one in steps] == [[(0, 3), (0, 6)], [(3, 1), (6, 1)], [(4, 1), (7, 1)]]
    assert all(one.seconds > one.computed > 0 and one.waited > 0 and one.device is None for one in steps)
    runner = llm.llm_engine.engine_core.model_executor.worker.runner
    for owner in (llm.llm_engine, runner):
        assert not {"step", "execute_model", "sample_tokens", "to_host", "model_forward"} & vars(owner).keys()


def test_a_devices_clock_is_read_when_the_run_is_over(llm: LLM) -> None:
    clock = FakeClock(milliseconds=4.0)
    steps = observed(llm, clock)
    assert [one.device for one in steps] == [0.004] * 3
    assert clock.marks == 6
