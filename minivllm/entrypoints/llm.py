"""Owns offline generation: prompts in, finished completions out. Upstream: vllm/entrypoints/llm.py::LLM."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from minivllm.engine.arg_utils import DEFAULT_MODEL, EngineArgs
from minivllm.engine.input_processor import Prompt, prompt_text, prompt_to_seq
from minivllm.engine.llm_engine import LLMEngine
from minivllm.entrypoints.chat_utils import Message, apply_chat_template, load_chat_template
from minivllm.entrypoints.progress import make_progress
from minivllm.models.generation_config import recommended_sampling
from minivllm.outputs import RequestOutput
from minivllm.sampling_params import RequestOutputKind, SamplingParams
from minivllm.sourcemap.registry import on_map
from minivllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from minivllm.metrics_reader import Metric
_GENERATES = "models here generate text; embeddings, classes, rewards and scores are another kind of model"
# What vLLM's LLM has beyond this one, and why not here.
_NOT_HERE = {
    **dict.fromkeys(("embed", "encode", "classify", "score", "reward"), _GENERATES),
    "beam_search": "take n completions, or logprobs and a search of your own",
    **dict.fromkeys(("sleep", "wake_up"), "the engine does not sleep; shutdown releases the model"),
    **dict.fromkeys(("start_profile", "stop_profile"), "see minivllm trace for where time goes"),
    **dict.fromkeys(("collective_rpc", "apply_model"), "the worker is called by its core only"),
}


class LLM:
    """A loaded model, ready to generate.

    Args:
        model: Name of a model at hand, a folder in Hugging Face layout, or a .gguf file.
        chat_template: Jinja source, or a file that holds it, for every `chat`; None takes the model's own.
        **kwargs: Any other field of `EngineArgs`, e.g. `max_model_len`, `block_size`, `dtype`, `seed`. Only here
            `disable_log_stats` is True unless it is given, as in vLLM: who generates offline rarely reads metrics, and
            keeping them takes time in every step.

    Raises:
        ModelError: There is no such model, or its files are damaged or not supported.
        ValueError: Settings that contradict each other, the model or this machine.

    Example:
        >>> from minivllm import LLM, SamplingParams
        >>> llm = LLM(model="stories-5m")
        >>> [output] = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=8))
        >>> len(output.outputs[0].token_ids)
        8
        >>> llm.shutdown()

    The model stays in memory until `shutdown`, or the end of a `with` block, or until nobody holds the object.
    """

    def __init__(
        self, model: str | os.PathLike[str] = DEFAULT_MODEL, *, chat_template: str | Path | None = None, **kwargs: Any
    ) -> None:
        kwargs.setdefault("disable_log_stats", True)
        args = EngineArgs.from_kwargs(model=os.fspath(model), **kwargs)
        self.chat_template = load_chat_template(chat_template)
        self._recommended = recommended_sampling(args.model) if args.generation_config == "auto" else {}
        self._recommended |= args.override_generation_config or {}
        try:
            self.get_default_sampling_params()  # before anything is loaded
        except ValueError as error:
            where = f"generation_config.json of {args.model} or override_generation_config"
            raise ValueError(f"{where} recommends what is out of range: {error}") from None
        self.llm_engine = LLMEngine.from_engine_args(args)
        self._request_ids = itertools.count()
        # The engine is one loop. Threads that share an LLM take turns; AsyncLLM serves many callers at once.
        self._one_call_at_a_time = threading.Lock()

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> LLM:
        """The same from arguments that are together already."""
        return cls(**vars(args))

    @on_map("offline entry", vllm="vllm/entrypoints/llm.py::LLM.generate", process="frontend")
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: None = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Generate completions for each prompt.

        All prompts are checked and queued first; the scheduler then batches them as it sees fit.

        Args:
            prompts: One prompt or several, also of different forms: text, token ids, `{"prompt": "text"}` or
                `{"prompt_token_ids": [...]}`.
            sampling_params: For all prompts, or one for each; None for `get_default_sampling_params`.
            use_tqdm: Show on a terminal how far it is; or what makes such a bar, for instance `tqdm.tqdm`.
            lora_request: There are no adapters: only None.
            priority: One a prompt, lower first; only with `scheduling_policy="priority"`.
            tokenization_kwargs: `{"add_special_tokens": False}` puts none before a text.

        Returns:
            One output for each prompt, in the order of the prompts.

        Raises:
            ValueError: A prompt or a parameter that cannot be served; then none of the prompts is generated.
        """
        if lora_request is not None:
            raise ValueError("lora_request must be None: there are no adapters")
        all_prompts = prompt_to_seq(prompts)
        if tokenization_kwargs:
            all_prompts = [self._tokenized(prompt, **tokenization_kwargs) for prompt in all_prompts]
        with self._one_call_at_a_time, _little_to_collect():
            return self._generate(all_prompts, sampling_params, use_tqdm, priority)

    def _generate(
        self,
        all_prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool | Callable[..., Any],
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
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
                params = copy(params)  # it is checked by the engine
                params.output_kind = RequestOutputKind.FINAL_ONLY
                self.llm_engine.add_request(request_id, prompt, params, priority=rank)
            with make_progress("prompts", len(all_prompts), use_tqdm) as progress:
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
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: None = None,
        chat_template: str | None = None,
        chat_template_content_format: Literal["auto", "string"] = "auto",
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
            lora_request: As in `generate`.
            chat_template: Jinja source; None takes the one of this object, or the model's own.
            chat_template_content_format: Templates get texts, also of messages that come in parts.
            add_generation_prompt: End the prompt with the beginning of an answer.
            continue_final_message: End it inside the last message instead, for the model to go on with it.
            tools: Functions that the model may call, as JSON schemas; the template writes them down.
            chat_template_kwargs: What else the template can use.

        Returns:
            One output for each conversation, in their order.

        Raises:
            ValueError: See `generate`; or a conversation that the template cannot write down.
        """
        if chat_template_content_format not in ("auto", "string"):
            raise ValueError(
                "chat_template_content_format must be 'auto' or 'string', got "
                f"{chat_template_content_format!r}: templates get texts"
            )
        if not isinstance(messages, Sequence) or isinstance(messages, str):
            raise ValueError(f"messages is a conversation or a list of them, got {type(messages).__name__}")
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts = [
            apply_chat_template(
                self.get_tokenizer(),
                conversation,  # type: ignore[arg-type]
                chat_template=self.chat_template if chat_template is None else chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                **(chat_template_kwargs or {}),
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request)

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's files recommend (`generation_config.json`); vLLM's defaults for what they leave open."""
        return msgspec.structs.replace(SamplingParams(), **self._recommended)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises ValueError if it has none."""
        return self.llm_engine.get_tokenizer()

    def get_metrics(self) -> list[Metric]:
        """Every metric as it is now: counters, gauges and histograms with vLLM's names, prefix `minivllm:`.

        Raises:
            ValueError: The engine keeps none: it does only with `LLM(..., disable_log_stats=False)`.
        """
        return self.llm_engine.get_metrics()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes; False if requests still hold blocks.

        Args:
            reset_running_requests: Preempt those that run, so that nobody holds any.
        """
        return self.llm_engine.reset_prefix_cache(reset_running_requests)

    def shutdown(self) -> None:
        """Release the model, and end the core's process if it has one. Idempotent."""
        self.llm_engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def __getattr__(self, name: str) -> Any:
        if name in _NOT_HERE:
            raise AttributeError(f"LLM.{name} is not here: {_NOT_HERE[name]}", name=name, obj=self)
        raise AttributeError(f"'LLM' object has no attribute {name!r}", name=name, obj=self)

    def _tokenized(self, prompt: Prompt, *, add_special_tokens: bool = True, **unknown: Any) -> Prompt:
        if unknown:
            raise ValueError(f"tokenization_kwargs has no {min(unknown)!r}; known is add_special_tokens")
        text = prompt_text(prompt)
        if text is None or (isinstance(prompt, dict) and "prompt_token_ids" in prompt):
            return prompt
        given: dict[str, Any] = dict(prompt) if isinstance(prompt, dict) else {}
        token_ids = self.get_tokenizer().encode(text, add_special_tokens=add_special_tokens)
        return {**given, "prompt": text, "prompt_token_ids": token_ids}  # type: ignore[return-value]


@contextmanager
def _little_to_collect() -> Iterator[None]:
    """Let the garbage collector look only at what comes into being inside of the block.

    A step of a thousand requests makes thousands of small objects, and each few steps the collector would go through
    all of PyTorch, a tenth of a second at a time. Afterwards everything is its business again.
    """
    if gc.get_freeze_count():  # the caller, or a call in another thread, has done so: it is theirs to undo
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _one_each(params: SamplingParams | Sequence[SamplingParams], num_prompts: int, name: str) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * num_prompts
    if not isinstance(params, Sequence) or not all(isinstance(entry, SamplingParams) for entry in params):
        raise ValueError(f"{name} is a SamplingParams, or a list with one for each prompt, got {str(params)[:80]}")
    if len(params) != num_prompts:
        raise ValueError(f"{name} has {len(params)} entries for {num_prompts} prompts: give one, or one for each")
    return list(params)
