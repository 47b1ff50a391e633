"""Owns text as it grows: token ids come in, and only text that can no longer change goes out.

Two things keep text back. A character may be spread over several tokens, and how a token reads may depend on the one
before it: `DecodeStream` waits for the rest. And the text may end in the first half of a stop string:
`IncrementalDetokenizer` keeps as many characters back as such a half can have.

Upstream: vllm/v1/engine/detokenizer.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from minivllm.sampling_params import SamplingParams
from minivllm.sourcemap.registry import on_map
from minivllm.tokenizer import Tokenizer

# What decoding puts for bytes that are no character, so also for the first bytes of one.
_REPLACEMENT = "\ufffd"
# Prompt tokens that give the first output its context. A character has at most 4 bytes, so it begins within these.
_PROMPT_TAIL = 6


class DecodeStream:
    """The text of tokens that come one by one.

    Each step decodes a short window, the last settled tokens and the pending ones; what is new is what goes beyond the
    settled tokens' own text. A character that the last tokens leave incomplete never comes out.

    Args:
        tokenizer: The model's tokenizer.
        prompt_token_ids: The prompt. Only its end matters, as the context of the first output token.
        skip_special_tokens: Leave special tokens out of the text.
        spaces_between: Let the tokenizer put spaces between added tokens that follow each other. Without, the second
            one reads as it is written.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool,
        spaces_between: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._joins_added = not (skip_special_tokens or spaces_between)
        self._after_added = False
        self._pending: list[int] = []
        self._settle(list(prompt_token_ids[-_PROMPT_TAIL:]))

    def step(self, token_id: int) -> str:
        """Take one token, and return the text that it completes (possibly none yet)."""
        text = self._step(token_id)
        if self._joins_added:
            added = self._tokenizer.added_token(token_id)
            if added is not None and self._after_added:
                text = added
            self._after_added = added is not None
        return text

    def _step(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._decode(self._settled + self._pending)
        # Not simply text[len(settled_text):]. Where the prompt ends inside a character, the settled text ends in
        # U+FFFD and the output turns that into the character: the common part is then shorter.
        delta = text[_common_length(self._settled_text, text) :]
        if not delta or text.endswith(_REPLACEMENT):
            return ""
        self._settle(self._pending)
        return delta

    def _settle(self, token_ids: list[int]) -> None:
        self._settled = token_ids
        self._settled_text = self._decode(token_ids)
        self._pending = []

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip_special_tokens)


def _common_length(left: str, right: str) -> int:
    """How many leading characters two texts share."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


class IncrementalDetokenizer:
    """The tokens and the text of one completion, and whether the text has met a stop string.

    Args:
        tokenizer: The model's tokenizer; None leaves the text empty.
        prompt_token_ids: The prompt.
        params: What its caller asked for.

    Attributes:
        token_ids: Every output token, up to the one that completed a stop string.
        output_text: Their text, cut at the stop string once there is one.
        stop_buffer_length: Characters at the end that are kept back while the output goes on: all but one of the
            longest stop string, whatever they are.
    """

    def __init__(self, tokenizer: Tokenizer | None, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self.token_ids: list[int] = []
        self.output_text = ""
        self._stop = tuple(params.stop)
        self._min_tokens = params.min_tokens
        self._include_stop = params.include_stop_str_in_output
        self.stop_buffer_length = 0 if self._include_stop or not self._stop else max(map(len, self._stop)) - 1
        self._stream: DecodeStream | None = None
        if tokenizer is not None and params.detokenize:
            self._stream = DecodeStream(
                tokenizer, prompt_token_ids, params.skip_special_tokens, params.spaces_between_special_tokens
            )
        # For each token whose text is known: the length of the output text with it.
        self._text_ends: list[int] = []

    @on_map("ids to text", vllm="vllm/v1/engine/detokenizer.py::BaseIncrementalDetokenizer.update", process="frontend")
    def update(self, new_token_ids: Sequence[int], stop_terminated: bool) -> str | None:
        """Take new tokens, one by one, up to the first that completes a stop string.

        Args:
            new_token_ids: What a step brought.
            stop_terminated: The last of them ended the request (end of sequence, or a stop id): it counts, and is no
                text unless the stop is to be included.

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
                # Text of the first min_tokens tokens can end no request; it may be the first half of a match that does.
                if len(self.token_ids) > self._min_tokens and (stop := self._find_stop(len(text))) is not None:
                    return stop
        self.token_ids.extend(new_token_ids[num_readable:])
        return None

    def _find_stop(self, num_new_chars: int) -> str | None:
        found = check_stop_strings(self.output_text, num_new_chars, self._stop, self._include_stop)
        if found is None:
            return None
        stop, length = found
        self.output_text = self.output_text[:length]
        return stop

    def settled(self, finished: bool) -> tuple[int, int]:
        """How many characters and how many tokens a caller may see now.

        Where text is kept back, so are the tokens that it came from: a caller never has a token without its text.
        """
        if finished or not self.stop_buffer_length:
            return len(self.output_text), len(self.token_ids)
        num_chars = max(0, len(self.output_text) - self.stop_buffer_length)
        return num_chars, bisect_right(self._text_ends, num_chars)


def check_stop_strings(
    output_text: str, num_new_chars: int, stop: Sequence[str], include_in_output: bool
) -> tuple[str, int] | None:
    """Find the stop string that ends first; of those that end together, the first of the list.

    Only matches that end in the new characters count: what came before has been searched.
    Upstream: vllm/v1/engine/detokenizer.py::check_stop_strings.

    Returns:
        The stop string, and the length to which the text is cut: where it begins, or, if it is included, ends.
    """
    settled = len(output_text) - num_new_chars
    best: tuple[int, str] | None = None
    for string in stop:
        begin = output_text.find(string, max(0, settled - len(string) + 1))
        if begin >= 0 and (best is None or begin + len(string) < best[0]):
            best = (begin + len(string), string)
    if best is None:
        return None
    end, string = best
    return string, end if include_in_output else end - len(string)
