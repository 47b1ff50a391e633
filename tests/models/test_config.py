"""config.json is read in both of transformers' dialects; what this engine does not compute is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minivllm.models.config import RopeConfig, from_folder
from minivllm.models.errors import ModelError
from minivllm.models.registry import resolve

SIZES = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}

MISTRAL = {"architectures": ["MistralForCausalLM"]}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True}


def write(folder: Path, **changes: Any) -> Path:
    raw = {key: value for key, value in {**SIZES, **changes}.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def test_what_is_not_said_has_the_usual_default(tmp_path: Path) -> None:
    config = from_folder(write(tmp_path, num_key_value_heads="absent"))
    assert (config.head_dim, config.num_key_value_heads) == (16, 4)
    assert (config.rope, config.tie_word_embeddings, config.eos_token_ids) == (RopeConfig(), False, ())


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}},
    ],
    ids=["before transformers 5", "transformers 5"],
)
def test_both_dialects_of_rope_mean_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert from_folder(write(tmp_path, **changes)).rope == RopeConfig(theta=5e5, kind="linear", factor=2.0)


def test_generation_config_decides_what_ends_a_sequence(tmp_path: Path) -> None:
    write(tmp_path, eos_token_id=7)
    assert from_folder(tmp_path).eos_token_ids == (7,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    assert from_folder(tmp_path).eos_token_ids == (3, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "absent"}, "key 'hidden_size' is missing"),
        ({"hidden_size": 0}, "hidden_size must be an integer of at least 1, got 0"),
        ({"vocab_size": "many"}, "vocab_size must be an integer of at least 1, got 'many'"),
        ({"hidden_size": 66}, "hidden_size (66) must be a multiple of num_attention_heads (4)"),
        ({"num_key_value_heads": 3}, "num_attention_heads (4) must be a multiple of num_key_value_heads (3)"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"architectures": "absent"}, "key 'architectures' must name the model's class"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', and LlamaForCausalLM is supported only with 'silu'"),
        ({**MISTRAL, "attention_bias": True}, "attention_bias is True, and MistralForCausalLM is supported only with"),
        ({**MISTRAL, "mlp_bias": True}, "mlp_bias is True"),
        ({"attention_bias": "yes"}, "attention_bias must be true or false, got 'yes'"),
        ({"sliding_window": 16}, "sliding_window is 16, and LlamaForCausalLM is supported only without one"),
        ({**MISTRAL, "sliding_window": 0}, "sliding_window must be an integer of at least 1, got 0"),
        ({**MISTRAL, "layer_types": ["full_attention"]}, "layer_types must be a list with one entry for each of the 2"),
        ({**MISTRAL, "layer_types": ["ssm", "ssm"]}, "layer type 'ssm' is not supported"),
        ({**QWEN3, "max_window_layers": -1}, "max_window_layers must be an integer of at least 0, got -1"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config asks for 'gptq'"),
        ({"num_attention_heads": 0}, "num_attention_heads must be an integer of at least 1, got 0"),
        ({"head_dim": -64}, "head_dim must be an integer of at least 1, got -64"),
        ({"vocab_size": 10**15}, "vocab_size is 1000000000000000, and no model has more than"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, and no model has more than 1024"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps must be a number above 0, got inf"),
        ({"torch_dtype": 16}, "dtype must be a string, got 16"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope type 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "key 'factor' is missing"),
        ({"rope_theta": "big"}, "rope_theta must be a number above 0, got 'big'"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id or a list of them, got '</s>'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
    ],
)
def test_a_config_that_cannot_run_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as error:
        from_folder(write(tmp_path, **changes))
    assert message in str(error.value)
    assert "config.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"'])
def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        from_folder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({**MISTRAL}, [4096, 4096]),
        ({**MISTRAL, "sliding_window": None}, [None, None]),
        ({**MISTRAL, "sliding_window": 8}, [8, 8]),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 8}, [None, None]),
        ({**QWEN3, "sliding_window": 8, "max_window_layers": 1}, [None, 8]),
        ({**QWEN3, "sliding_window": 8}, [None, None]),
        ({**QWEN3, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 8}, [None, None]),
        ({**QWEN3, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}, [8, None]),
        ({"layer_types": ["full_attention", "full_attention"]}, [None, None]),
    ],
)
def test_each_layer_has_the_window_that_the_config_gives_it(
    tmp_path: Path, changes: dict[str, Any], windows: list[int | None]
) -> None:
    config = from_folder(write(tmp_path, **changes))
    assert [config.window_of(layer) for layer in range(2)] == windows


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match="'MambaForCausalLM' is not supported; supported are LlamaForCausalLM"):
        resolve("MambaForCausalLM")
