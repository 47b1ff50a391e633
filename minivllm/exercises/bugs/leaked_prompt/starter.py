"""The beginning of a text stream. The engine runs this function instead of its own, and it has a fault."""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.engine.detokenizer import DecodeStream
from minivllm.tokenizer import Tokenizer

# What decoding puts for bytes that are no character.
_REPLACEMENT = "\ufffd"


def begin(
    self: DecodeStream,
    tokenizer: Tokenizer,
    prompt_token_ids: Sequence[int],
    skip_special_tokens: bool,
    spaces_between: bool = True,
) -> None:
    """Begin a text behind a prompt.

    The stream decodes `_settled + _pending` at each token, and what goes beyond `_settled_text` is new. `_settle(ids)`
    makes ids the settled ones, with their text, and empties `_pending`; `_decode(ids)` gives a text.

    Args:
        self: The stream.
        tokenizer: The model's tokenizer.
        prompt_token_ids: The prompt: the context of the first output token.
        skip_special_tokens: Leave special tokens out of the text.
        spaces_between: Put spaces between added tokens that follow each other.
    """
    self._tokenizer = tokenizer
    self._skip_special_tokens = skip_special_tokens
    self._joins_added = not (skip_special_tokens or spaces_between)
    self._after_added = False
    self._settled = []
    self._settled_text = ""
    self._pending = list(prompt_token_ids)
    if not self._decode(self._pending).endswith(_REPLACEMENT):
        self._settle(self._pending)
