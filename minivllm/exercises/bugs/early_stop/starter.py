"""From tokens to text, and to the end of it. The engine runs this function instead of its own; it has a fault."""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.engine.detokenizer import IncrementalDetokenizer


def update(self: IncrementalDetokenizer, new_token_ids: Sequence[int], stop_terminated: bool) -> str | None:
    """Take new tokens, one by one, up to the first that completes a stop string.

    Args:
        self: The text so far; `_find_stop(n)` looks for a stop string that ends in the last n characters, cuts the text
            there, and gives the string, or None.
        new_token_ids: What a step brought.
        stop_terminated: The last of them ended the request (end of sequence, or a stop id): it counts, and is no text
            unless the stop is to be included.

    Returns:
        The stop string that was met, if one was.
    """
    if self._stream is None:
        self.token_ids.extend(new_token_ids)
        return None
    num_readable = len(new_token_ids) - (stop_terminated and not self._include_stop)
    for token_id in new_token_ids[:num_readable]:
        self.token_ids.append(token_id)
        if text := self._stream.step(token_id):
            self.output_text += text
            self._text_ends += [len(self.output_text)] * (len(self.token_ids) - len(self._text_ends))
            if (stop := self._find_stop(len(text))) is not None:
                return stop
    self.token_ids.extend(new_token_ids[num_readable:])
    return None
