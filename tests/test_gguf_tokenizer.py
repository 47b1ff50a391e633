"""A .gguf file holds the tokenizer that it was made from: the same ids, the same text back, the same tokens around."""

from __future__ import annotations

import functools
import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers

from minivllm.models.errors import ModelError
from minivllm.tokenizer import Tokenizer, load_tokenizer
from tests.tokenizers import EOS, byte_fallback, byte_level, save

TEXTS = [
    "Hello world",
    "  two  spaces\n\ttab \n\n x",
    "größer 100 €",
    "😀 日本語",
    f"a{EOS}b",
    "",
    "12345 6",
    "I'LL say it's 3rd\r\n",
    "naïve cafe\u0301",
]
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def write(file: Path, kind: str, tokens: list[str], types: list[int], **entries: Any) -> Path:
    """A .gguf file of nothing but a tokenizer."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for name, value in {"eos_token_id": 0, "chat_template": "{{ messages }}", **entries}.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return file


def write_byte_level(file: Path, kind: str = "gpt2", pre: str | None = "gpt-2", **entries: Any) -> Path:
    vocab = json.loads(byte_level().to_str())
    tokens = sorted(vocab["model"]["vocab"], key=vocab["model"]["vocab"].__getitem__)
    special = {token["content"] for token in vocab["added_tokens"]}
    types = [CONTROL if token in special else NORMAL for token in tokens]
    merges = [" ".join(merge) for merge in vocab["model"]["merges"]]
    named = {} if pre is None else {"tokenizer_pre": pre}
    return write(file, kind, tokens, types, token_merges=merges, **named, **entries)


def sentencepiece_parts() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types as SentencePiece numbers them: special, bytes, pieces by falling score."""
    trained = json.loads(byte_fallback().to_str())["model"]
    pieces = [token for token in trained["vocab"] if token not in ("<unk>", EOS) and not token.startswith("<0x")]
    merged = {"".join(merge): rank for rank, merge in enumerate(trained["merges"])}
    tokens = ["<unk>", "<s>", EOS, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]
    scores = [0.0] * 259 + [-float(merged.get(piece, 10_000)) for piece in pieces]
    return tokens, scores, types


def write_sentencepiece(file: Path, **entries: Any) -> Path:
    tokens, scores, types = sentencepiece_parts()
    own = {"token_scores": scores, "bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0, **entries}
    return write(file, "llama", tokens, types, **own)


def with_split(pre: str) -> tokenizers.Tokenizer:
    """The tokenizer that the files are made from, split as Hugging Face's own files of those models do it."""
    backend = byte_level()
    digits = {"llama-bpe": r"\p{N}{1,3}", "qwen2": r"\p{N}"}.get(pre)
    if pre == "smollm":
        split = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    elif digits:
        pattern = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
            + digits
            + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
        split = pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)
        whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, whole])
        backend.normalizer = normalizers.NFC() if pre == "qwen2" else None
    return backend


