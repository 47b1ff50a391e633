"""The floor of a step: counted by hand for a small model, held to the model's own matrices, closed against logs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.explain import explain
from minivllm.analysis.explain_answer import Ask
from minivllm.analysis.roofline import _beyond, step_work
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from minivllm.trace.events import Event
from minivllm.trace.reader import Log
from tests.analysis.logs import changed, event_of, recorded

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


def test_a_decode_by_hand() -> None:
    work = step_work(SHAPE, [(9, 1)], 1)
    assert work.weights == 10_000 + 8 * 4  # everything once, and one row of the embedding
    assert work.kv_read == 2 * (2 * 2) * 2 * 9 * 4  # keys and values * KV heads * head size * layers * tokens * bytes
    assert work.kv_written == 2 * (2 * 2) * 2 * 4
    assert work.linear_flops == 2 * 2 * (8 * 16 + 8 * 8 + 3 * 8 * 16)
    assert work.head_flops == 2 * 8 * 100
    # In and out of qkv, attention, o, gate and up, down, in each of two layers; then of the head.
    assert work.activations == (2 * ((8 + 16) + (8 + 8) + (8 + 8) + (8 + 32) + (16 + 8)) + (8 + 100)) * 4
    assert work.attention_flops == 2 * 4 * 8 * 10  # layers * (scores and sums) * heads' numbers * keys, its own too


def test_a_prompt_sees_itself_as_a_triangle() -> None:
    assert step_work(SHAPE, [(0, 4)], 1).attention_flops == 2 * 4 * 8 * (1 + 2 + 3 + 4)
    assert step_work(SHAPE, [(0, 4)], 1).kv_read == 0


def test_a_window_bounds_what_is_read_and_seen() -> None:
    windowed = SHAPE | {"windows": [[4, 2]]}
    assert step_work(windowed, [(100, 1)], 1).attention_flops == 2 * 4 * 8 * 4
    assert step_work(windowed, [(100, 1)], 1).kv_read == step_work(SHAPE, [(3, 1)], 1).kv_read
    assert step_work(windowed, [(2, 1)], 1) == step_work(SHAPE, [(2, 1)], 1)


def test_a_prefix_that_decodes_attend_to_together_is_read_once() -> None:
    lengths = [(9, 1), (12, 1), (8, 1), (8, 4)]
    apart, together = step_work(SHAPE, lengths, 4), step_work(SHAPE, lengths, 4, prefix_tokens=8)
    assert apart.kv_read - together.kv_read == step_work(SHAPE, [(2 * 8, 1)], 1).kv_read, "by two of three decodes"
    assert together == replace(apart, kv_read=together.kv_read)
    windowed = SHAPE | {"windows": [[4, 2]]}
    assert step_work(windowed, lengths, 4, prefix_tokens=8) == step_work(windowed, lengths, 4)


def test_a_head_of_its_own_is_read_and_the_embedding_is_not() -> None:
    untied = step_work(SHAPE | {"tie_word_embeddings": False}, [(9, 1)], 1)
    assert untied.weights == 10_000 - 100 * 8 * 4 + 8 * 4


def test_the_weights_multiplied_are_those_of_the_model() -> None:
    """One token's operations are two for each number of every matrix."""
    log = recorded("hello")
    model = ModelLoader(find_model("stories-5m")).skeleton()
    matrices = [slot for slot in model.weight_slots().values() if slot.dim() == 2]
    work = step_work(log.header.model_shape, [(0, 1)], 1)
    assert work.linear_flops + work.head_flops == 2 * sum(torch.Tensor.numel(slot) for slot in matrices)


def test_the_side_that_binds_follows_the_machine() -> None:
    log = recorded("mixed-batch")
    slow_memory = explain(log, "roofline", Ask(iteration=13, bytes_per_s=1e9, flops_per_s=1e15))
    slow_arithmetic = explain(log, "roofline", Ask(iteration=13, bytes_per_s=1e15, flops_per_s=1e9))
    assert slow_memory.result["bound"] == "memory"
    assert slow_memory.result["floor_ms"] == pytest.approx(slow_memory.values["bytes"] / 1e6)
    assert slow_arithmetic.result["bound"] == "compute"
    assert slow_arithmetic.result["floor_ms"] == pytest.approx(slow_arithmetic.values["flops"] / 1e6)


def test_more_tokens_make_it_denser() -> None:
    log = recorded("chunked")
    chunk, decode = (explain(log, "roofline", Ask(iteration=step)) for step in (1, 6))
    assert chunk.values["tokens"] == 64
    assert decode.values["tokens"] == 2
    assert chunk.result["intensity"] > 10 * decode.result["intensity"]


def test_times_are_the_logs_spans() -> None:
    log = recorded("two-processes")
    ask = Ask(iteration=5, bytes_per_s=1e10, flops_per_s=1e11)
    answer = explain(log, "roofline", ask)
    step = next(e for e in log.events if e.kind == "span" and e.step == 5 and e.data["name"] == "step")
    assert answer.result["step_ms"] == (step.dur_ns or 0) / 1e6
    assert answer.result["beyond_ms"] == pytest.approx(answer.result["step_ms"] - answer.result["floor_ms"])

    def slower(events: list[Event]) -> None:
        next(e for e in events if e.kind == "span" and e.step == 5 and e.data["name"] == "step").dur_ns = 7_000_000

    assert explain(changed(log, slower), "roofline", ask).result["step_ms"] == 7.0


@pytest.mark.parametrize(
    ("step_ms", "floor", "model_ms", "said"),
    [
        (
            5.0,
            2.0,
            4.0,
            "The step took 5.000 ms, 3.000 ms beyond its floor: 2.000 ms of that here, 1.000 ms in the host's.",
        ),
        (5.0, 4.5, 4.0, "4.000 ms is less than the floor of 4.500 ms"),
        (5.0, 5.5, 0.0, "5.000 ms is less than the floor of 5.500 ms"),
        (5.0, 2.0, 6.0, "this one was 6.000 ms here, 4.000 ms beyond its floor. The host's work was hidden"),
    ],
)
def test_no_part_of_a_step_is_said_to_take_less_than_nothing(
    step_ms: float, floor: float, model_ms: float, said: str
) -> None:
    assert said in _beyond(step_ms, floor, model_ms, "here")


def test_it_follows_the_batch_and_says_what_is_missing() -> None:
    log = recorded("hello")

    def longer(events: list[Event]) -> None:
        event_of(events, "prepare_inputs", 5).data["seq_lens"][0] += 16

    kv = explain(log, "roofline", Ask(iteration=5)).values["kv_read"]
    assert explain(changed(log, longer), "roofline", Ask(iteration=5)).values["kv_read"] == kv + 16 * 6144
    with pytest.raises(CannotKnowError, match="prepare_inputs"):
        explain(Log(log.header, [e for e in log.events if e.kind != "prepare_inputs"]), "roofline", Ask(iteration=5))
    told = explain(log, "roofline", Ask(iteration=5)).more
    assert any("no times (span)" in line for line in told)
    assert any("--bandwidth-gb-s" in line for line in told)
