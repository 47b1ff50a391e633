"""Owns the way between text and token ids, and what a model's files say about its tokens. No torch.

Upstream: vllm/tokenizers/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers

from minivllm.models.config import read_json
from minivllm.models.errors import ModelError

# How vocabularies of the SentencePiece family write a space.
_SPACE_MARK = "\u2581"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """One model's tokenizer.

    Attributes:
        eos_token_id: The id that ends a sequence; None if the model has none.
        chat_template: Jinja source that turns messages into a prompt; None if the model has none.
        special_tokens: The tokenizer's named special tokens, e.g. {"bos_token": "<s>"}: chat templates use them.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        eos_token_id: int | None,
        chat_template: str | None,
        special_tokens: dict[str, str],
    ) -> None:
        self.backend = backend
        self.eos_token_id = eos_token_id
        self.chat_template = chat_template
        self.special_tokens = special_tokens
        added = backend.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    @property
    def vocab_size(self) -> int:
        return self.backend.get_vocab_size()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text. Raises ValueError if it holds half a character (a lone surrogate)."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text cannot be written in UTF-8: {error.reason} at character {error.start}"
            ) from None
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def piece(self, token_id: int) -> str:
        """What one token adds to a text: with the space that decoding drops at the beginning of one. "" for an id
        without a token."""
        raw = self.backend.id_to_token(token_id)
        if raw is None:
            return ""
        text = self.decode([token_id], skip_special_tokens=False)
        num_spaces = len(raw) - len(raw.lstrip(_SPACE_MARK))
        return " " * (num_spaces - (len(text) - len(text.lstrip(" ")))) + text

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def added_token(self, token_id: int) -> str | None:
        """What a token that was added to the vocabulary is written as; None for all others."""
        return self._added.get(token_id)

    def token_text(self, token_id: int) -> str:
        """One token for display. A piece of a character shows as U+FFFD, an id without a token as <id>."""
        if self.backend.id_to_token(token_id) is None:
            return f"<{token_id}>"
        return self.decode([token_id], skip_special_tokens=False)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a tokenizer from a model folder, a tokenizer.json, or a .gguf file.

    Raises:
        ModelError: The file is missing, broken, or of a kind that is not supported.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        from minivllm.models.gguf_tokenizer import from_gguf

        return from_gguf(path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.exists():
        raise ModelError(f"{file}: no such file; a tokenizer is a tokenizer.json, a folder with one, or a .gguf file")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{file}: not a tokenizer ({error})") from None
    named = _read_if_there(file.parent / "tokenizer_config.json")
    where = file.parent / "tokenizer_config.json"
    special_tokens = {key: text for key in _SPECIAL if (text := _text(named.get(key), key, where))}
    return Tokenizer(
        backend,
        _eos_token_id(file.parent, backend, special_tokens),
        _chat_template(file.parent, named),
        special_tokens,
    )


def _read_if_there(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}


def _text(token: Any, key: str, file: Path) -> str | None:
    """A special token is written as a string, or as an object with its content."""
    text = token.get("content") if isinstance(token, dict) else token
    if text is not None and not isinstance(text, str):
        raise ModelError(f"{file}: {key} must be a text, got {text!r:.60}")
    return text


def _eos_token_id(folder: Path, backend: tokenizers.Tokenizer, special_tokens: dict[str, str]) -> int | None:
    if "eos_token" in special_tokens:
        return backend.token_to_id(special_tokens["eos_token"])
    for name in ("generation_config.json", "config.json"):
        eos = _read_if_there(folder / name).get("eos_token_id")
        ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise ModelError(f"{folder / name}: eos_token_id must be a token id or a list of them, got {eos!r:.60}")
        if ids:
            return int(ids[0])
    return None


def _chat_template(folder: Path, named: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ModelError(f"{file}: not a text in UTF-8") from None
    template = named.get("chat_template")
    if isinstance(template, list):  # several named templates
        named_ones = [entry for entry in template if isinstance(entry, dict)]
        template = next((entry.get("template") for entry in named_ones if entry.get("name") == "default"), None)
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{folder / 'tokenizer_config.json'}: chat_template must be a text, got {template!r:.60}")
    return template
