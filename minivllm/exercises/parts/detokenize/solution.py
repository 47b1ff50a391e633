"""Text out of tokens that come one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# What decoding puts for bytes that are no character yet.
_REPLACEMENT = "\ufffd"
# A character has at most four bytes, so it begins within these.
_PROMPT_TAIL = 6


class TextStream:
    """The text of tokens that come one by one.

    Args:
        decode: Turns token ids into text.
        prompt_token_ids: What came before; only the last few matter.
    """

    def __init__(self, decode: Callable[[list[int]], str], prompt_token_ids: Sequence[int]) -> None:
        self._decode = decode
        self._settle(list(prompt_token_ids[-_PROMPT_TAIL:]))

    def step(self, token_id: int) -> str:
        """Take one token; return the text that it completes, "" if there is none yet."""
        self._pending.append(token_id)
        text = self._decode(self._settled + self._pending)
        delta = text[len(self._settled_text) :]
        if not delta or text.endswith(_REPLACEMENT):
            return ""
        self._settle(self._pending)
        return delta

    def _settle(self, token_ids: list[int]) -> None:
        self._settled = token_ids
        self._settled_text = self._decode(token_ids)
        self._pending: list[int] = []


def sendable(text: str, stop: Sequence[str], finished: bool) -> int:
    """How many characters of a text its caller may be sent now.

    Args:
        text: All text so far; it holds no complete stop string.
        stop: The stop strings.
        finished: The request has ended.
    """
    if finished or not stop:
        return len(text)
    longest = max(map(len, stop))
    return max(0, len(text) - (longest - 1))
