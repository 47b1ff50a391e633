"""Launches what an engine launches for a model, on tensors without memory: for `precompile`.

The models are those that figures are taken of, and the built-in one. An engine itself compiles the most of this ahead,
see `compile_ahead.py`; here is every shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from minivllm.attention.paged import Parts
from minivllm.bench.shapes import model_arguments, shape_names
from minivllm.models.config import from_folder
from minivllm.models.model_zoo import find_model
from minivllm.worker.compile_ahead import step_without_memory
from minivllm.worker.cuda_graphs import GraphDispatcher
from minivllm.worker.device_requests import Limits
from minivllm.worker.device_step import Layout

BUILT_IN = "stories-5m"
MODELS = [*shape_names(), BUILT_IN]
BLOCK_SIZE, MAX_NUM_SEQS, MAX_TOKENS, MAX_MODEL_LEN = 16, 256, 16384, 4096


def run_model(name: str) -> None:
    """Every step of an engine with that model in bfloat16: captured ones, and prompts beside decodes."""
    folder = find_model(name).path if name == BUILT_IN else Path(model_arguments(name)["model"])
    limits = Limits(MAX_NUM_SEQS, MAX_TOKENS, MAX_MODEL_LEN, BLOCK_SIZE)
    step = step_without_memory(from_folder(folder), torch.bfloat16, torch.bfloat16, limits)
    shapes = GraphDispatcher(MAX_NUM_SEQS, capture_mixed=True).shapes()
    step.requests.make_room_for_penalties()
    sharing = [replace(shape, with_prefix=True) for shape in shapes if shape.query_len == 1]
    for shape in [*shapes, *sharing, replace(shapes[-1], with_penalties=True)]:
        step.run(shape)
    for layout in layouts():
        step.sample(step.forward(layout), with_penalties=False)


def layouts() -> Iterator[Layout]:
    """Steps that no graph holds: every number of decodes in front that splits contexts in another way."""
    for num_tokens in (1, 2, 3, 4, 5, 9, 64, 4096):
        yield Layout(num_tokens, 1, Parts(0, 1, 0, num_tokens))
        yield Layout(num_tokens, 1, Parts(0, 0, num_tokens, 0))
    for front in (1, 2, 3, 4, 8, 16, 32, 64, 200):
        for length in (2, 3, 100, 4000):
            yield Layout(front + length, front + 1, Parts(front, 1, 0, length))
            yield Layout(front + length, front + 1, Parts(front, 0, length, 0))
