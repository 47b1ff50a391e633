"""Where the header says that a tensor went is where the loader puts it, for every architecture and kind of file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from torch import nn

from minivllm.analysis.explain import explain
from minivllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from minivllm.scenarios.model_shape import model_shape
from minivllm.trace.events import Header
from minivllm.trace.reader import Log
from tests.models.checkpoints import save_model
from tests.models.gguf_checkpoints import save_gguf


def shape_of(model: Path, **options: Any) -> dict[str, Any]:
    config = VllmConfig(
        model_config=ModelConfig(model=str(model), **options),
        cache_config=CacheConfig(),
        scheduler_config=SchedulerConfig(),
    )
    return model_shape(config, "cpu")


def of_layer(name: str, layer: int) -> str:
    return name.replace("*", str(layer))


@pytest.mark.parametrize(
    ("kind", "options"),
    [("llama", {}), ("llama", {"tie_word_embeddings": False}), ("qwen2", {}), ("qwen3", {}), ("mistral", {})],
)
def test_a_tensor_is_in_the_rows_that_the_header_names(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    save_model(kind, tmp_path, **options)
    shape = shape_of(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    model = ModelLoader(find_model(str(tmp_path))).load(torch.device("cpu"), torch.float32)
    assert isinstance(model, nn.Module)
    parameters = dict(model.named_parameters())
    found = set()
    for name, _, ours, first, rows, columns, times in shape["tensors"]:
        for layer in range(times):
            tensor = stored[of_layer(name, layer)]
            own = parameters[of_layer(ours, layer)][first : first + rows]
            assert own.shape == tensor.shape == ((rows,) if columns is None else (rows, columns))
            assert torch.equal(own, tensor.float())
            found.add(of_layer(name, layer))
    assert found == {name for name in stored if not (shape["tie_word_embeddings"] and name == "lm_head.weight")}


def test_a_gguf_file_has_its_own_names_and_types(tmp_path: Path) -> None:
    save_gguf(tmp_path / "m.gguf", save_model("qwen3", tmp_path, intermediate_size=64), GGMLQuantizationType.Q8_0)
    shape = shape_of(tmp_path / "m.gguf")
    answer = explain(Log(Header(model="m", model_shape=shape), []), "weights")
    assert answer.result == shape["weight_bytes"]
    rows = {row[0]: row[1:3] for row in answer.tables[0].rows}
    assert rows["blk.*.attn_q.weight"] == ("Q8_0", "layers.*.self_attn.qkv_proj.weight [0:32]")
    assert rows["blk.*.attn_norm.weight"] == ("F32", "layers.*.input_layernorm.weight")
    assert any("is attn_q, attn_k, attn_v one below the other" in line for line in answer.more)


def test_random_weights_have_no_type_in_a_file(tmp_path: Path) -> None:
    save_model("llama", tmp_path, tie_word_embeddings=False)
    shape = shape_of(tmp_path, load_format="dummy", dtype="bfloat16")
    answer = explain(Log(Header(model="m", model_shape=shape), []), "weights")
    assert {row[1] for row in answer.tables[0].rows} == {"random"}
    assert answer.values["bytes_per_number"] == 2
    assert "head" in answer.values["parts"]
    assert any("rows of its own (lm_head.weight)" in line for line in answer.more)
