"""A GGUF file gives the model that it was made from, its weights rounded by the quantisation and no further."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.models.errors import ModelError
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from minivllm.models.registry import CausalLM
from tests.models.checkpoints import reference_logits, save_gguf, save_llama
from tests.models.forward import all_logits

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


@pytest.mark.parametrize("kind", [GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_those_of_the_rounded_weights(tmp_path: Path, kind: GGMLQuantizationType, tied: bool) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "tie_word_embeddings": tied}
    reference = save_llama(tmp_path, **sizes)
    save_gguf(tmp_path / "m.gguf", reference, kind)
    model = load(tmp_path / "m.gguf")
    assert model.config.tie_word_embeddings is tied
    assert model.config.eos_token_ids == (2,)
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.from_numpy(dequantize(quantize(parameter.numpy(), kind), kind)))
    torch.testing.assert_close(all_logits(model, TOKENS), reference_logits(reference, TOKENS), atol=2e-5, rtol=1e-5)


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


def test_what_is_not_computed_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    save_gguf(file, save_llama(tmp_path), metadata={"llama.rope.scaling.type": "yarn"})
    assert "rope type 'yarn' is not supported" in refusal(file)


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
