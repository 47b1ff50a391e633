"""The model computes what transformers computes, whatever its shape and however its prompt is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from tests.models.checkpoints import VOCAB_SIZE, reference_logits, save_llama
from tests.models.forward import all_logits

CPU = torch.device("cpu")
TOKENS = torch.randint(0, VOCAB_SIZE, (50,), generator=torch.Generator().manual_seed(1)).tolist()

SHAPES: dict[str, dict[str, Any]] = {
    "grouped heads, tied": {},
    "as many KV heads as heads": {"num_key_value_heads": 4},
    "one KV head": {"num_key_value_heads": 1},
    "own head": {"tie_word_embeddings": False},
    "heads wider than the hidden size": {"head_dim": 16},
    "other rope base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama3 rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_logits_equal_the_reference(tmp_path: Path, shape: dict[str, Any]) -> None:
    reference = save_llama(tmp_path, **shape)
    model = ModelLoader(find_model(str(tmp_path))).load(CPU, torch.float32)
    torch.testing.assert_close(all_logits(model, TOKENS), reference_logits(reference, TOKENS), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("chunks", [[1] * 50, [7] * 7 + [1], [49, 1], [1, 49], [16, 16, 18]])
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(tmp_path: Path, chunks: list[int]) -> None:
    save_llama(tmp_path)
    model = ModelLoader(find_model(str(tmp_path))).load(CPU, torch.float32)
    torch.testing.assert_close(all_logits(model, TOKENS, chunks), all_logits(model, TOKENS), atol=2e-5, rtol=1e-5)


def test_a_half_precision_checkpoint_may_run_in_full_precision(tmp_path: Path) -> None:
    save_llama(tmp_path, dtype=torch.bfloat16)
    reference = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    model = ModelLoader(find_model(str(tmp_path))).load(CPU, torch.float32)
    torch.testing.assert_close(all_logits(model, TOKENS), reference_logits(reference, TOKENS), atol=2e-5, rtol=1e-5)


def test_half_precision_stays_near_full_precision(tmp_path: Path) -> None:
    reference = save_llama(tmp_path, initializer_range=0.1)
    model = ModelLoader(find_model(str(tmp_path))).load(CPU, torch.bfloat16)
    error = all_logits(model, TOKENS).float() - reference_logits(reference, TOKENS)
    assert error.abs().mean() < 0.02


def test_dummy_weights_depend_on_the_seed_only(tmp_path: Path) -> None:
    save_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    loader = ModelLoader(find_model(str(tmp_path)))
    same, again, other = (all_logits(loader.dummy(CPU, torch.float32, seed), TOKENS[:5]) for seed in (3, 3, 4))
    assert torch.equal(same, again)
    assert not torch.equal(same, other)
