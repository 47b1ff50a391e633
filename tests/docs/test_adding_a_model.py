"""Whoever follows docs/adding-a-model.md has a model that computes what transformers computes."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GemmaConfig, GemmaForCausalLM, PreTrainedModel, SeedOssConfig, SeedOssForCausalLM

from minivllm import LLM, SamplingParams
from minivllm.models import registry
from minivllm.models.errors import ModelError
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from tests.models.checkpoints import VOCAB_SIZE, reference_logits
from tests.models.forward import all_logits

PAGE = (Path(__file__).parents[2] / "docs" / "adding-a-model.md").read_text(encoding="utf-8")
TOKENS = list(range(3, 33))


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps 3 and 8 for both examples: the module, and its entry."""
    blocks = [textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)]
    assert len(blocks) == 4
    for file, module, entry in zip(("seed_oss", "gemma"), blocks[::2], blocks[1::2], strict=True):
        (tmp_path / f"{file}.py").write_text(module)
        name = f"minivllm.models.{file}"
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{file}.py")
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        monkeypatch.setitem(sys.modules, name, loaded)
        architecture = eval(entry, {"Architecture": registry.Architecture})
        monkeypatch.setitem(registry.ARCHITECTURES, architecture.name, architecture)


SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "head_dim": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def save(folder: Path, **overrides: bool) -> PreTrainedModel:
    torch.manual_seed(0)
    return save_random(SeedOssForCausalLM(SeedOssConfig(**SIZES, **overrides)), folder)


def save_random(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.eval().save_pretrained(folder)
    return model


def test_there_are_ten_steps_in_order() -> None:
    assert re.findall(r"^(\d+)\. \*\*", PAGE, flags=re.M) == [str(step) for step in range(1, 11)]


def test_before_the_steps_the_model_is_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(ModelError, match="architecture 'SeedOssForCausalLM' is not supported; supported are Llama"):
        ModelLoader(find_model(str(tmp_path)))


@pytest.mark.usefixtures("followed")
def test_after_the_steps_its_logits_and_tokens_equal_the_reference(tmp_path: Path) -> None:
    reference = save(tmp_path)
    model = ModelLoader(find_model(str(tmp_path))).load(torch.device("cpu"), torch.float32)
    expected = reference_logits(reference, TOKENS)
    torch.testing.assert_close(all_logits(model, TOKENS), expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(all_logits(model, TOKENS, [7, 1, 22]), expected, atol=2e-5, rtol=1e-5)
    llm = LLM(model=str(tmp_path), skip_tokenizer_init=True, num_gpu_blocks_override=16)
    [output] = llm.generate({"prompt_token_ids": TOKENS}, SamplingParams(temperature=0.0, max_tokens=1))
    assert output.outputs[0].token_ids == [int(expected[-1].argmax())]


@pytest.mark.usefixtures("followed")
@pytest.mark.parametrize("left_out", [(), ("tie_word_embeddings", "hidden_act", "hidden_activation")])
def test_a_larger_difference_equals_its_reference_too(tmp_path: Path, left_out: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    reference = save_random(GemmaForCausalLM(GemmaConfig(**SIZES, hidden_act="gelu_pytorch_tanh")), tmp_path)
    file = tmp_path / "config.json"
    raw = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in raw.items() if key not in left_out}))
    model = ModelLoader(find_model(str(tmp_path))).load(torch.device("cpu"), torch.float32)
    expected = reference_logits(reference, TOKENS)
    torch.testing.assert_close(all_logits(model, TOKENS), expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(all_logits(model, TOKENS, [7, 1, 22]), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.usefixtures("followed")
def test_what_the_new_model_does_not_compute_is_refused(tmp_path: Path) -> None:
    save(tmp_path, attention_out_bias=True)
    with pytest.raises(ModelError, match="attention_out_bias is True, and SeedOssForCausalLM is supported only with"):
        ModelLoader(find_model(str(tmp_path)))