@pytest.mark.parametrize("pre", ["gpt-2", None, "smollm", "llama-bpe", "qwen2"])
def test_byte_level_ids_equal_the_originals(tmp_path: Path, pre: str | None) -> None:
    ours = load_tokenizer(write_byte_level(tmp_path / "m.gguf", pre=pre, add_bos_token=False))
    save(with_split(pre or "gpt-2"), tmp_path)
    original = load_tokenizer(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == original.encode(text)
        if pre != "qwen2":  # which composes accents
            assert ours.decode(ours.encode(text), skip_special_tokens=False) == text
    assert (ours.eos_token_id, ours.special_tokens, ours.chat_template) == (0, {"eos_token": EOS}, "{{ messages }}")
    assert ours.is_special(0)
    assert ours.vocab_size == original.vocab_size


def test_digits_are_grouped_as_the_model_learnt_them(tmp_path: Path) -> None:
    pieces = {}
    for pre in ("smollm", "qwen2", "llama-bpe"):
        tokenizer = load_tokenizer(write_byte_level(tmp_path / f"{pre}.gguf", pre=pre, add_bos_token=False))
        split = tokenizer.backend.pre_tokenizer.pre_tokenize_str("12345")
        pieces[pre] = [piece for piece, _ in split]
    assert pieces == {"smollm": list("12345"), "qwen2": list("12345"), "llama-bpe": ["123", "45"]}


@pytest.mark.parametrize(("pre", "whole"), [("llama-bpe", True), ("qwen2", False)])
def test_llama3_takes_a_piece_that_is_a_token_whatever_the_merges_say(tmp_path: Path, pre: str, whole: bool) -> None:
    tokens = ["<s>", *"abc", "abc", "ab"]  # and no merge that leads to "abc"
    types = [CONTROL, *[NORMAL] * 5]
    write(tmp_path / "m.gguf", "gpt2", tokens, types, token_merges=["a b"], tokenizer_pre=pre, add_bos_token=False)
    assert (load_tokenizer(tmp_path / "m.gguf").encode("abc") == [4]) is whole


@functools.cache
def sentencepiece() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return load_tokenizer(write_sentencepiece(Path(folder) / "m.gguf", add_bos_token=False))


@given(st.text(st.sampled_from("aelHo twrdlp12,.\n€ö😀▁日"), max_size=40))
def test_sentencepiece_ids_equal_the_definition(text: str) -> None:
    assert sentencepiece().encode(text) == merge_by_score(text)


def merge_by_score(text: str) -> list[int]:
    """The definition: while any two neighbours make a token, join those that make the best one, the first if equal."""
    tokens, scores, types = sentencepiece_parts()
    id_of = {token: i for i, token in enumerate(tokens)}
    score_of = {token: score for token, score, kind in zip(tokens, scores, types, strict=True) if kind == NORMAL}
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        joined = [(-score_of[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in score_of]
        if not joined:
            break
        _, i = min(joined)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    ids = []
    for symbol in symbols:
        ids += [id_of[symbol]] if symbol in score_of else [id_of[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return ids


def test_sentencepiece_text_survives_the_way_there_and_back() -> None:
    for text in TEXTS:
        if EOS not in text:  # after a special token a text begins anew, with a space
            assert sentencepiece().decode(sentencepiece().encode(text)) == text


def test_without_a_space_before_the_text_none_is_taken_away(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_sentencepiece(tmp_path / "m.gguf", add_space_prefix=False, add_bos_token=False))
    assert tokenizer.encode("a")[0] == sentencepiece().backend.token_to_id("a")
    assert tokenizer.decode(tokenizer.encode(" a")) == " a"


@pytest.mark.parametrize(
    ("kind", "entries", "before", "after"),
    [
        ("llama", {}, [1], []),
        ("llama", {"add_bos_token": False}, [], []),
        ("llama", {"add_bos_token": True, "add_eos_token": True}, [1], [2]),
        ("gpt-2", {}, [], []),
        ("gpt-2", {"add_bos_token": True, "bos_token_id": 1}, [1], []),
        ("llama-bpe", {"bos_token_id": 1}, [1], []),
        ("llama-bpe", {"bos_token_id": 1, "add_bos_token": False}, [], []),
    ],
)
def test_tokens_around_the_prompt_come_from_the_metadata(
    tmp_path: Path, kind: str, entries: dict[str, Any], before: list[int], after: list[int]
) -> None:
    file = tmp_path / "m.gguf"
    if kind == "llama":
        write_sentencepiece(file, **entries)
    else:
        write_byte_level(file, pre=kind, **entries)
    tokenizer = load_tokenizer(file)
    plain = tokenizer.encode("Hello", add_special_tokens=False)
    assert tokenizer.encode("Hello") == [*before, *plain, *after]


@pytest.mark.parametrize(
    ("kind", "pre", "message"),
    [
        ("bert", "gpt-2", "tokenizer 'bert' is not supported; supported are gpt2"),
        ("gpt2", "tekken", "pre-tokenizer 'tekken' is not supported; supported are default, gpt-2, smollm"),
        ("llama", None, "its tokenizer is damaged"),  # it has no scores
    ],
)
def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path, kind: str, pre: str | None, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_tokenizer(write_byte_level(tmp_path / "m.gguf", kind, pre))


def test_a_bos_token_that_is_not_told_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="its tokenizer is damaged"):
        load_tokenizer(write_byte_level(tmp_path / "m.gguf", add_bos_token=True))
