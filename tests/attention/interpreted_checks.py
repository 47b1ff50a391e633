"""Checks of the Triton backend that need the interpreter, or a GPU. Prints one JSON object: what failed, by name."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import traceback
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from minivllm import LLM, SamplingParams
from minivllm.attention import libraries, triton
from minivllm.attention.backend import AttentionMetadata
from minivllm.attention.paged import PagedMetadata, parts_of
from minivllm.attention.selector import select_backend
from minivllm.attention.torch_sdpa import TorchSdpaBackend
from minivllm.attention.triton import TritonBackend
from minivllm.kernels import hopper_decode, prefix_attention
from minivllm.kernels.launch import gpu_of
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from minivllm.worker.captured_runner import CapturedModelRunner
from minivllm.worker.cuda_graphs import CudaGraphs, GraphDispatcher
from minivllm.worker.device_requests import Draw, Limits
from minivllm.worker.device_step import DeviceStep
from minivllm.worker.staging import SampledTokens
from tests.attention import fake_libraries
from tests.kernels.grids.setup import assert_near, fill_pages
from tests.kernels.interpreting import hasten
from tests.models.checkpoints import save_model
from tests.models.kernel_checks import few_programs

BLOCK_SIZE, KV_HEADS, HEADS, HEAD_DIM = 4, 2, 6, 16
# (computed before, scheduled now): decodes in front, whole prompts, chunks, and a decode behind.
BATCHES = [[(9, 1), (0, 1)], [(9, 1), (0, 5), (0, 17)], [(4, 1), (5, 3), (0, 9), (30, 1)], [(0, 4), (7, 1)]]


def batch_of(batch: list[tuple[int, int]]):
    """A step whose new keys and values are not in the cache yet: metadata, cache, new keys and values."""
    lengths = [computed + new for computed, new in batch]
    pages = fill_pages(lengths, BLOCK_SIZE, KV_HEADS, HEAD_DIM, torch.float32)
    slots, news = [], []
    for request, (computed, new) in enumerate(batch):
        position = torch.arange(computed, computed + new)
        slots.append(pages.block_table[request, position // BLOCK_SIZE].long() * BLOCK_SIZE + position % BLOCK_SIZE)
        news.append(pages.tokens[request][:, computed:])
    slot_mapping = torch.cat(slots)
    pages.kv_cache.flatten(1, 2)[:, slot_mapping] = float("nan")
    metadata = AttentionMetadata(
        query_start_loc=np.cumsum([0] + [new for _, new in batch], dtype=np.int32),
        seq_lens=np.array(lengths, dtype=np.int32),
        block_table=pages.block_table.numpy(),
        slot_mapping=slot_mapping.numpy(),
        block_size=BLOCK_SIZE,
    )
    return metadata, pages.kv_cache, torch.cat(news, dim=1)


def attend(backend, metadata, kv_cache, query, new, window):
    cache = kv_cache.clone()
    prepared = backend.prepare(metadata, torch.device("cpu"), torch.float32)
    return backend.forward(query, new[0], new[1], cache, prepared, window), cache


def check_forward(device: str) -> None:
    for batch in BATCHES:
        for window in (None, 6):
            metadata, kv_cache, new = batch_of(batch)
            query = torch.randn(new.shape[1], HEADS, HEAD_DIM)
            got, got_cache = attend(TritonBackend(), metadata, kv_cache, query, new, window)
            expected, cache = attend(TorchSdpaBackend([window]), metadata, kv_cache, query, new, window)
            assert_near(got, expected, f"{batch=} {window=}", 1e-5)
            assert torch.equal(got_cache.view(torch.int32), cache.view(torch.int32)), f"{batch=}: the caches differ"


def check_repeated(device: str) -> None:
    """Layers behind the first one launch again what that one launched, with tensors of their own."""
    for batch in BATCHES:
        metadata, kv_cache, new = batch_of(batch)
        backend = TritonBackend()
        prepared = backend.prepare(metadata, torch.device("cpu"), torch.float32)
        for layer, window in enumerate((None, 6, None, 6, None)):
            query, own, cache = (
                torch.randn(new.shape[1], HEADS, HEAD_DIM),
                torch.randn_like(new),
                kv_cache * (layer + 1),
            )
            expected, _ = attend(TorchSdpaBackend([window]), metadata, cache, query, own, window)
            got = backend.forward(query, own[0], own[1], cache, prepared, window)
            assert_near(got, expected, f"{batch=} {layer=}", 1e-5)


def check_unrotated(device: str) -> None:
    """The fused way is norm, rotation and the plain way; also where a fresh prompt is read from the step's tensors."""
    angles = torch.outer(torch.arange(64.0), 10000.0 ** -torch.linspace(0, 1, HEAD_DIM // 2))
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    norms = (torch.randn(HEAD_DIM), torch.randn(HEAD_DIM))
    for batch in BATCHES:
        metadata, kv_cache, new = batch_of(batch)
        qkv = torch.randn(new.shape[1], HEADS + 2 * KV_HEADS, HEAD_DIM)
        positions = torch.cat([torch.arange(computed, computed + count) for computed, count in batch])
        parts = []
        for part, weight in zip((qkv[:, :HEADS], qkv[:, HEADS:-KV_HEADS]), norms, strict=True):
            normed = torch.nn.functional.rms_norm(part, (HEAD_DIM,), weight, 1e-6)
            first, second = normed.chunk(2, dim=-1)
            cos, sin = angles[positions].cos().unsqueeze(1), angles[positions].sin().unsqueeze(1)
            parts.append(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
        rotated = torch.stack((parts[1], qkv[:, -KV_HEADS:]))
        expected, cache = attend(TorchSdpaBackend([None]), metadata, kv_cache, parts[0], rotated, None)
        backend, flat = TritonBackend(), qkv.flatten(1).clone()
        prepared = backend.prepare(metadata, torch.device("cpu"), torch.float32)
        got = backend.forward_unrotated(flat, positions, cos_sin, norms, 1e-6, kv_cache, prepared)
        assert_near(got, expected, f"{batch=}", 1e-5)
        assert_near(kv_cache.nan_to_num(7.0), cache.nan_to_num(7.0), f"{batch=}: the caches differ", 1e-5)


def check_selection(device: str) -> None:
    cpu = torch.device("cpu")
    backend, reasons = select_backend(cpu, 64, torch.float32)
    assert backend.name == "torch_sdpa"
    assert "ask for it by name" in reasons["triton"]
    backend, reasons = select_backend(cpu, 64, torch.float32, forced="triton")
    assert backend.name == "triton"
    assert reasons["triton"] == "taken: it was asked for, and runs in Triton's interpreter, torch.float32, head size 64"
    with pytest.raises(ValueError, match="cannot multiply bfloat16"):
        select_backend(cpu, 64, torch.bfloat16, forced="triton")


PROMPTS = [[5, 9, 31, 2, 77], [5, 9, 31, 2, 8, 1, 4, 7, 11, 3], [1], list(range(20, 50)), [5, 9, 31, 2, 77, 6]]
# With one slot: when the second one begins to decode, it has as many tokens as the first one had at its end, 5 + 9.
IN_TURNS = [[5, 9, 31, 2, 77], list(range(20, 33))]


GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)


def generate(
    folder: str,
    prompts: list[list[int]] = PROMPTS,
    max_num_seqs: int = 4,
    params: SamplingParams | list[SamplingParams] = GREEDY,
    **settings,
) -> list[list[int]]:
    """Tokens of prompts that are chunked, share a prefix, and outgrow the cache, so that some are preempted."""
    llm = LLM(
        model=folder, skip_tokenizer_init=True, max_model_len=64, num_gpu_blocks_override=20, block_size=4,
        max_num_batched_tokens=16, max_num_seqs=max_num_seqs, dtype="float32", **settings,
    )  # fmt: skip
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def check_engine(kind: str, device: str, **overrides) -> None:
    batch = overrides.pop("batch", "slots")
    with tempfile.TemporaryDirectory() as folder:
        save_model(kind, Path(folder), initializer_range=0.3, **overrides)
        prompts = PROMPTS[:4] if device == "cpu" else PROMPTS  # the interpreter takes its time
        expected = generate(folder, prompts, attention_backend="torch_sdpa", device=device)
        got = generate(folder, prompts, attention_backend="triton", device=device, batch=batch)
    assert got == expected, f"{got} instead of {expected}"


def check_slots(device: str) -> None:
    check_engine("qwen3", device)


def check_rows(device: str) -> None:
    check_engine("llama", device, batch="rows")


def check_captured(device: str) -> None:
    """A runner with graphs gives the tokens of one without, through chunks, preemption and reused slots."""
    replayed: list[str] = []
    dispatch = CapturedModelRunner._dispatch

    def spy(runner, batch):
        way, found = dispatch(runner, batch)
        replayed.append(way)
        return way, found

    with tempfile.TemporaryDirectory() as folder:
        save_model("qwen3", Path(folder), initializer_range=0.3)
        expected = generate(folder, attention_backend="torch_sdpa", device=device)
        expected += generate(folder, IN_TURNS, 1, attention_backend="torch_sdpa", device=device)
        CapturedModelRunner._dispatch = spy
        captured = {"attention_backend": "triton", "device": device, "cudagraph_mode": "FULL_AND_PIECEWISE"}
        try:
            got = generate(folder, **captured)
            got += generate(folder, IN_TURNS, 1, **captured, async_scheduling=False)
        finally:
            CapturedModelRunner._dispatch = dispatch
    assert got == expected, f"{got} instead of {expected}"
    assert replayed.count("graph") > 5
    assert replayed.count("device") > 2
    assert set(replayed) == {"graph", "device"}


# Twice as long as a block and a bit; one shares only its first block.
SHARED = [7, 3, 9, 9, 12, 30, 2, 8, 41]
SHARING = [[*SHARED, 5], [*SHARED, 6, 1], [*SHARED[:6], 17, 21, 3, 4, 5, 9]]


def check_prefix(device: str) -> None:
    """Decodes that attend to a shared prefix together have the tokens of decodes that do not: in steps of decodes, with
    padding, beside prompts and chunks, after a preemption; and layers that see a window leave it."""
    dispatches: list[tuple[str, bool]] = []
    dispatch = CapturedModelRunner._dispatch

    def spy(runner, batch):
        way, found = dispatch(runner, batch)
        assert ("share a prefix of" in found.reason) == (batch.prefix_tokens > 0)
        dispatches.append((way, batch.prefix_tokens > 0))
        return way, found

    params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in (4, 3, 5)]
    from_two_tokens_on = [("LEAST_REQUESTS", 2), ("LEAST_TOKENS", 1), ("LEAST_SAVED_BYTES", 0)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as patches:
        save_model("qwen3", Path(folder), initializer_range=0.3)
        expected = generate(folder, SHARING, params=params, attention_backend="torch_sdpa", device=device)
        patches.enter_context(patch.object(CapturedModelRunner, "_dispatch", spy))
        for name, value in from_two_tokens_on:
            patches.enter_context(patch.object(prefix_attention, name, value))
        captured = {"attention_backend": "triton", "device": device, "cudagraph_mode": "FULL_DECODE_ONLY"}
        got = generate(folder, SHARING, params=params, **captured)
        assert {("graph", True), ("device", True), ("device", False)} <= set(dispatches), dispatches
    assert got == expected, f"{got} instead of {expected}"


def check_ranges(device: str) -> None:
    """Decodes whose contexts are cut into ranges have the tokens of decodes whose contexts are not: requests of many
    lengths that come and end one by one, in graphs and beside prompts. Only a Hopper GPU cuts them so."""
    if device == "cpu" or gpu_of(torch.device(device)).capability != 90:
        return
    rng = random.Random(0)
    prompts = [[rng.randrange(90) for _ in range(rng.randint(1, 200))] for _ in range(40)]
    params = [SamplingParams(temperature=0.0, max_tokens=rng.randint(4, 60), ignore_eos=True) for _ in prompts]

    def run(folder: str) -> list[list[int]]:
        llm = LLM(
            model=folder, skip_tokenizer_init=True, max_model_len=300, num_gpu_blocks_override=500, dtype="bfloat16",
            max_num_batched_tokens=512, max_num_seqs=32, attention_backend="triton", device=device,
        )  # fmt: skip
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}
    with tempfile.TemporaryDirectory() as folder:
        save_model("qwen3", Path(folder), hidden_size=256, intermediate_size=384, **heads, max_position_embeddings=512)
        with patch.object(hopper_decode, "LEAST_REQUESTS", 1000):
            expected = run(folder)
        with patch.object(triton, "decode_ranges", wraps=triton.decode_ranges) as launch:
            got = run(folder)
    alone = [call.args[-2] for call in launch.call_args_list]
    assert set(alone) == {True, False}, "steps of decodes only, and decodes beside prompts"
    same = sum(one[:4] == other[:4] for one, other in zip(expected, got, strict=True))
    assert same >= 38, f"{same} of 40 begin with the same tokens: {got} instead of {expected}"


def check_layers_with_a_window(device: str) -> None:
    """One batch for layers of both kinds: three decodes whose first 8 tokens are the same, and a chunk behind."""
    metadata, kv_cache, new = batch_of([(9, 1), (12, 1), (8, 1), (8, 3)])
    metadata.block_table[1:, :2] = metadata.block_table[0, :2]
    query = torch.randn(new.shape[1], HEADS, HEAD_DIM)
    tables = (metadata.query_start_loc, metadata.seq_lens, metadata.block_table, metadata.slot_mapping)
    parts = parts_of(np.diff(metadata.query_start_loc), metadata.seq_lens)
    backend = TritonBackend()
    together = PagedMetadata(*map(torch.from_numpy, tables), parts, torch.tensor([8], dtype=torch.int32))
    prepared = backend.on_device(together, metadata)
    for window in (None, 6, None, 6):
        cache, query = kv_cache.clone(), query + 1
        got = backend.forward(query, new[0], new[1], cache, prepared, window)
        expected, _ = attend(TorchSdpaBackend([window]), metadata, kv_cache, query, new, window)
        assert_near(got, expected, f"{window=}", 1e-5)


# Each draws in another way; the last two need the host for some or all of their steps.
DRAWS = [
    {"temperature": 1.0, "seed": 2**63 + 5, "top_k": 5, "repetition_penalty": 1.7},
    {"temperature": 1.3, "seed": 3, "top_p": 0.8, "min_p": 0.01, "frequency_penalty": 0.9, "presence_penalty": -0.7},
    {"temperature": 1.1, "seed": 4, "logit_bias": {7: 3.0}, "repetition_penalty": 1.2, "logprobs": 2, "max_tokens": 2},
    {"temperature": 1.0, "seed": 5, "min_tokens": 2, "stop_token_ids": [8]},
]


def check_draws(device: str) -> None:
    """A seed gives the same tokens with and without graphs, planned ahead or not, and so do penalties and rules."""
    params = [SamplingParams(**{"max_tokens": 3, "ignore_eos": True, **how}) for how in DRAWS]
    ways: list[dict[str, Any]] = [{"cudagraph_mode": "NONE"}, {"cudagraph_mode": "FULL"}]
    with tempfile.TemporaryDirectory() as folder:
        save_model("llama", Path(folder), initializer_range=0.3)
        got = [
            generate(folder, PROMPTS[:4], params=params, attention_backend="triton", device=device, **way)
            for way in ways
        ]
    assert got[1] == got[0], f"{got[1]} instead of {got[0]}"
    assert all(len(tokens) >= 2 for tokens in got[0])


def check_libraries(device: str) -> None:
    """Kernels of other projects through the runner with graphs: whole ones, and pieces with attention between them."""
    assert device == "cpu", "their packages are replaced by fakes"
    libraries._why_not_here = lambda project, needs: None
    libraries._HALF, libraries._FLASHINFER_HEADS = (torch.float32,), (8,)
    libraries.capability_of = lambda device: (9, 0)
    modes: list[str] = []
    dispatch = CapturedModelRunner._dispatch

    def spy(runner, batch):
        way, found = dispatch(runner, batch)
        modes.append(found.mode)
        return way, found

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as site:
        fake_libraries.install(["flash_attn_interface", "flashinfer"], Path(site))
        save_model("qwen3", Path(folder), initializer_range=0.3)
        expected = generate(folder, PROMPTS[:4], attention_backend="torch_sdpa", device=device)
        CapturedModelRunner._dispatch = spy
        try:
            for backend, mode, found in (
                ("flash_attn", "FULL_AND_PIECEWISE", {"FULL", "PIECEWISE", "NONE"}),
                ("flashinfer", "FULL_DECODE_ONLY", {"PIECEWISE", "NONE"}),
            ):
                modes.clear()
                got = generate(folder, PROMPTS[:4], attention_backend=backend, device=device, cudagraph_mode=mode)
                assert got == expected, f"{backend}: {got} instead of {expected}"
                assert set(modes) <= found, f"{backend}: {modes}"
                assert found - {"NONE"} <= set(modes), f"{backend}: {modes}"
        finally:
            CapturedModelRunner._dispatch = dispatch


def check_window(device: str) -> None:
    check_engine("mistral", device, sliding_window=7)


def check_device_step(device: str) -> None:
    """Prompts in chunks, padded decodes, slots in any order: the whole step on the device gives the engine's tokens."""
    prompts = [[5, 9, 31, 2, 77], [5, 9, 31, 2, 8, 1, 4, 7, 11, 3], [1]]
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        save_model("qwen3", Path(folder), initializer_range=0.3)
        llm = LLM(folder, skip_tokenizer_init=True, max_model_len=64, block_size=BLOCK_SIZE, dtype="float32")
        greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], greedy, use_tqdm=False)
        expected = [list(output.outputs[0].token_ids) for output in outputs]
        model = ModelLoader(find_model(folder)).load(torch.device(device), torch.float32)
        got = device_tokens(model, prompts, device)
    assert got == expected, f"{got} instead of {expected}"


