"""Owns the tokenizer inside a .gguf file: byte-level BPE, rebuilt from the metadata.

The metadata names how text is split before BPE only by a short word ("pre"); what the word means lives in llama.cpp's
code. So each word that is accepted here is spelled out, and any other is refused: a wrong split gives wrong ids.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from minivllm.models.errors import ModelError
from minivllm.models.gguf_header import read_header
from minivllm.tokenizer import Tokenizer

_CONTROL, _USER_DEFINED = 3, 4  # token types
_SPECIAL = {
    "bos_token": "ggml.bos_token_id",
    "eos_token": "ggml.eos_token_id",
    "unk_token": "ggml.unknown_token_id",
    "pad_token": "ggml.padding_token_id",
}
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def from_gguf(path: Path) -> Tokenizer:
    """Build the tokenizer of a GGUF file. Raises ModelError for kinds that are not supported."""
    entries = {key.removeprefix("tokenizer."): value for key, value in read_header(path).metadata.items()}
    kind, pre = entries.get("ggml.model"), entries.get("ggml.pre", "default")
    if kind != "gpt2":
        raise ModelError(f"{path}: tokenizer {kind!r} is not supported, only 'gpt2' (byte-level BPE); pass --tokenizer")
    if entries.get("ggml.add_bos_token", False):
        raise ModelError(f"{path}: tokenizers that put a token before every prompt are not supported; pass --tokenizer")
    try:
        tokens: list[str] = entries["ggml.tokens"]
        merges = [tuple(merge.split(" ", 1)) for merge in entries["ggml.merges"]]
        backend = Backend(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path}: its tokenizer is damaged ({error!r})") from None
    backend.pre_tokenizer = _split(path, pre)
    backend.decoder = decoders.ByteLevel()
    types = entries.get("ggml.token_type", [])
    backend.add_special_tokens(_added(tokens, types, _CONTROL, special=True))
    backend.add_tokens(_added(tokens, types, _USER_DEFINED, special=False))
    special_tokens = {name: tokens[entries[key]] for name, key in _SPECIAL.items() if key in entries}
    return Tokenizer(backend, entries.get("ggml.eos_token_id"), entries.get("chat_template"), special_tokens)


def _added(tokens: list[str], types: list[int], kind: int, *, special: bool) -> list[AddedToken]:
    """The tokens of one type, which text is matched against before it is split."""
    chosen = [token for token, token_type in zip(tokens, types, strict=False) if token_type == kind]
    return [AddedToken(token, special=special, normalized=False) for token in chosen]


def _split(path: Path, pre: str) -> pre_tokenizers.PreTokenizer:
    """How text is cut before BPE."""
    if pre == "smollm":
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if pre in ("gpt-2", "default"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "llama-bpe":
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    raise ModelError(
        f"{path}: pre-tokenizer {pre!r} is not supported; supported are smollm, gpt-2 and llama-bpe; pass --tokenizer"
    )
