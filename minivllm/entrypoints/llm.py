"""Owns offline generation: prompts in, finished completions out. Upstream: vllm/entrypoints/llm.py::LLM."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from minivllm.engine.arg_utils import DEFAULT_MODEL, EngineArgs
from minivllm.engine.input_processor import Prompt
from minivllm.engine.llm_engine import LLMEngine
from minivllm.outputs import RequestOutput
from minivllm.sampling_params import SamplingParams
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
        self._request_ids = itertools.count()

    @on_map("offline entry", vllm="vllm/entrypoints/llm.py::LLM.generate", process="frontend")
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Generate one completion for each prompt.

        All prompts are checked and queued first; the scheduler then batches them as it sees fit.

        Args:
            prompts: One prompt or several; each is text or `{"prompt_token_ids": [...]}`.
            sampling_params: For all prompts, or one for each; None for the defaults.
            priority: One a prompt, lower first; only with `scheduling_policy="priority"`.

        Returns:
            One output for each prompt, in the order of the prompts.

        Raises:
            ValueError: A prompt or a parameter that cannot be served; then none of the prompts is generated.
        """
        all_prompts = [prompts] if isinstance(prompts, str | dict) else list(prompts)
        all_params = _one_each(sampling_params or SamplingParams(), len(all_prompts), "sampling_params")
        priorities = [0] * len(all_prompts) if priority is None else list(priority)
        if len(priorities) != len(all_prompts):
            raise ValueError(f"priority has {len(priorities)} entries for {len(all_prompts)} prompts")
        request_ids = [str(next(self._request_ids)) for _ in all_prompts]
        done: dict[str, RequestOutput] = {}
        try:
            for request in zip(request_ids, all_prompts, all_params, priorities, strict=True):
                self.llm_engine.add_request(*request[:3], priority=request[3])
            while self.llm_engine.has_unfinished_requests():
                done.update({output.request_id: output for output in self.llm_engine.step() if output.finished})
        finally:
            # After an error or an interrupt nothing of this call is left behind.
            self.llm_engine.abort_request([request_id for request_id in request_ids if request_id not in done])
        return [done[request_id] for request_id in request_ids]

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises ValueError if it has none."""
        if self.llm_engine.tokenizer is None:
            raise ValueError("this model has no tokenizer")
        return self.llm_engine.tokenizer


def _one_each(params: SamplingParams | Sequence[SamplingParams], num_prompts: int, name: str) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if len(params) != num_prompts:
        raise ValueError(f"{name} has {len(params)} entries for {num_prompts} prompts: give one, or one for each")
    return list(params)
