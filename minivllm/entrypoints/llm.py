"""Owns offline generation: prompts in, finished completions out. Upstream: vllm/entrypoints/llm.py::LLM."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from minivllm.engine.arg_utils import DEFAULT_MODEL, EngineArgs
from minivllm.engine.input_processor import Prompt
from minivllm.engine.llm_engine import LLMEngine
from minivllm.entrypoints.chat_utils import Message, apply_chat_template
from minivllm.entrypoints.progress import Progress
from minivllm.models.generation_config import recommended_sampling
from minivllm.outputs import RequestOutput
from minivllm.sampling_params import RequestOutputKind, SamplingParams
from minivllm.sourcemap.registry import on_map
from minivllm.tokenizer import Tokenizer


class LLM:
    """A loaded model, ready to generate.

    Args:
        model: Name of a model at hand, a folder in Hugging Face layout, or a .gguf file.
        **kwargs: Any other field of `EngineArgs`, e.g. `max_model_len`, `block_size`, `dtype`, `seed`.

    Raises:
        ModelError: There is no such model, or its files are damaged or not supported.
        ValueError: Settings that contradict each other, the model or this machine.

    Example:
        >>> from minivllm import LLM, SamplingParams
        >>> llm = LLM(model="stories-5m")
        >>> [output] = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=8))
        >>> len(output.outputs[0].token_ids)
        8
    """

    def __init__(self, model: str = DEFAULT_MODEL, **kwargs: Any) -> None:
        self.llm_engine = LLMEngine.from_engine_args(EngineArgs.from_kwargs(model=model, **kwargs))
        self._recommended = recommended_sampling(model)
        self._request_ids = itertools.count()
        # The engine is one loop. Threads that share an LLM take turns; AsyncLLM serves many callers at once.
        self._one_call_at_a_time = threading.Lock()

    @on_map("offline entry", vllm="vllm/entrypoints/llm.py::LLM.generate", process="frontend")
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Generate completions for each prompt.

        All prompts are checked and queued first; the scheduler then batches them as it sees fit.

        Args:
            prompts: One prompt or several; each is text, `{"prompt": "text"}` or `{"prompt_token_ids": [...]}`.
            sampling_params: For all prompts, or one for each; None for `get_default_sampling_params`.
            use_tqdm: Show on a terminal how far it is.
            priority: One a prompt, lower first; only with `scheduling_policy="priority"`.

        Returns:
            One output for each prompt, in the order of the prompts.

        Raises:
            ValueError: A prompt or a parameter that cannot be served; then none of the prompts is generated.
        """
        with self._one_call_at_a_time:
            return self._generate(prompts, sampling_params, use_tqdm, priority)

    def _generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        if not isinstance(prompts, str | dict | Sequence):
            raise ValueError(f"prompts is one prompt or a list of them, got {type(prompts).__name__}")
        all_prompts = [prompts] if isinstance(prompts, str | dict) else list(prompts)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        all_params = _one_each(sampling_params, len(all_prompts), "sampling_params")
        priorities = [0] * len(all_prompts) if priority is None else list(priority)
        if len(priorities) != len(all_prompts):
            raise ValueError(f"priority has {len(priorities)} entries for {len(all_prompts)} prompts")
        request_ids = [str(next(self._request_ids)) for _ in all_prompts]
        done: dict[str, RequestOutput] = {}
        try:
            for request_id, prompt, params, rank in zip(request_ids, all_prompts, all_params, priorities, strict=True):
                params = msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)
                self.llm_engine.add_request(request_id, prompt, params, priority=rank)
            with Progress("prompts", len(all_prompts), enabled=use_tqdm) as progress:
                while self.llm_engine.has_unfinished_requests():
                    for output in self.llm_engine.step():
                        done[output.request_id] = output
                        progress.advance(sum(len(completion.token_ids) for completion in output.outputs))
        finally:
            # After an error or an interrupt nothing of this call is left behind.
            self.llm_engine.abort_request([request_id for request_id in request_ids if request_id not in done])
        return [done[request_id] for request_id in request_ids]

    @on_map("offline chat", vllm="vllm/entrypoints/llm.py::LLM.chat", process="frontend")
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several.

        Args:
            messages: A conversation is a list of `{"role": ..., "content": ...}`.
            sampling_params: As in `generate`.
            use_tqdm: As in `generate`.
            chat_template: Jinja source; None takes the model's own.
            add_generation_prompt: End the prompt with the beginning of an answer.
            continue_final_message: End it inside the last message instead, for the model to go on with it.
            tools: Functions that the model may call, as JSON schemas; the template writes them down.
            chat_template_kwargs: What else the template can use.

        Returns:
            One output for each conversation, in their order.

        Raises:
            ValueError: See `generate`; or a conversation that the template cannot write down.
        """
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts = [
            apply_chat_template(
                self.get_tokenizer(),
                conversation,  # type: ignore[arg-type]
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                **(chat_template_kwargs or {}),
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's files recommend (`generation_config.json`); vLLM's defaults for what they leave open."""
        return msgspec.structs.replace(SamplingParams(), **self._recommended)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises ValueError if it has none."""
        if self.llm_engine.tokenizer is None:
            raise ValueError("this model has no tokenizer")
        return self.llm_engine.tokenizer


def _one_each(params: SamplingParams | Sequence[SamplingParams], num_prompts: int, name: str) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if isinstance(params, str | dict) or not all(isinstance(entry, SamplingParams) for entry in params):
        raise ValueError(f"{name} is a SamplingParams, or a list with one for each prompt, got {str(params)[:80]}")
    if len(params) != num_prompts:
        raise ValueError(f"{name} has {len(params)} entries for {num_prompts} prompts: give one, or one for each")
    return list(params)
