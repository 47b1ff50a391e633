"""Weights load from one file or from shards; damaged ones are refused in one line that names file and tensor."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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


def entry(shape: list[Any], start: int, end: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


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


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim"])
def test_a_size_beyond_any_machine_is_refused(tmp_path: Path, key: str) -> None:
    save_llama(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: 2**30}))
    assert str(2**30) in refusal(tmp_path) or "expected shape" in refusal(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 100, 5000])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    save_llama(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    message = refusal(tmp_path)
    assert "model.safetensors: not a complete safetensors file" in message
    assert f"{keep} bytes" in message


def test_a_file_cut_or_grown_at_its_end_is_refused(tmp_path: Path) -> None:
    save_llama(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-4])
    assert "expected to end at byte" in refusal(tmp_path)
    file.write_bytes(whole + bytes(4))
    assert f"its tensors end at byte {len(whole)}" in refusal(tmp_path)


HEADERS: dict[str, tuple[Any, str]] = {
    "no object": ([], "its header is no JSON object"),
    "no offsets": ({"a": {"dtype": "F32", "shape": [1]}}, "tensor a: expected dtype, shape and data_offsets"),
    "negative shape": ({"a": entry([-1], 0, 4)}, "tensor a: expected dtype, shape and data_offsets"),
    "fractional shape": ({"a": entry([1.0], 0, 4)}, "tensor a: expected dtype, shape and data_offsets"),
    "shape against bytes": ({"a": entry([2], 0, 4)}, "tensor a: F32 of shape (2,) does not fill 4 bytes"),
    "backwards": ({"a": entry([1], 4, 0)}, "tensor a: F32 of shape (1,) does not fill -4 bytes"),
    "hole": ({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, "tensor b: expected to start at byte"),
    "overlap": ({"a": entry([2], 0, 8), "b": entry([1], 4, 8)}, "tensor b: expected to start at byte"),
    "past the end": ({"a": entry([100], 0, 400)}, "tensor a: expected to end at byte"),
}


@pytest.mark.parametrize(("header", "message"), HEADERS.values(), ids=HEADERS)
def test_a_header_that_does_not_describe_the_file_is_refused(tmp_path: Path, header: Any, message: str) -> None:
    save_llama(tmp_path)
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    assert message in refusal(tmp_path)


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    save_llama(tmp_path)
    text = b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, "a": {}}'
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    assert "a name stands twice in its header" in refusal(tmp_path)


def test_weights_of_a_type_that_is_not_read_are_refused_by_name(tmp_path: Path) -> None:
    save_llama(tmp_path)
    edit(tmp_path / "model.safetensors", {LAYER: torch.zeros(48, 32).to(torch.float8_e4m3fn)})
    assert f"tensor {LAYER} has type F8_E4M3; supported are F64, F32, F16, BF16" in refusal(tmp_path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, bad: float) -> None:
    save_llama(tmp_path)
    edit(tmp_path / "model.safetensors", {LAYER: torch.full((48, 32), bad)})
    assert f"tensor {LAYER}: expected numbers, got NaN or infinity" in refusal(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_every_precision_of_a_file_loads(tmp_path: Path, dtype: torch.dtype) -> None:
    save_llama(tmp_path)
    file = tmp_path / "model.safetensors"
    edit(file, {name: tensor.to(dtype) for name, tensor in load_file(file).items()})
    slots = load(tmp_path).weight_slots()
    assert all(torch.equal(slots[name], tensor.float()) for name, tensor in load_file(file).items())


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_loads_or_is_refused(data: st.DataObject) -> None:
    whole = small_checkpoint()
    content = bytearray(whole["model.safetensors"])
    header = int.from_bytes(content[:8], "little") + 8
    position = data.draw(st.one_of(st.integers(0, header - 1), st.integers(0, len(content) - 1)))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_bytes(whole["config.json"])
        (folder / "model.safetensors").write_bytes(content)
        with contextlib.suppress(ModelError):
            load(folder)


@functools.cache
def small_checkpoint() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        save_llama(Path(name), num_hidden_layers=1, hidden_size=8, intermediate_size=8, vocab_size=16)
        return {file: (Path(name) / file).read_bytes() for file in ("config.json", "model.safetensors")}


@pytest.mark.parametrize("file", ["../other/model.safetensors", "/etc/passwd", "sub/model.safetensors", "", ".."])
def test_an_index_cannot_point_out_of_its_folder(tmp_path: Path, file: str) -> None:
    save_llama(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {LAYER: file}}))
    assert f"tensor {LAYER}: expected a file beside the index, got {file!r}" in refusal(tmp_path)


def test_a_tensor_that_is_not_where_the_index_says_is_named(tmp_path: Path) -> None:
    save_llama(tmp_path)
    index = {"weight_map": {"model.extra.weight": "model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model.safetensors: tensor model.extra.weight is missing: model.safetensors.index.json says" in refusal(
        tmp_path
    )


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