def device_tokens(model, prompts: list[list[int]], device: str) -> list[list[int]]:
    """Six greedy tokens of each prompt: two steps with pieces of the prompts, then decodes; through graphs on a GPU."""
    config = model.config
    shape = TritonBackend.kv_cache_shape(40, BLOCK_SIZE, config.num_key_value_heads, config.head_dim)
    caches = [torch.full(shape, float("nan"), device=device) for _ in range(config.num_hidden_layers)]
    step = DeviceStep(model, caches, TritonBackend(), Limits(5, 32, 63, BLOCK_SIZE))
    assert step.requests.make_room_for_penalties()
    dispatcher, graphs = GraphDispatcher(5, capture_mixed=True), CudaGraphs(step.run, torch.device(device))
    if device == "cuda":
        graphs.capture([replace(shape, with_penalties=True) for shape in dispatcher.shapes()])
    slots, blocks = [3, 0, 4], torch.randperm(39).add(1).int().numpy()
    for index, (slot, prompt) in enumerate(zip(slots, prompts, strict=True)):
        own = blocks[6 * index : 6 * index + 6]
        step.requests.place(slot, np.array(prompt, dtype=np.int32), len(prompt), own, Draw())
    step.requests.flush()
    copies = SampledTokens(5, torch.device(device))
    tokens: list[list[int]] = [[], [], []]
    computed = [0, 0, 0]
    for scheduled in ([3, 4, 1], [2, 6, 1], *[[1, 1, 1]] * 5):
        samples = [done + new >= len(prompt) for done, new, prompt in zip(computed, scheduled, prompts, strict=True)]
        step.stage(slots, computed, scheduled, samples)
        graphs.replay(replace(dispatcher.dispatch(scheduled).shape, with_penalties=True))
        for row, token in enumerate(copies.start(step.sampled).tolist()[:3]):
            assert (token >= 0) == samples[row]
            tokens[row] += [token] * samples[row]
        computed = [done + new for done, new in zip(computed, scheduled, strict=True)]
    return [row[:6] for row in tokens]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.device == "cpu":
        few_programs()
        hasten(checks_overflow=False)
    failures: dict[str, str | None] = {}
    for name in options.names:
        try:
            globals()[f"check_{name}"](options.device)
            failures[name] = None
        except Exception:
            failures[name] = traceback.format_exc(limit=-4)
    print(json.dumps(failures))


if __name__ == "__main__":
    main()
