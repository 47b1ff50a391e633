"""How the learner's stream gets into the frontend: as the stream of every completion, and as what it may send."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from minivllm.engine.detokenizer import DecodeStream, IncrementalDetokenizer
from minivllm.tokenizer import Tokenizer


def seam(part: ModuleType) -> dict[str, Any]:
    """What takes the place of which symbol."""

    class Stream(DecodeStream):
        def __init__(
            self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool, *more: Any
        ) -> None:
            super().__init__(tokenizer, prompt_token_ids, skip_special_tokens, *more)
            self._stream = part.TextStream(lambda ids: tokenizer.decode(ids, skip_special_tokens), prompt_token_ids)

        def step(self, token_id: int) -> str:
            super().step(token_id)  # for the maps, which show what is pending
            return self._stream.step(token_id)

    def settled(self: IncrementalDetokenizer, finished: bool) -> tuple[int, int]:
        stop = () if self._include_stop else self._stop
        num_chars = part.sendable(self.output_text, stop, finished)
        if finished or not stop:
            return num_chars, len(self.token_ids)
        return num_chars, bisect_right(self._text_ends, num_chars)

    home = "minivllm.engine.detokenizer"
    return {f"{home}:DecodeStream": Stream, f"{home}:IncrementalDetokenizer.settled": settled}
