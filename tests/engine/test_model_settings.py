"""What an engine may be told about its model: no weights, no tokenizer, one attention backend, one precision."""

from __future__ import annotations

from pathlib import Path

import pytest

from minivllm import LLM, SamplingParams
from minivllm.models.errors import ModelError, TooLittleMemoryError
from tests.models.checkpoints import save_model

KINDS = ("llama", "mistral", "qwen2", "qwen3")
SMALL = {"max_model_len": 64, "num_gpu_blocks_override": 32, "block_size": 4}
PROMPT = {"prompt_token_ids": [5, 9, 31, 2, 77]}
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def config_only(folder: Path, kind: str) -> Path:
    save_model(kind, folder)
    for file in folder.iterdir():
        if file.name != "config.json":
            file.unlink()
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_dummy_weights_need_only_the_config(tmp_path: Path, kind: str) -> None:
    folder = str(config_only(tmp_path, kind))
    with pytest.raises(ModelError, match="no weights here"):
        LLM(model=folder, skip_tokenizer_init=True, **SMALL)
    llm = LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, **SMALL)
    assert len(llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids) == 6


def test_without_a_tokenizer_prompts_are_ids_and_outputs_have_no_text(tmp_path: Path) -> None:
    save_model("qwen3", tmp_path)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        LLM(model=str(tmp_path), **SMALL)
    llm = LLM(model=str(tmp_path), skip_tokenizer_init=True, **SMALL)
    [output] = llm.generate(PROMPT, GREEDY)
    assert len(output.outputs[0].token_ids) == 6
    assert output.outputs[0].text == ""
    with pytest.raises(ValueError, match=r"no tokenizer: pass \{'prompt_token_ids'"):
        llm.generate("text", GREEDY)
    with pytest.raises(ValueError, match="no tokenizer"):
        llm.get_tokenizer()


def test_a_broken_tokenizer_is_refused_by_its_file(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": ')
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        LLM(model=str(tmp_path), **SMALL)


def test_a_forced_attention_backend_is_taken_or_refused(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), attention_backend="torch_sdpa", **SMALL)
    assert len(llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids) == 6
    with pytest.raises(ValueError, match="attention backend 'triton' cannot run: the model is on a CPU"):
        LLM(model=str(tiny_model), attention_backend="triton", **SMALL)
    with pytest.raises(ValueError, match="unknown attention backend 'flash'"):
        LLM(model=str(tiny_model), attention_backend="flash", **SMALL)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_generates_on_a_cpu(tmp_path: Path, kind: str, dtype: str) -> None:
    save_model(kind, tmp_path, initializer_range=0.1)
    llm = LLM(model=str(tmp_path), dtype=dtype, skip_tokenizer_init=True, **SMALL)
    assert len(llm.generate([PROMPT, PROMPT], GREEDY)[1].outputs[0].token_ids) == 6


def test_sizes_that_no_machine_can_hold_are_refused_also_with_dummy_weights(tmp_path: Path) -> None:
    folder = config_only(tmp_path, "llama")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 96', '"vocab_size": 2000000000'))
    with pytest.raises((TooLittleMemoryError, ModelError), match=r"are missing|no machine has the memory"):
        LLM(model=str(folder), load_format="dummy", skip_tokenizer_init=True, **SMALL)
