"""Owns what a request must be before the core sees it: text becomes tokens, gaps are filled, nonsense is refused.

Upstream: vllm/v1/engine/input_processor.py::InputProcessor.
"""

from __future__ import annotations

import operator
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec

from minivllm.config import VllmConfig
from minivllm.core.messages import EngineCoreRequest
from minivllm.engine import sampling_completion
from minivllm.sampling_params import SamplingParams
from minivllm.sourcemap.registry import on_map
from minivllm.tokenizer import Tokenizer


class TextPrompt(TypedDict):
    """A prompt that is text. Upstream: vllm/inputs.py::TextPrompt."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt that is tokens already, and perhaps the text they came from. Upstream: vllm/inputs.py::TokensPrompt."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


Prompt = str | Sequence[int] | TextPrompt | TokensPrompt


def prompt_text(prompt: Prompt) -> str | None:
    """A prompt as text, if it is known as text."""
    if isinstance(prompt, dict):
        return prompt.get("prompt")
    return prompt if isinstance(prompt, str) else None


def prompt_to_seq(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list of them; a list of whole numbers is one prompt of token ids.

    Upstream: vllm/renderers/inputs/preprocess.py::prompt_to_seq.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(prompts, str | dict):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise ValueError(f"prompts is one prompt or a list of them, got {type(prompts).__name__}")
    if prompts and all(isinstance(entry, int) and not isinstance(entry, bool) for entry in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def assign_request_id(request: EngineCoreRequest) -> EngineCoreRequest:
    """Give a request an id that nobody else uses, whatever ids callers choose.

    Upstream: vllm/v1/engine/input_processor.py::InputProcessor.assign_request_id.
    """
    return msgspec.structs.replace(request, request_id=f"{request.request_id}-{secrets.token_hex(4)}")


class InputProcessor:
    """Turns prompts into requests for the core.

    Args:
        vllm_config: For the model's length and the limits of requests.
        tokenizer: The model's tokenizer; None if every prompt is tokens.
        vocab_size: Token ids must be below it.
        eos_token_ids: End-of-sequence ids: the first ends a request without a stop reason, the others are stop ids.
    """

    def __init__(
        self, vllm_config: VllmConfig, tokenizer: Tokenizer | None, vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        self.max_model_len = vllm_config.scheduler_config.max_model_len
        self.max_logprobs = vllm_config.model_config.max_logprobs
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        # Checked in one go: a prompt may have thousands of ids, and everybody waits until all prompts are checked.
        self._known_ids = list[Annotated[int, msgspec.Meta(ge=0, lt=vocab_size)]]
        own = tokenizer.eos_token_id if tokenizer is not None else None
        self.eos_token_ids = list(dict.fromkeys([*([] if own is None else [own]), *eos_token_ids]))

    @on_map(
        "process input",
        vllm="vllm/v1/engine/input_processor.py::InputProcessor.process_inputs",
        process="frontend",
    )
    def process_inputs(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        arrival_time: float = 0.0,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> EngineCoreRequest:
        """Check a prompt and its parameters, and fill in what the caller left open.

        Raises:
            ValueError: The prompt is empty, too long, or has token ids that the model does not know; or a
                parameter is beyond its limit.
        """
        if isinstance(priority, bool) or not isinstance(priority, int) or not -(2**63) <= priority < 2**63:
            raise ValueError(f"priority must be a whole number of 64 bits, got {priority!r}")
        if isinstance(prompt, dict):
            cache_salt = prompt.get("cache_salt", cache_salt)
        _check_salt(cache_salt)
        token_ids = self._tokenize(prompt)
        if not token_ids:
            raise ValueError("the prompt is empty: give it at least one token")
        params = msgspec.structs.replace(params)  # checked again: its caller may have changed it
        sampling_completion.verify(params, self.vocab_size, self.max_logprobs)
        if params.stop and self.tokenizer is None:
            raise ValueError("this model has no tokenizer, so no text that could hold a stop string: leave stop out")
        room = self.max_model_len - len(token_ids)
        if room < 1:
            raise ValueError(
                f"the prompt has {len(token_ids)} tokens, and max_model_len {self.max_model_len} leaves no room for an "
                "output token: shorten the prompt, or raise max_model_len if the model was made for more"
            )
        return EngineCoreRequest(
            request_id,
            token_ids,
            sampling_completion.complete(params, room, self.tokenizer, self.vocab_size, self.eos_token_ids),
            arrival_time=arrival_time,
            priority=priority,
            cache_salt=cache_salt,
        )

    def _tokenize(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            prompt = {"prompt": prompt}
        elif isinstance(prompt, list | tuple):
            prompt = {"prompt_token_ids": prompt}
        elif not isinstance(prompt, dict):
            raise ValueError(f"a prompt is text or {{'prompt_token_ids': [...]}}, got {type(prompt).__name__}")
        prompt = {name: value for name, value in prompt.items() if value is not None}  # type: ignore[assignment]
        if unknown := set(prompt) - {"prompt", "prompt_token_ids", "cache_salt"}:
            raise ValueError(
                f"a prompt has no {sorted(map(str, unknown))[0]!r}; known are prompt, prompt_token_ids and cache_salt"
            )
        if "prompt_token_ids" in prompt:
            return self._checked_ids(prompt["prompt_token_ids"])  # type: ignore[typeddict-item]
        text = prompt.get("prompt")
        if not isinstance(text, str):
            raise ValueError(f"a prompt is text or {{'prompt_token_ids': [...]}}, got {text!r}")
        if not text:
            raise ValueError("the prompt is empty: give it at least one character")
        if self.tokenizer is None:
            raise ValueError("this model has no tokenizer: pass {'prompt_token_ids': [...]} instead of text")
        return self._checked_ids(self.tokenizer.encode(text))

    def _checked_ids(self, token_ids: Any) -> list[int]:
        """Token ids as plain integers that the model knows; what would have to be rounded or guessed is refused."""
        try:
            return msgspec.convert(token_ids, self._known_ids)
        except msgspec.ValidationError:
            pass  # something is wrong with them, or they are integers of another kind, such as NumPy's
        ids = _plain_ids(token_ids)
        for position, token_id in enumerate(ids):
            if not 0 <= token_id < self.vocab_size:
                raise ValueError(
                    f"token id {token_id} at position {position} of the prompt is out of range: "
                    f"the model's vocabulary has {self.vocab_size} tokens, 0 to {self.vocab_size - 1}"
                )
        return ids


def _check_salt(salt: Any) -> None:
    """Refuse what is no text: it is a part of a block's hash, and a field of a typed message."""
    if salt is not None:
        try:
            str.encode(salt)
        except (TypeError, UnicodeEncodeError):
            raise ValueError(f"cache_salt must be a text in UTF-8, got {salt!a:.80}") from None


def _plain_ids(token_ids: Any) -> list[int]:
    try:
        ids = list(token_ids)
        if not any(isinstance(token_id, bool) for token_id in ids):
            return [operator.index(token_id) for token_id in ids]
    except TypeError:
        pass
    raise ValueError(f"prompt_token_ids is a list of whole numbers, got {str(token_ids)[:80]}")
