"""Weights load from one file or from shards; damaged ones are refused in one line that names file and tensor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minivllm.models.errors import ModelError
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from minivllm.models.registry import CausalLM
from tests.models.checkpoints import reference_logits, save_llama
from tests.models.forward import all_logits

TOKENS = [5, 9, 31, 2, 77, 64]
LAYER = "model.layers.1.mlp.up_proj.weight"


def load(folder: Path) -> CausalLM:
    return ModelLoader(find_model(str(folder))).load(torch.device("cpu"), torch.float32)


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as error:
        load(folder)
    message = str(error.value)
    assert "\n" not in message
    return message


def edit(file: Path, change: dict[str, torch.Tensor | None]) -> None:
    tensors = load_file(file)
    for name, tensor in change.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, file)


def test_shards_equal_one_file(tmp_path: Path) -> None:
    reference = save_llama(tmp_path, max_shard_size="20KB", tie_word_embeddings=False)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    torch.testing.assert_close(
        all_logits(load(tmp_path), TOKENS), reference_logits(reference, TOKENS), atol=1e-5, rtol=1e-5
    )


def test_a_tied_checkpoint_may_repeat_its_head(tmp_path: Path) -> None:
    reference = save_llama(tmp_path)
    file = tmp_path / "model.safetensors"
    edit(file, {"lm_head.weight": load_file(file)["model.embed_tokens.weight"].clone()})
    torch.testing.assert_close(
        all_logits(load(tmp_path), TOKENS), reference_logits(reference, TOKENS), atol=1e-5, rtol=1e-5
    )


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_llama(tmp_path)
    edit(tmp_path / "model.safetensors", {LAYER: None})
    message = refusal(tmp_path)
    assert "model.safetensors" in message
    assert f"tensor {LAYER} is missing (expected shape (48, 32)" in message


def test_an_unexpected_tensor_is_named(tmp_path: Path) -> None:
    save_llama(tmp_path)
    edit(tmp_path / "model.safetensors", {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32)})
    assert "tensor model.layers.0.self_attn.q_proj.bias (32,) belongs to no layer" in refusal(tmp_path)


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    save_llama(tmp_path)
    edit(tmp_path / "model.safetensors", {LAYER: torch.zeros(48, 31)})
    assert f"tensor {LAYER}: expected shape (48, 32), got (48, 31)" in refusal(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 100, 5000])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    save_llama(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    message = refusal(tmp_path)
    assert "model.safetensors: not a complete safetensors file" in message
    assert f"{keep} bytes" in message


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save_llama(tmp_path, max_shard_size="20KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal(tmp_path)


def test_a_broken_index_is_refused(tmp_path: Path) -> None:
    save_llama(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weights": {}}))
    assert "key 'weight_map' must name the file of each tensor" in refusal(tmp_path)


def test_pickles_are_refused(tmp_path: Path) -> None:
    save_llama(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin: pickled weights can run code" in refusal(tmp_path)


def test_a_folder_without_weights_says_what_it_looked_for(tmp_path: Path) -> None:
    save_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert "expected model.safetensors or model.safetensors.index.json" in refusal(tmp_path)
