"""Text out of tokens that come one by one. Your class and function take the place of the frontend's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# What decoding puts for bytes that are no character yet.
_REPLACEMENT = "\ufffd"


class TextStream:
    """The text of tokens that come one by one.

    Args:
        decode: Turns token ids into text.
        prompt_token_ids: What came before; only the last few matter.
    """

    def __init__(self, decode: Callable[[list[int]], str], prompt_token_ids: Sequence[int]) -> None:
        raise NotImplementedError("remember the end of the prompt")

    def step(self, token_id: int) -> str:
        """Take one token; return the text that it completes, "" if there is none yet."""
        raise NotImplementedError("decode a short window, and send what is new")


def sendable(text: str, stop: Sequence[str], finished: bool) -> int:
    """How many characters of a text its caller may be sent now.

    Args:
        text: All text so far; it holds no complete stop string.
        stop: The stop strings.
        finished: The request has ended.
    """
    raise NotImplementedError("keep back what may be the first half of a stop string")
