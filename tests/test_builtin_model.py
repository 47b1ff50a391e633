"""The built-in model: small enough to ship, lossless on any text, and as good as its documentation says."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from minivllm import LLM, SamplingParams
from minivllm.engine.input_processor import TokensPrompt

FOLDER = Path(__file__).parent.parent / "minivllm" / "assets" / "stories-5m"
DATA = Path(__file__).parent / "data" / "builtin_model"
TOKENIZER = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def load(name: str) -> Any:
    return json.loads((DATA / name).read_text())


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(model="stories-5m", dtype="float32")


def test_it_fits_into_12_megabytes() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 12_000_000


def test_it_is_a_llama_with_grouped_heads_and_long_positions() -> None:
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["tie_word_embeddings"]
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert config["head_dim"] >= 32
    assert config["max_position_embeddings"] >= 2304
    assert config["vocab_size"] == TOKENIZER.get_vocab_size() <= 4096


@given(st.text())
def test_its_tokenizer_gives_back_any_text(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    specials = ("<s>", "</s>", "<|user|>", "<|assistant|>")
    if not any(special in text for special in specials):
        assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "text", ["", " ", "naïve café", "Привет", "日本語のテキスト", "🦉🌙", "a\u0301\u200d\t\r\n\x00", "   x"]
)
def test_its_tokenizer_gives_back_every_script(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_greedy_continuations_are_those_of_transformers(llm: LLM) -> None:
    expected = load("greedy.json")
    outputs = llm.generate([x["prompt"] for x in expected], SamplingParams(temperature=0, max_tokens=48))
    for want, output in zip(expected, outputs, strict=True):
        assert output.prompt_token_ids == want["prompt_token_ids"]
        completion = output.outputs[0]
        assert list(completion.token_ids) == want["token_ids"], f"{want['prompt']!r}: {completion.text!r}"
        assert completion.text == want["text"]


def test_held_out_perplexity_is_the_stated_one(llm: LLM) -> None:
    stories = [json.loads(line) for line in (DATA / "held_out.jsonl").read_text().splitlines()]
    prompts = [TokensPrompt(prompt_token_ids=TOKENIZER.encode(story["text"] + "</s>").ids) for story in stories]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))
    losses: dict[str, list[float]] = defaultdict(list)
    for story, prompt, output in zip(stories, prompts, outputs, strict=True):
        assert output.prompt_logprobs is not None
        for token, entry in zip(prompt["prompt_token_ids"][1:], output.prompt_logprobs[1:], strict=True):
            assert entry is not None, "only the first token has no probability"
            losses[story["kind"]].append(-entry[token].logprob)
    losses["all"] = [x for kind in list(losses) for x in losses[kind]]
    for kind, stated in load("figures.json").items():
        assert len(losses[kind]) == stated["tokens"]
        perplexity = math.exp(sum(losses[kind]) / stated["tokens"])
        assert perplexity == pytest.approx(stated["perplexity"], rel=0.01), kind


def test_a_chat_ends_by_itself(llm: LLM) -> None:
    [output] = llm.chat(
        [{"role": "user", "content": "What color is the sky?"}], SamplingParams(temperature=0, max_tokens=48)
    )
    assert output.outputs[0].finish_reason == "stop"
    assert "blue" in output.outputs[0].text.lower()
