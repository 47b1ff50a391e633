"""Every model computes what transformers computes, whatever its shape and however its prompt is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from minivllm.models.registry import CausalLM
from tests.models.checkpoints import VOCAB_SIZE, reference_logits, save_llama, save_model
from tests.models.forward import all_logits

CPU = torch.device("cpu")
KINDS = ("llama", "mistral", "qwen2", "qwen3")
TOKENS = torch.randint(0, VOCAB_SIZE, (50,), generator=torch.Generator().manual_seed(1)).tolist()

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# For every kind of model.
SHAPES: dict[str, dict[str, Any]] = {
    "grouped heads, tied": {},
    "as many KV heads as heads": {"num_key_value_heads": 4},
    "one KV head": {"num_key_value_heads": 1},
    "own head": {"tie_word_embeddings": False},
    "heads wider than the hidden size": {"head_dim": 16},
    "heads narrower than the hidden size": {"head_dim": 4},
    "other rope base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "other epsilon": {"rms_norm_eps": 0.1},
}
WINDOW = {"sliding_window": 8}
SLIDING = {"use_sliding_window": True, **WINDOW}
# What only some have.
OWN_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "linear rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral with a window": ("mistral", WINDOW),
    "mistral with a window of one token": ("mistral", {"sliding_window": 1}),
    "mistral with a window longer than the prompt": ("mistral", {"sliding_window": 64}),
    "qwen2 with an unused window": ("qwen2", WINDOW),
    "qwen2 with a window from layer 1": ("qwen2", {**SLIDING, "max_window_layers": 1}),
    "qwen3 with biases": ("qwen3", {"attention_bias": True}),
    "qwen3 with a window in some layers": (
        "qwen3",
        {
            **SLIDING,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}
CASES = {f"{kind}: {name}": (kind, shape) for kind in KINDS for name, shape in SHAPES.items()} | OWN_SHAPES


def load(folder: Path) -> CausalLM:
    return ModelLoader(find_model(str(folder))).load(CPU, torch.float32)


@pytest.mark.parametrize(("kind", "shape"), CASES.values(), ids=CASES)
def test_logits_equal_the_reference(tmp_path: Path, kind: str, shape: dict[str, Any]) -> None:
    reference = save_model(kind, tmp_path, **shape)
    torch.testing.assert_close(
        all_logits(load(tmp_path), TOKENS), reference_logits(reference, TOKENS), atol=2e-5, rtol=1e-5
    )


@pytest.mark.parametrize("chunks", [[1] * 50, [7] * 7 + [1], [49, 1], [1, 49], [16, 16, 18]])
@pytest.mark.parametrize("case", ["llama: grouped heads, tied", "mistral with a window", "qwen3 with biases"])
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(tmp_path: Path, case: str, chunks: list[int]) -> None:
    kind, shape = CASES[case]
    save_model(kind, tmp_path, **shape)
    model = load(tmp_path)
    torch.testing.assert_close(all_logits(model, TOKENS, chunks), all_logits(model, TOKENS), atol=2e-5, rtol=1e-5)


def test_a_half_precision_checkpoint_may_run_in_full_precision(tmp_path: Path) -> None:
    save_llama(tmp_path, dtype=torch.bfloat16)
    reference = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    torch.testing.assert_close(
        all_logits(load(tmp_path), TOKENS), reference_logits(reference, TOKENS), atol=2e-5, rtol=1e-5
    )


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.02), (torch.float16, 0.003)])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_stays_near_full_precision(tmp_path: Path, kind: str, dtype: torch.dtype, most: float) -> None:
    reference = save_model(kind, tmp_path, initializer_range=0.1)
    model = ModelLoader(find_model(str(tmp_path))).load(CPU, dtype)
    for chunks in (None, [1] * 50):
        error = all_logits(model, TOKENS, chunks).float() - reference_logits(reference, TOKENS)
        assert error.abs().mean() < most


@pytest.mark.parametrize("kind", KINDS)
def test_dummy_weights_depend_on_the_seed_only(tmp_path: Path, kind: str) -> None:
    save_model(kind, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    loader = ModelLoader(find_model(str(tmp_path)))
    same, again, other = (all_logits(loader.dummy(CPU, torch.float32, seed), TOKENS[:5]) for seed in (3, 3, 4))
    assert torch.equal(same, again)
    assert not torch.equal(same, other)
