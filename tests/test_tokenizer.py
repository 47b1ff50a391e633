"""A tokenizer comes from a folder, a tokenizer.json or a GGUF file, and knows what its model says of its tokens."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest

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


def write_gguf(file: Path, kind: str = "gpt2", pre: str = "gpt-2", add_bos: bool = False) -> None:
    vocab = json.loads(byte_level().to_str())
    tokens = sorted(vocab["model"]["vocab"], key=vocab["model"]["vocab"].__getitem__)
    special = {token["content"] for token in vocab["added_tokens"]}
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in vocab["model"]["merges"]])
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages }}")
    writer.add_add_bos_token(add_bos)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def test_a_gguf_file_holds_the_same_tokenizer(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    ours, original = load_tokenizer(tmp_path / "m.gguf"), load_tokenizer(save(byte_level(), tmp_path))
    for text in TEXTS:
        assert ours.encode(text) == original.encode(text)
    assert (ours.eos_token_id, ours.special_tokens, ours.chat_template) == (0, {"eos_token": EOS}, "{{ messages }}")
    assert ours.is_special(0)
    assert ours.vocab_size == original.vocab_size


def test_smollm_splits_digits(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", pre="smollm")
    tokenizer = load_tokenizer(tmp_path / "m.gguf")
    assert [tokenizer.token_text(i) for i in tokenizer.encode("12345")] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("kind", "pre", "add_bos", "message"),
    [
        ("llama", "default", False, "tokenizer 'llama' is not supported, only 'gpt2'"),
        ("gpt2", "tekken", False, "pre-tokenizer 'tekken' is not supported; supported are smollm, gpt-2 and llama-bpe"),
        ("gpt2", "gpt-2", True, "tokenizers that put a token before every prompt are not supported"),
    ],
)
def test_a_gguf_tokenizer_of_another_kind_is_refused(
    tmp_path: Path, kind: str, pre: str, add_bos: bool, message: str
) -> None:
    write_gguf(tmp_path / "m.gguf", kind, pre, add_bos)
    with pytest.raises(ModelError, match=message):
        load_tokenizer(tmp_path / "m.gguf")


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file; a tokenizer is"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="not a tokenizer"):
        load_tokenizer(tmp_path)
