"""Owns the tokenizer inside a .gguf file, rebuilt from the metadata.

    "gpt2"    byte-level BPE: vocabulary and merges, as in GPT-2, Llama 3, Qwen and SmolLM2
    "llama"   SentencePiece BPE: vocabulary and scores, as in Llama 2 and Mistral

For "gpt2" the metadata names how text is split before BPE only by a short word ("pre"); what the word means lives in
llama.cpp's code. So each word that is accepted here is spelled out, and any other is refused: a wrong split gives
wrong ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from minivllm.models.errors import ModelError
from minivllm.models.gguf_header import read_header
from minivllm.tokenizer import Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # token types
_SPECIAL = {
    "bos_token": "ggml.bos_token_id",
    "eos_token": "ggml.eos_token_id",
    "unk_token": "ggml.unknown_token_id",
    "pad_token": "ggml.padding_token_id",
}
_SPACE = "▁"  # how SentencePiece writes a space
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class _Pre:
    """What one word of `pre` stands for.

    Attributes:
        split: Regular expression whose matches are the pieces; None is GPT-2's own.
        single_digits: Whether each digit is a piece.
        normalizer: What is done to the text first.
        ignore_merges: Whether a piece that is a token is taken as it is, without asking the merges.
        add_bos: Whether a prompt begins with the bos token if the file does not say.
    """

    split: str | None = None
    single_digits: bool = False
    normalizer: str | None = None
    ignore_merges: bool = False
    add_bos: bool = False


_PRE = {
    "default": _Pre(),
    "gpt-2": _Pre(),
    "smollm": _Pre(single_digits=True),
    "llama-bpe": _Pre(split=rf"{_WORDS}|\p{{N}}{{1,3}}{_REST}", ignore_merges=True, add_bos=True),
    "qwen2": _Pre(split=rf"{_WORDS}|\p{{N}}{_REST}", normalizer="NFC"),
}


def from_gguf(path: Path) -> Tokenizer:
    """Build the tokenizer of a GGUF file. Raises ModelError for kinds that are not supported."""
    entries = {key.removeprefix("tokenizer."): value for key, value in read_header(path).metadata.items()}
    kind = entries.get("ggml.model")
    if kind not in ("gpt2", "llama"):
        raise ModelError(
            f"{path}: tokenizer {kind!r} is not supported; supported are gpt2 (byte-level BPE) and llama "
            "(SentencePiece); pass --tokenizer"
        )
    pre = entries.get("ggml.pre", "default")
    if kind == "gpt2" and pre not in _PRE:
        raise ModelError(
            f"{path}: pre-tokenizer {pre!r} is not supported; supported are {', '.join(_PRE)}; pass --tokenizer"
        )
    try:
        backend = _byte_level(entries, _PRE[pre]) if kind == "gpt2" else _sentencepiece(entries)
        add_bos = entries.get("ggml.add_bos_token", _PRE[pre].add_bos if kind == "gpt2" else True)
        _add_around(backend, entries, add_bos, entries.get("ggml.add_eos_token", False))
        tokens = entries["ggml.tokens"]
        special_tokens = {name: tokens[entries[key]] for name, key in _SPECIAL.items() if key in entries}
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path}: its tokenizer is damaged ({error!r})") from None
    return Tokenizer(backend, entries.get("ggml.eos_token_id"), entries.get("chat_template"), special_tokens)


def _byte_level(entries: dict[str, Any], pre: _Pre) -> Backend:
    tokens: list[str] = entries["ggml.tokens"]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in entries["ggml.merges"]]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges))
    if pre.normalizer is not None:
        backend.normalizer = getattr(normalizers, pre.normalizer)()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if pre.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.split is not None:
        steps.append(pre_tokenizers.Split(Regex(pre.split), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.split is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, entries, special_types=(_CONTROL,))
    return backend


def _sentencepiece(entries: dict[str, Any]) -> Backend:
    """BPE whose merges follow from the scores; what has no token becomes the tokens of its bytes, <0x00> to <0xFF>."""
    tokens: list[str] = entries["ggml.tokens"]
    unknown = tokens[entries.get("ggml.unknown_token_id", 0)]
    backend = Backend(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=_merges(tokens, entries["ggml.scores"], entries["ggml.token_type"]),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if entries.get("ggml.add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = normalizers.Replace(" ", _SPACE)
    backend.decoder = decoders.Sequence(steps)
    _add_tokens(backend, entries, special_types=(_CONTROL, _UNKNOWN))
    return backend


def _merges(tokens: list[str], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Every way to make a token from two others, the token with the highest score first."""
    score_of = {
        token: score
        for token, score, kind in zip(tokens, scores, types, strict=True)
        if kind in (_NORMAL, _USER_DEFINED)
    }
    merges = [
        (-score, -at, token[:at], token[at:])
        for token, score in score_of.items()
        for at in range(1, len(token))
        if token[:at] in score_of and token[at:] in score_of
    ]
    return [(left, right) for _, _, left, right in sorted(merges)]


def _add_tokens(backend: Backend, entries: dict[str, Any], special_types: tuple[int, ...]) -> None:
    """Tell which tokens text is matched against before anything else is done to it."""
    typed = list(zip(entries["ggml.tokens"], entries.get("ggml.token_type", []), strict=False))
    special = [AddedToken(token, special=True, normalized=False) for token, kind in typed if kind in special_types]
    backend.add_special_tokens(special)
    backend.add_tokens([AddedToken(token, normalized=False) for token, kind in typed if kind == _USER_DEFINED])


def _add_around(backend: Backend, entries: dict[str, Any], add_bos: bool, add_eos: bool) -> None:
    """Put a token before every prompt, or after it."""
    ids = {"bos": entries["ggml.bos_token_id"]} if add_bos else {}
    ids |= {"eos": entries["ggml.eos_token_id"]} if add_eos else {}
    if ids:
        template = ["bos"] * add_bos + ["$A"] + ["eos"] * add_eos
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=list(ids.items()))
