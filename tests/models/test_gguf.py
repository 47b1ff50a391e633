"""A GGUF file gives the model that it was made from, its weights rounded by the quantisation and no further."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from minivllm.layers.rotary import inverse_frequencies
from minivllm.models.config import RopeConfig, from_folder
from minivllm.models.errors import ModelError
from minivllm.models.gguf_file import _layout, quantisations
from minivllm.models.gguf_header import GGUFTensor
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from minivllm.models.registry import CausalLM
from tests.models.checkpoints import reference_logits, save_llama, save_model
from tests.models.forward import all_logits
from tests.models.gguf_checkpoints import save_gguf
from tests.models.test_equality import LLAMA3_ROPE

TOKENS = [5, 9, 31, 2, 77, 64, 12, 40]


def load(file: Path) -> CausalLM:
    return ModelLoader(find_model(str(file))).load(torch.device("cpu"), torch.float32)


def refusal(file: Path) -> str:
    with pytest.raises(ModelError) as error:
        load(file)
    message = str(error.value)
    assert "\n" not in message
    assert str(file) in message
    return message


def assert_equal(model: CausalLM, reference: PreTrainedModel, atol: float = 2e-5) -> None:
    expected = reference_logits(reference, TOKENS)
    torch.testing.assert_close(all_logits(model, TOKENS), expected, atol=atol, rtol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_those_of_the_model(tmp_path: Path, kind: str, tied: bool) -> None:
    reference = save_model(kind, tmp_path, tie_word_embeddings=tied)
    save_gguf(tmp_path / "m.gguf", reference)
    model = load(tmp_path / "m.gguf")
    assert model.config.tie_word_embeddings is tied
    assert model.config.eos_token_ids == (2,)
    assert_equal(model, reference)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"head_dim": 16}),
        ("mistral", {"sliding_window": 3}),
        ("qwen3", {"attention_bias": True, "num_key_value_heads": 1}),
    ],
)
def test_what_only_some_models_have_is_kept(tmp_path: Path, kind: str, shape: dict[str, Any]) -> None:
    reference = save_model(kind, tmp_path, **shape)
    save_gguf(tmp_path / "m.gguf", reference)
    assert_equal(load(tmp_path / "m.gguf"), reference)


@pytest.mark.parametrize("kind", [kind for kind in GGMLQuantizationType if kind.name in quantisations()])
def test_logits_equal_those_of_the_rounded_weights(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    width = max(64, GGML_QUANT_SIZES[kind][0])
    sizes = {"hidden_size": width, "intermediate_size": width, "num_hidden_layers": 1, "tie_word_embeddings": False}
    reference = save_llama(tmp_path, **sizes, initializer_range=0.1)
    save_gguf(tmp_path / "m.gguf", reference, kind)
    assert_equal(load(tmp_path / "m.gguf"), reference, atol=2e-4)


@pytest.mark.parametrize("kind", [kind for kind in GGMLQuantizationType if kind.name not in quantisations()])
def test_a_type_that_cannot_be_dequantised_is_refused_by_name(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    tensor = GGUFTensor("blk.0.attn_q.weight", (8, GGML_QUANT_SIZES[kind][0]), int(kind), 0)
    with pytest.raises(ModelError, match=f"tensor blk.0.attn_q.weight has type {kind.name}; supported are F32, F16"):
        _layout(tmp_path / "m.gguf", tensor)


def test_frequency_factors_stretch_the_rope_as_llama3_does(tmp_path: Path) -> None:
    reference = save_llama(tmp_path, rope_parameters=LLAMA3_ROPE)
    plain = inverse_frequencies(8, RopeConfig(theta=LLAMA3_ROPE["rope_theta"]))
    factors = plain / inverse_frequencies(8, from_folder(tmp_path).rope)
    assert factors.max() > 2
    save_gguf(tmp_path / "m.gguf", reference, extra_tensors={"rope_freqs.weight": factors.numpy()})
    assert_equal(load(tmp_path / "m.gguf"), reference)


def test_a_missing_tensor_is_named_by_what_it_is_for(tmp_path: Path) -> None:
    save_gguf(tmp_path / "m.gguf", save_llama(tmp_path), without="blk.1.ffn_up.weight")
    assert "tensor model.layers.1.mlp.up_proj.weight is missing (expected shape (48, 32)" in refusal(
        tmp_path / "m.gguf"
    )


def test_a_file_cut_in_the_weights_is_refused_before_loading(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    save_gguf(file, save_llama(tmp_path))
    file.write_bytes(file.read_bytes()[:-100])
    assert "it is cut off" in refusal(file)


@pytest.mark.parametrize("keep", [0, 3, 10, 30, 100, 400])
def test_a_file_cut_in_the_header_is_refused(tmp_path: Path, keep: int) -> None:
    file = tmp_path / "m.gguf"
    save_gguf(file, save_llama(tmp_path))
    file.write_bytes(file.read_bytes()[:keep])
    assert "not a complete GGUF file" in refusal(file)


def test_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"PK\x03\x04" + bytes(100))
    assert "it begins with b'PK" in refusal(file)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "rope type 'yarn' is not supported"),
        ({"llama.expert_count": 8}, "expert_count is 8, and mixtures of experts are not supported"),
        ({"llama.rope.dimension_count": 4}, "rope.dimension_count is 4, and only the head size, 8, is supported"),
        ({"split.count": 3}, "one of 3 parts of a model"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    file = tmp_path / "m.gguf"
    save_gguf(file, save_llama(tmp_path), metadata=metadata)
    assert message in refusal(file)


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    file, reference = tmp_path / "m.gguf", save_llama(tmp_path)
    with torch.no_grad():
        reference.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    save_gguf(file, reference)
    assert "tensor blk.1.ffn_up.weight: expected numbers, got NaN or infinity" in refusal(file)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damage_anywhere_in_the_header_loads_or_is_refused(data: st.DataObject) -> None:
    content = bytearray(small_gguf())
    position = data.draw(st.integers(0, len(content) - 4 * 2**10))
    content[position] ^= data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "m.gguf"
        file.write_bytes(content)
        with contextlib.suppress(ModelError):
            load(file)


@functools.cache
def small_gguf() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
        save_gguf(Path(folder) / "m.gguf", save_llama(Path(folder), vocab_size=128, intermediate_size=16, **sizes))
        return (Path(folder) / "m.gguf").read_bytes()
