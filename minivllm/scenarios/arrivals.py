"""Owns turning a scenario's requests into what the core gets: prompts cut to tokens, several completions split."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from minivllm.engine.input_processor import InputProcessor
from minivllm.engine.output_processor import OutputProcessor
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.definition import STORIES, Piece, Scenario, ScenarioRequest
from minivllm.scenarios.driver import Arrival
from minivllm.tokenizer import Tokenizer


def arrivals_of(
    scenario: Scenario,
    tokenizer: Tokenizer | None,
    input_processor: InputProcessor,
    output_processor: OutputProcessor,
) -> list[Arrival]:
    """Who comes when; each is registered with the output processor.

    Raises:
        ValueError: A request that cannot be served; the message begins with its id.
    """
    arrivals = []
    for index, request in enumerate(scenario.requests):
        arrivals += _arrivals(index, request, tokenizer, input_processor, output_processor)
    return arrivals


def _arrivals(
    index: int,
    request: ScenarioRequest,
    tokenizer: Tokenizer | None,
    input_processor: InputProcessor,
    output_processor: OutputProcessor,
) -> list[Arrival]:
    params = SamplingParams(max_tokens=request.max_tokens, **{"temperature": 0.0, **request.sampling})
    prompt_text = request.prompt if isinstance(request.prompt, str) else None
    prompt: Any = request.prompt
    if prompt_text is None:
        prompt = {"prompt_token_ids": [i for piece in request.prompt for i in _tokens_of(tokenizer, piece)]}
    try:
        core_request = input_processor.process_inputs(
            request.id, prompt, params, arrival_time=float(index), priority=request.priority
        )
    except ValueError as error:
        raise ValueError(f"{request.id}: {error}") from None
    children = output_processor.add_request(core_request, prompt_text)
    drafts = {step: _tokens_of(tokenizer, piece) for step, piece in request.drafts.items()}
    return [
        Arrival(
            request.arrival_step,
            child,
            request.abort_step,
            request.abort_phase,
            prompt=prompt_text,
            parent=(request.id, number) if len(children) > 1 else None,
            drafts=drafts,
        )
        for number, child in enumerate(children)
    ]


def _tokens_of(tokenizer: Tokenizer | None, piece: Any) -> list[int]:
    if isinstance(piece, int):
        return [piece]
    assert isinstance(piece, Piece), "a prompt is text, or pieces and token ids"
    if tokenizer is None:
        raise ValueError("this scenario cuts its prompts from a text, and the model has no tokenizer")
    tokens = _story_tokens(tokenizer, STORIES)
    if piece.start + piece.count > len(tokens):
        raise ValueError(f"the story text has only {len(tokens)} tokens with this model's tokenizer")
    return tokens[piece.start : piece.start + piece.count]


@lru_cache(maxsize=1)
def _story_tokens(tokenizer: Tokenizer, path: Path) -> list[int]:
    return tokenizer.encode(path.read_text(encoding="utf-8"))
