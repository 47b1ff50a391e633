"""What is told about a model is what it is, for every architecture and kind of file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType

from minivllm.entrypoints.cli.model import info, list_
from minivllm.models.facts import describe
from minivllm.models.model_zoo import find_model
from minivllm.models.registry import ARCHITECTURES
from tests.models.checkpoints import save_model
from tests.models.gguf_checkpoints import save_gguf


def facts_of(folder: Path, kind: str, **shape: Any) -> dict[str, Any]:
    reference = save_model(kind, folder, **shape)
    facts = describe(find_model(str(folder)))
    assert facts["parameters"] == reference.num_parameters()
    assert facts["weight_bytes"] == {"float32": 4 * facts["parameters"], "bfloat16": 2 * facts["parameters"]}
    assert facts["kv_bytes_per_token"] == {"float32": 256, "bfloat16": 128}  # 2 * 2 layers * 2 heads * 8 numbers
    return facts


def test_each_architecture_tells_its_difference(tmp_path: Path) -> None:
    assert facts_of(tmp_path / "llama", "llama", tie_word_embeddings=False)["biases"] == []
    assert facts_of(tmp_path / "mistral", "mistral", sliding_window=8)["layers_with_window"] == [0, 1]
    assert facts_of(tmp_path / "qwen2", "qwen2")["biases"] == ["k_proj", "q_proj", "v_proj"]
    assert facts_of(tmp_path / "qwen3", "qwen3")["head_dim"] == 8


def test_rope_tells_only_what_its_kind_uses(tmp_path: Path) -> None:
    linear = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
    assert facts_of(tmp_path, "llama", rope_parameters=linear)["rope"] == {
        "theta": 500.0,
        "kind": "linear",
        "factor": 4.0,
    }


def test_a_gguf_file_tells_its_quantisations(tmp_path: Path) -> None:
    save_gguf(tmp_path / "m.gguf", save_model("qwen3", tmp_path, intermediate_size=64), GGMLQuantizationType.Q8_0)
    # Two layers of seven matrices and the embedding; two layers of four norms and the last one.
    assert describe(find_model(str(tmp_path / "m.gguf")))["quantisations"] == {"Q8_0": 15, "F32": 9}


def test_the_command_line_shows_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model("qwen2", tmp_path)
    info(str(tmp_path))
    shown = capsys.readouterr().out
    assert "Qwen2ForCausalLM" in shown
    assert "biases                    ['k_proj', 'q_proj', 'v_proj']" in shown
    list_(as_json=True)
    listed = json.loads(capsys.readouterr().out)["architectures"]
    assert listed == {name: entry.models for name, entry in ARCHITECTURES.items()}
    list_()
    table = capsys.readouterr().out
    assert all(name in table for name in ARCHITECTURES)
