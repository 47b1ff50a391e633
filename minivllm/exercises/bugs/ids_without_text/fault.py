"""How much a caller may see: the text without its end, and every id."""

from __future__ import annotations

from minivllm.engine.detokenizer import IncrementalDetokenizer


def settled(self: IncrementalDetokenizer, finished: bool) -> tuple[int, int]:
    """How many characters and how many tokens a caller may see now."""
    if finished or not self.stop_buffer_length:
        return len(self.output_text), len(self.token_ids)
    return max(0, len(self.output_text) - self.stop_buffer_length), len(self.token_ids)
