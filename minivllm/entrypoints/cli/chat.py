"""Owns `minivllm chat`: a conversation on a terminal, or one answer for a script."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minivllm.entrypoints.cli.common import ModelOption, check_text, examples, for_screen, note
from minivllm.entrypoints.cli.engine_options import (
    AheadOption,
    DtypeOption,
    EnforceEagerOption,
    KVCacheDtypeOption,
    LoadFormatOption,
    MultiprocessOption,
    engine_settings,
)
from minivllm.entrypoints.cli.errors import INTERRUPTED, fail, say, user_errors
from minivllm.entrypoints.cli.generate import read_sampling, read_stdin

if TYPE_CHECKING:
    from minivllm.engine.llm_engine import LLMEngine
    from minivllm.sampling_params import SamplingParams

_HELP = "/reset begins anew, /quit (or Ctrl-D) ends, Ctrl-C stops an answer"


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples('minivllm chat "Tell me a story"', 'minivllm chat Hi --sampling \'{"stop": ["."]}\'')
    app.command(epilog=epilog)(user_errors(chat))


def chat(
    message: Annotated[
        str | None, typer.Argument(help="One message; - reads it from stdin. Without one: a conversation.")
    ] = None,
    model: ModelOption = None,
    system: Annotated[str | None, typer.Option("--system", help="What the model is to know beforehand.")] = None,
    sampling: Annotated[str, typer.Option("--sampling", help="Sampling parameters as JSON.")] = "{}",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Limit of one answer; default: the model's, or 256.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0 is greedy; default: the model's, or 0.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the draws.")] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Longest conversation; default: the model's.")
    ] = None,
    load_format: LoadFormatOption = "auto",
    dtype: DtypeOption = "auto",
    multiprocess: MultiprocessOption = False,
    async_scheduling: AheadOption = None,
    enforce_eager: EnforceEagerOption = False,
    kv_cache_dtype: KVCacheDtypeOption = "auto",
) -> None:
    """Talk with a model; answers appear as they are generated."""
    from minivllm.engine.arg_utils import DEFAULT_MODEL, EngineArgs
    from minivllm.engine.llm_engine import LLMEngine
    from minivllm.models.generation_config import recommended_sampling

    model = model or DEFAULT_MODEL
    flags = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    flags = {name: value for name, value in flags.items() if value is not None}
    # Checked before the model is loaded, which takes a while.
    params = read_sampling(sampling, flags, {"temperature": 0.0, "max_tokens": 256, **recommended_sampling(model)})
    if message == "-" or (message is None and not sys.stdin.isatty()):
        message = read_stdin()
    for text, where in ((message, "the message"), (system, "--system")):
        if text is not None:
            check_text(text, where)
    if message is not None and not message.strip():
        raise ValueError("the message is empty: say something, or leave it out for a conversation")
    settings = engine_settings(
        load_format, dtype, multiprocess, async_scheduling, max_model_len, enforce_eager, kv_cache_dtype
    )
    engine = LLMEngine.from_engine_args(EngineArgs.from_kwargs(model=model, **settings))
    session = Session(engine, params, system)
    if message is None:
        _converse(session)
    elif not session.answer(message):
        fail("interrupted", INTERRUPTED)


def _converse(session: Session) -> None:
    import readline  # noqa: F401 (gives input() its line editing)

    note(_HELP)
    while True:
        try:
            message = input("> ").strip()
        except EOFError:
            print()
            return
        if message == "/quit":
            return
        if message == "/reset":
            session.reset()
        elif message.startswith("/"):
            note(_HELP)
        elif message:
            try:
                session.answer(message)
            except ValueError as error:  # too long, or refused by the template: the conversation goes on
                say(str(error))


class Session:
    """A conversation and the engine that answers.

    Args:
        engine: With a model whose chat template is known.
        params: How to sample each answer.
        system: A system message, if there is to be one.
    """

    def __init__(self, engine: LLMEngine, params: SamplingParams, system: str | None) -> None:
        import msgspec

        from minivllm.sampling_params import RequestOutputKind

        if params.n > 1:
            raise ValueError(f"a conversation goes on with one answer, so n must be 1, got {params.n}")
        self._engine = engine
        self._params = msgspec.structs.replace(params, output_kind=RequestOutputKind.DELTA)
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.reset()

    def reset(self) -> None:
        """Forget what was said."""
        self.messages: list[dict[str, Any]] = list(self._system)

    def answer(self, message: str) -> bool:
        """Write an answer to stdout, and remember both. What was not said is forgotten with the error.

        Returns:
            False if Ctrl-C has stopped it; what there was of it counts as said.

        Raises:
            ValueError: The conversation is too long, or the template refuses it.
        """
        from minivllm.entrypoints.chat_utils import apply_chat_template

        if self._engine.tokenizer is None:
            raise ValueError("this model has no tokenizer")
        messages = [*self.messages, {"role": "user", "content": message}]
        prompt = apply_chat_template(self._engine.tokenizer, messages)
        self._engine.add_request("chat", prompt, self._params)
        text, finish_reason = "", None
        with _interrupt_as_flag() as interrupted:
            while self._engine.has_unfinished_requests():
                for output in self._engine.step():
                    text += output.outputs[0].text
                    finish_reason = output.outputs[0].finish_reason
                    print(for_screen(output.outputs[0].text), end="", flush=True)
                if interrupted:
                    self._engine.abort_request(["chat"])
        print(flush=True)
        if finish_reason == "length":
            note("(stopped at its length limit)")
        self.messages = [*messages, {"role": "assistant", "content": text}]
        return not interrupted


@contextmanager
def _interrupt_as_flag() -> Iterator[list[int]]:
    """Collect Ctrl-C in a list, so that it never tears a step of the engine in two. The second one is as always."""
    seen: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)
