"""Small tokenizers of the kinds that matter, trained on the spot."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

TEXT = [
    "Once upon a time there was a little girl. She liked to play, and she had 12 toys!",
    "Hello world. Hello there, wörld: naïve café, größer, 100 €.",
    "日本語のテキスト, 中文文本 и русский текст",
    "smile 😀 family 👨\u200d👩\u200d👧 flags 🇩🇪 end",
] * 3
EOS = "<|end|>"


def byte_level(vocab_size: int = 400) -> tokenizers.Tokenizer:
    """Byte-level BPE, as in GPT-2, Llama 3 and SmolLM2: rare characters are spread over several tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[EOS, "<|user|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def byte_fallback(vocab_size: int = 500) -> tokenizers.Tokenizer:
    """SentencePiece-like BPE, as in Llama 2: a space is part of a token, and what has no token falls back to bytes."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=["<unk>", EOS], show_progress=False)
    tokenizer.train_from_iterator(TEXT[:2], trainer)
    tokenizer.add_tokens(byte_tokens)
    return tokenizer


def save(tokenizer: tokenizers.Tokenizer, folder: Path) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
