"""Whoever follows docs/adding-a-model.md has a model that computes what transformers computes."""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from transformers import SeedOssConfig, SeedOssForCausalLM

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
    """Steps 3 and 8: the module, and its entry."""
    module, entry = (textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.S))
    name = "minivllm.models.seed_oss"
    (tmp_path / "seed_oss.py").write_text(module)
    spec = importlib.util.spec_from_file_location(name, tmp_path / "seed_oss.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    monkeypatch.setitem(sys.modules, name, loaded)
    architecture = eval(entry, {"Architecture": registry.Architecture})
    monkeypatch.setitem(registry.ARCHITECTURES, architecture.name, architecture)


def save(folder: Path, **overrides: bool) -> SeedOssForCausalLM:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "head_dim": 8,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    config = SeedOssConfig(**sizes, **heads, initializer_range=0.3, bos_token_id=1, eos_token_id=2, **overrides)
    model = SeedOssForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
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
def test_what_the_new_model_does_not_compute_is_refused(tmp_path: Path) -> None:
    save(tmp_path, attention_out_bias=True)
    with pytest.raises(ModelError, match="attention_out_bias is True, and SeedOssForCausalLM is supported only with"):
        ModelLoader(find_model(str(tmp_path)))
