"""Owns text as it grows: token ids come in, and only text that can no longer change goes out.

A token is not a piece of text. A character may be spread over several tokens, and how a token reads may depend on the
one before it. So each update decodes a short window, the last settled tokens and the pending ones, and what is new is
what goes beyond the settled tokens' own text.

Upstream: vllm/v1/engine/detokenizer.py::SlowIncrementalDetokenizer.
"""

from __future__ import annotations

from minivllm.sourcemap.registry import on_map
from minivllm.tokenizer import Tokenizer

# What decoding puts for bytes that are no character, so also for the first bytes of one.
_REPLACEMENT = "\ufffd"
# Prompt tokens that give the first output its context. A character has at most 4 bytes, so it begins within these.
_PROMPT_TAIL = 6


class IncrementalDetokenizer:
    """The text of one request's output.

    Args:
        tokenizer: The model's tokenizer.
        prompt_token_ids: The prompt. Only its end matters, as the context of the first output token.
        skip_special_tokens: Leave special tokens out of the text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: list[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._pending: list[int] = []
        self._settle(prompt_token_ids[-_PROMPT_TAIL:])

    @on_map("ids to text", vllm="vllm/v1/engine/detokenizer.py::BaseIncrementalDetokenizer.update", process="frontend")
    def update(self, new_token_ids: list[int]) -> str:
        """Take new tokens, and return the text that they complete (possibly none yet)."""
        self._pending += new_token_ids
        text = self._decode(self._settled + self._pending)
        delta = self._beyond_settled(text)
        if not delta or text.endswith(_REPLACEMENT):
            return ""
        self._settle(self._pending)
        return delta

    def flush(self) -> str:
        """Return what is still held back, at the end: a character that never became complete shows as U+FFFD."""
        delta = self._beyond_settled(self._decode(self._settled + self._pending))
        self._settle(self._pending)
        return delta

    def _settle(self, token_ids: list[int]) -> None:
        self._settled = token_ids
        self._settled_text = self._decode(token_ids)
        self._pending = []

    def _beyond_settled(self, text: str) -> str:
        # Not simply text[len(settled_text):]. Where the prompt ends inside a character, the settled text ends in
        # U+FFFD and the output turns that into the character: the common part is then shorter.
        return text[_common_length(self._settled_text, text) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip_special_tokens)


def _common_length(left: str, right: str) -> int:
    """How many leading characters two texts share."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
