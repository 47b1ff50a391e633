"""Owns what `bench kernels` runs: each kernel on sizes of real models, with the bytes and operations that it needs.

A case makes several *copies* of its work on different data, more of it than a GPU's cache holds, so that what is timed
comes from memory, as it does in a model with many layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from minivllm.kernels.fused_linear import fused_linear
from minivllm.kernels.hopper_decode import hopper_decode, plan_ranges
from minivllm.kernels.hopper_decode import is_for as is_for_ranges
from minivllm.kernels.hopper_prefill import hopper_prefill, is_for
from minivllm.kernels.logprobs import token_logprobs
from minivllm.kernels.paged_decode import paged_decode, plan_decode
from minivllm.kernels.paged_prefill import paged_prefill
from minivllm.kernels.prefix_attention import prefix_attention
from minivllm.kernels.rms_norm import rms_norm
from minivllm.kernels.rotary_and_cache import rotary_and_cache
from minivllm.kernels.sample import sample
from minivllm.kernels.scores import SamplingParameters, SamplingRows, SamplingState
from minivllm.kernels.silu_and_mul import silu_and_mul
from minivllm.kernels.skinny_linear import skinny_linear

BLOCK_SIZE = 16
# Past the 60 MB of an H200's second-level cache.
_ROTATED_BYTES = 160 * 2**20
_MOST_COPIES = 200

Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel on one size.

    Attributes:
        kernel: Its name.
        size: For a reader.
        num_bytes: What must be read and written once.
        flops: Multiplications and additions of matrix products; 0 where bytes decide.
        make: Makes one copy: allocates its data, and gives what runs the kernel on it.
        make_torch: The same with PyTorch's own operations, for comparison; None where there are none.
    """

    kernel: str
    size: str
    num_bytes: int
    flops: int
    make: Callable[[], Run]
    make_torch: Callable[[], Run] | None = None

    @property
    def copies(self) -> int:
        """How many copies take turns."""
        return max(1, min(_MOST_COPIES, -(-_ROTATED_BYTES // max(1, self.num_bytes))))


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model's sizes, and where and in what it is computed."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    device: torch.device
    dtype: torch.dtype

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def integers(self, numbers: list[int] | torch.Tensor, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.as_tensor(numbers, dtype=dtype, device=self.device)


def qwen3_06b(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Sizes:
    return Sizes(1024, 16, 8, 128, 3072, 151_936, device, dtype)


def llama_8b(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Sizes:
    return Sizes(4096, 32, 8, 128, 14_336, 128_256, device, dtype)


def paged_batch(model: Sizes, batch: int, context: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A filled cache, tables of random pages, and lengths, of requests with equal contexts."""
    blocks = -(-context // BLOCK_SIZE)
    kv_cache = model.random(2, batch * blocks + 1, BLOCK_SIZE, model.kv_heads, model.head_dim)
    table = model.integers((torch.randperm(batch * blocks) + 1).view(batch, blocks))
    return kv_cache, table, model.integers([context] * batch)


def decode_case(
    model: Sizes,
    batch: int,
    context: int,
    most_parts: int | None = None,
    may_be_hopper: bool = True,
    uneven: bool = False,
) -> Case:
    """Contexts of one length, or of all lengths from next to nothing to twice that, the longest first; by Hopper's own
    kernel where the engine takes it."""
    contexts = [context * (2 * place + 1) // batch for place in reversed(range(batch))] if uneven else [context] * batch
    asks = torch.empty(batch, model.heads, model.head_dim, dtype=model.dtype, device=model.device)
    pages = torch.empty(2, 1, BLOCK_SIZE, model.kv_heads, model.head_dim, dtype=model.dtype, device=model.device)
    is_hopper = may_be_hopper and most_parts is None and is_for_ranges(asks, pages)

    def make() -> Run:
        query = model.random(batch, model.heads, model.head_dim)
        out = torch.empty_like(query)
        kv_cache, table, _ = paged_batch(model, batch, contexts[0])
        seq_lens = model.integers(contexts)
        if is_hopper:  # a plan is made once a step, for all layers
            ranges = plan_ranges(query, kv_cache, seq_lens)
            return partial(hopper_decode, query, kv_cache, table, seq_lens, ranges, out=out, is_alone=True)
        plan = plan_decode(query, kv_cache, seq_lens, most_parts=most_parts)
        return partial(paged_decode, query, kv_cache, table, seq_lens, out=out, plan=plan)

    cache = 2 * sum(contexts) * model.kv_heads * model.head_dim
    own = 2 * batch * model.heads * model.head_dim
    size = f"{batch} x {f'about {context}' if uneven else context}, {model.heads}/{model.kv_heads} heads"
    size += "" if most_parts is None else f", {most_parts} parts"
    return Case("hopper_decode" if is_hopper else "paged_decode", size, (cache + own) * model.dtype.itemsize, 0, make)


def prefix_case(model: Sizes, batch: int, prefix: int, num_splits: int | None = None) -> Case:
    """The tokens that all requests begin with, once; what is left for each of them to read is a `decode_case`."""

    def make() -> Run:
        query = model.random(batch, model.heads, model.head_dim)
        kv_cache, table, _ = paged_batch(model, 1, prefix)
        seq_lens, num_tokens = model.integers([prefix + 1] * batch), model.integers([prefix])
        return partial(prefix_attention, query, kv_cache, table, seq_lens, num_tokens, num_splits=num_splits)

    cache = 2 * prefix * model.kv_heads * model.head_dim * model.dtype.itemsize
    own = batch * model.heads * (model.head_dim * (model.dtype.itemsize + 4) + 4)  # results are partial, in float32
    flops = 2 * 2 * batch * model.heads * model.head_dim * prefix
    size = f"{batch} x the same {prefix}, {model.heads}/{model.kv_heads} heads"
    size += "" if num_splits is None else f", {num_splits} splits"
    return Case("prefix_attention", size, cache + own, flops, make)


def prefill_case(
    model: Sizes, batch: int, length: int, fresh: bool, may_be_hopper: bool = True, context: int = 0
) -> Case:
    """Prompts from their own tensors or from pages, or chunks behind a context; by Hopper's own kernel where the engine
    takes it."""
    tokens = batch * length

    def inputs() -> list[torch.Tensor]:
        return [model.random(tokens, n, model.head_dim) for n in (model.heads, model.kv_heads, model.kv_heads)]

    asks = torch.empty(tokens, model.heads, model.head_dim, dtype=model.dtype, device=model.device)
    pages = torch.empty(2, 1, BLOCK_SIZE, model.kv_heads, model.head_dim, dtype=model.dtype, device=model.device)
    is_hopper = may_be_hopper and is_for(asks, pages, batch, length, None, fresh)

    def make() -> Run:
        query, key, value = inputs()
        starts = model.integers(torch.arange(batch + 1) * length)
        kv_cache, table, seq_lens = paged_batch(model, batch, context + length)
        run = hopper_prefill if is_hopper else paged_prefill
        step, out = (key, value) if fresh else None, torch.empty_like(query)
        return partial(run, query, kv_cache, table, starts, seq_lens, length, fresh=step, out=out)

    def make_torch() -> Run:
        q, k, v = (x.view(batch, length, -1, model.head_dim).transpose(1, 2) for x in inputs())
        return partial(F.scaled_dot_product_attention, q, k, v, is_causal=True, enable_gqa=True)

    # Two products of queries with every key of the context and every second own one on average, two operations each.
    keys = length * context + length * (length + 1) // 2
    flops = 2 * 2 * batch * model.heads * model.head_dim * keys
    num_tokens = tokens * (2 * model.heads + 2 * model.kv_heads) + batch * context * 2 * model.kv_heads
    size = f"{batch} x {length}" + (f" behind {context}" if context else "")
    size += f", {model.heads}/{model.kv_heads} heads, {'own tensors' if fresh else 'pages'}"
    kernel = "hopper_prefill" if is_hopper else "paged_prefill"
    num_bytes = num_tokens * model.head_dim * model.dtype.itemsize
    return Case(kernel, size, num_bytes, flops, make, None if context else make_torch)


def both_ways(make_case: Callable[..., Case]) -> Iterator[Case]:
    """By the kernel that the engine takes; and if that is Hopper's, by the other one, too, to see what it gains."""
    case = make_case()
    yield case
    if case.kernel.startswith("hopper"):
        yield make_case(may_be_hopper=False)


def rotary_case(model: Sizes, tokens: int) -> Case:
    def make() -> Run:
        width = model.heads + 2 * model.kv_heads
        qkv = model.random(tokens, width * model.head_dim)
        cos_sin = torch.randn(4096, model.head_dim, device=model.device)
        blocks = -(-tokens // BLOCK_SIZE)
        kv_cache = model.random(2, blocks, BLOCK_SIZE, model.kv_heads, model.head_dim)
        slots = model.integers(torch.randperm(blocks * BLOCK_SIZE)[:tokens], torch.int64)
        positions = model.integers(torch.arange(tokens) % 4096, torch.int64)
        norms = (model.random(model.head_dim), model.random(model.head_dim))
        return partial(rotary_and_cache, qkv, cos_sin, positions, slots, kv_cache, model.heads, norms)

    moved = tokens * (2 * model.heads + 5 * model.kv_heads) * model.head_dim  # query and key there and back, 2 writes
    return Case("rotary_and_cache", f"{tokens} tokens", moved * model.dtype.itemsize, 0, make)


def rms_norm_case(model: Sizes, tokens: int) -> Case:
    def make() -> Run:
        x, residual, out = (model.random(tokens, model.hidden) for _ in range(3))
        return partial(rms_norm, x, model.random(model.hidden), 1e-6, residual, out)

    def make_torch() -> Run:
        x, residual, weight = (
            model.random(tokens, model.hidden),
            model.random(tokens, model.hidden),
            model.random(model.hidden),
        )
        return lambda: F.rms_norm(residual.add_(x), weight.shape, weight, 1e-6)

    num_bytes = 4 * tokens * model.hidden * model.dtype.itemsize
    return Case("rms_norm", f"{tokens} x {model.hidden}, residual", num_bytes, 0, make, make_torch)


def silu_case(model: Sizes, tokens: int) -> Case:
    def make() -> Run:
        return partial(silu_and_mul, model.random(tokens, 2 * model.inner), model.random(tokens, model.inner))

    def make_torch() -> Run:
        gate_up = model.random(tokens, 2 * model.inner)
        return lambda: F.silu(gate_up[:, : model.inner]) * gate_up[:, model.inner :]

    num_bytes = 3 * tokens * model.inner * model.dtype.itemsize
    return Case("silu_and_mul", f"{tokens} x {model.inner}", num_bytes, 0, make, make_torch)


def linear_case(model: Sizes, name: str, rows: int, outputs: int, inputs: int) -> Case:
    def tensors() -> tuple[torch.Tensor, torch.Tensor]:
        return model.random(rows, inputs), model.random(outputs, inputs)

    def make() -> Run:
        return partial(skinny_linear, *tensors(), out=model.random(rows, outputs))

    def make_torch() -> Run:
        return partial(F.linear, *tensors())

    num_bytes = (outputs * inputs + rows * (inputs + outputs)) * model.dtype.itemsize
    flops = 2 * rows * outputs * inputs
    return Case("skinny_linear", f"{name}, {rows} x {inputs} -> {outputs}", num_bytes, flops, make, make_torch)


def fused_case(model: Sizes, name: str, rows: int, outputs: int, inputs: int) -> Case:
    """One product of a layer with what stands around it; `name` says which."""
    is_gated, has_norm = name == "norm + gate_up + SiLU", name.startswith("norm")

    def make() -> Run:
        norm = (model.random(inputs), 1e-6) if has_norm else None
        weight = model.random(2 * outputs if is_gated else outputs, inputs)
        residual = None if has_norm else model.random(rows, outputs)
        return partial(fused_linear, model.random(rows, inputs), weight, None, norm, is_gated, residual)

    weight_rows = 2 * outputs if is_gated else outputs
    num_bytes = (weight_rows * inputs + rows * (inputs + outputs)) * model.dtype.itemsize
    size = f"{name}, {rows} x {inputs} -> {outputs}"
    return Case("fused_linear", size, num_bytes, 2 * rows * weight_rows * inputs, make)


def fused_cases(model: Sizes, rows: int) -> Iterator[Case]:
    """The products of one layer."""
    heads = model.heads * model.head_dim
    yield fused_case(model, "norm + qkv", rows, heads + 2 * model.kv_heads * model.head_dim, model.hidden)
    yield fused_case(model, "o + residual", rows, model.hidden, heads)
    yield fused_case(model, "norm + gate_up + SiLU", rows, model.inner, model.hidden)
    yield fused_case(model, "down + residual", rows, model.hidden, model.inner)


def logits_like_text(model: Sizes, rows: int) -> torch.Tensor:
    """A few likely tokens before a long tail, where `random` gives nearly all tokens about the same chance."""
    rank = torch.rand(rows, model.vocab, device=model.device).argsort(dim=1) + 1
    return (12 - 1.8 * rank.log()).to(model.dtype) + 0.5 * model.random(rows, model.vocab)


def sample_case(
    model: Sizes,
    rows: int,
    what: str,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    like_text: bool = False,
) -> Case:
    def make() -> Run:
        columns: dict[str, torch.Tensor] = {
            name: torch.zeros(rows, device=model.device) for name in SamplingParameters._fields
        }
        columns |= {
            "temperature": torch.full((rows,), temperature, device=model.device),
            "min_p": torch.full((rows,), min_p, device=model.device),
            "top_k": model.integers([top_k] * rows),
            "top_p": torch.full((rows,), top_p, device=model.device),
            "seed": model.integers(torch.arange(rows), torch.int64),
            "repetition": torch.ones(rows, device=model.device),
        }
        state = SamplingState(model.integers(torch.zeros(rows, 64)), None)
        batch = SamplingRows(model.integers(torch.arange(rows)), model.integers([7] * rows))
        logits = logits_like_text(model, rows) if like_text else model.random(rows, model.vocab)
        return partial(sample, logits, batch, SamplingParameters(**columns), state)

    def make_torch() -> Run:
        return partial(torch.argmax, model.random(rows, model.vocab), dim=-1)

    num_bytes = rows * model.vocab * model.dtype.itemsize
    return Case("sample", f"{rows} x {model.vocab}, {what}", num_bytes, 0, make, make_torch)


def logprobs_case(model: Sizes, rows: int) -> Case:
    def make() -> Run:
        tokens = torch.randint(model.vocab, (rows,), device=model.device)
        return partial(token_logprobs, model.random(rows, model.vocab), tokens)

    num_bytes = rows * model.vocab * model.dtype.itemsize
    return Case("token_logprobs", f"{rows} x {model.vocab}", num_bytes, 0, make)


def linear_cases(model: Sizes, rows: int) -> Iterator[Case]:
    """The products of one layer, and the head."""
    heads = model.heads * model.head_dim
    yield linear_case(model, "qkv", rows, heads + 2 * model.kv_heads * model.head_dim, model.hidden)
    yield linear_case(model, "o", rows, model.hidden, heads)
    yield linear_case(model, "gate_up", rows, 2 * model.inner, model.hidden)
    yield linear_case(model, "down", rows, model.hidden, model.inner)
    yield linear_case(model, "head", rows, model.vocab, model.hidden)


def all_cases(device: torch.device) -> Iterator[Case]:
    """The sizes of a Qwen3-0.6B, and where they matter, of a Llama-3.1-8B."""
    small, large = qwen3_06b(device), llama_8b(device)
    for batch, context in [(1, 256), (1, 1024), (1, 4096), (8, 256), (8, 1024), (64, 256), (64, 1024), (256, 256)]:
        yield from both_ways(partial(decode_case, small, batch, context))
    for model in (small, large):
        yield from both_ways(partial(decode_case, model, 256, 1024))
        yield from both_ways(partial(decode_case, model, 64, 4096))
    for batch in (32, 48, 64, 144):
        yield from both_ways(partial(decode_case, small, batch, 1024, uneven=True))
    for most_parts in (65, 128, 256):
        yield decode_case(small, 64, 1024, most_parts)
    for most_parts in (8, 16, 32):
        yield decode_case(small, 1, 1024, most_parts)
    for batch, prefix in ((8, 8192), (32, 1792), (256, 512), (256, 1792)):
        yield prefix_case(small, batch, prefix)
    yield prefix_case(large, 256, 1792)
    prompts = [(small, 4, 4096), (large, 4, 4096), (small, 8, 2048), (small, 16, 1024), (small, 32, 512)]
    for (model, batch, length), fresh in itertools.product(prompts, (False, True)):
        yield from both_ways(partial(prefill_case, model, batch, length, fresh))
    for batch, length, context in ((8, 2048, 6144), (16, 256, 4096), (1, 2048, 6144), (1, 1024, 7168), (1, 512, 7680)):
        yield from both_ways(partial(prefill_case, small, batch, length, False, context=context))
    for tokens in (1, 256, 16_384):
        yield rotary_case(small, tokens)
        yield rms_norm_case(small, tokens)
        yield silu_case(small, tokens)
    for rows in (1, 2, 4, 8, 16):
        yield from linear_cases(small, rows)
    yield from linear_cases(large, 1)
    for rows in (1, 2, 4):
        yield from fused_cases(small, rows)
    for rows in (1, 16, 256):
        yield sample_case(small, rows, "greedy", 0.0)
        yield sample_case(small, rows, "temperature", 0.6)
        yield sample_case(small, rows, "top_p", 0.6, top_p=0.95)
        yield sample_case(small, rows, "top_p, like text", 0.6, top_p=0.95, like_text=True)
        yield sample_case(small, rows, "top_k", 0.6, top_k=50)
        yield sample_case(small, rows, "min_p", 0.6, min_p=0.05)
    yield logprobs_case(small, 256)
