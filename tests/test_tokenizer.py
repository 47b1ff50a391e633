"""A tokenizer comes from a folder, a tokenizer.json or a GGUF file, and knows what its model says of its tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import processors
from transformers import AutoTokenizer

from minivllm.models.errors import ModelError
from minivllm.tokenizer import load_tokenizer
from tests.tokenizers import EOS, byte_level, save

TEXTS = ["Hello world", "  two  spaces\n\ttab", "größer 100 €", "😀 日本語", f"a{EOS}b", "", "12345"]


def test_text_survives_the_way_there_and_back(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(byte_level(), tmp_path))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_special_tokens_are_known_and_can_be_left_out(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(byte_level(), tmp_path) / "tokenizer.json")
    ids = tokenizer.encode(f"a{EOS}b")
    assert [tokenizer.is_special(i) for i in ids] == [False, True, False]
    assert tokenizer.decode(ids) == "ab"


def test_one_token_can_be_shown(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save(byte_level(), tmp_path))
    assert tokenizer.token_text(tokenizer.encode(EOS)[0]) == EOS
    assert tokenizer.token_text(tokenizer.encode("\x00")[0]) == "\x00"
    assert tokenizer.token_text(tokenizer.vocab_size + 5) == f"<{tokenizer.vocab_size + 5}>"


def test_the_folder_says_which_token_ends_a_sequence_and_how_to_chat(tmp_path: Path) -> None:
    save(byte_level(), tmp_path)
    assert load_tokenizer(tmp_path).eos_token_id is None
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert load_tokenizer(tmp_path).eos_token_id == 5
    named = {"eos_token": {"content": EOS}, "bos_token": "<|user|>", "chat_template": "{{ messages }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.eos_token_id == tokenizer.encode(EOS)[0]
    assert tokenizer.special_tokens == {"eos_token": EOS, "bos_token": "<|user|>"}
    assert tokenizer.chat_template == "{{ messages }}"
    (tmp_path / "chat_template.jinja").write_text("own file")
    assert load_tokenizer(tmp_path).chat_template == "own file"


@pytest.mark.parametrize("stated", [None, True, False])
@pytest.mark.parametrize("processed", [True, False])
def test_tokenizer_json_alone_says_what_stands_before_a_prompt(
    tmp_path: Path, stated: bool | None, processed: bool
) -> None:
    """As in transformers, which drops add_bos_token where there is a tokenizer.json."""
    backend = byte_level()
    if processed:
        backend.post_processor = processors.TemplateProcessing(single="<|user|> $A", special_tokens=[("<|user|>", 1)])
    save(backend, tmp_path)
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|user|>", "add_bos_token": stated}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    ours = load_tokenizer(tmp_path)
    assert ours.encode("Hello") == AutoTokenizer.from_pretrained(tmp_path)("Hello").input_ids
    assert (ours.encode("Hello") != ours.encode("Hello", add_special_tokens=False)) is processed


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file; a tokenizer is"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="not a tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b'{"eos_token_id": "x"}', "eos_token_id must be a token id or a list of them, got 'x'"),
        ("generation_config.json", b'{"eos_token_id": [1.5]}', "eos_token_id must be a token id or a list of them"),
        ("config.json", b'{"eos_token_id": -1}', "eos_token_id must be a token id or a list of them, got -1"),
        ("tokenizer_config.json", b'{"eos_token": 5}', "eos_token must be a text, got 5"),
        ("tokenizer_config.json", b'{"chat_template": {}}', "chat_template must be a text, got {}"),
        ("tokenizer_config.json", b'{"chat_template": [3, {"name": "default", "template": 7}]}', "text, got 7"),
        ("chat_template.jinja", b"\xff\xfe{{ 1 }}", "not a text in UTF-8"),
    ],
)
def test_damage_around_a_tokenizer_is_told_with_its_file(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    save(byte_level(), tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError) as error:
        load_tokenizer(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / name}: ")
    assert message in str(error.value)


def test_an_empty_list_of_ends_is_no_end(tmp_path: Path) -> None:
    save(byte_level(), tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": []}')
    assert load_tokenizer(tmp_path).eos_token_id is None
    (tmp_path / "config.json").write_text('{"eos_token_id": [7, 8]}')
    assert load_tokenizer(tmp_path).eos_token_id == 7
