"""Checks of models on our kernels, in Triton's interpreter or on a GPU. Prints one JSON object: what failed, by name.

    TRITON_INTERPRET=1 python -m tests.models.kernel_checks llama qwen3
    python -m tests.models.kernel_checks --device cuda --full

Two copies of a random model go through the same steps, each with pages of its own: one computed by PyTorch, the other
by the kernels. Each feeds itself the tokens of its own greedy choice, so a wrong number shows twice.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from minivllm.attention.backend import AttentionBackend, AttentionMetadata
from minivllm.attention.torch_sdpa import TorchSdpaBackend
from minivllm.attention.triton import TritonBackend
from minivllm.kernels import fused_linear, hopper_linear, skinny_linear
from minivllm.kernels.gluon_guard import HAS_GLUON
from minivllm.kernels.triton_guard import next_power_of_2
from minivllm.layers.kernel_ops import KernelOps
from minivllm.layers.norm import RMSNorm
from minivllm.models.config import DecoderConfig, RopeConfig
from minivllm.models.llama import Llama, LlamaAttention, LlamaMLP
from minivllm.models.registry import CausalLM, resolve
from tests.kernels.interpreting import hasten
from tests.kernels.pretend_gluon import pretend

BLOCK_SIZE = 4
# Of the largest number; float32 alone, by another order of sums, differs by a few of its 1e-7.
FLOAT32_NEAR = 1e-5
# Each step: (request, new tokens) in batch order. Requests are a letter, prompts are made up as they come.
Steps = list[list[tuple[str, int]]]
# Behind products of our own and of cuBLAS; whole prompts, decodes, a chunk, and a chunk behind another.
ONLY_LAST: Steps = [[("a", 4), ("b", 5)], [("a", 1), ("b", 3), ("c", 2)], [("b", 2), ("c", 7), ("d", 6)]]
MOST_SKINNY_ROWS = 5  # so that steps can be short
QUICK: Steps = [
    [("a", 4), ("b", 2)],  # whole prompts: cuBLAS, attention from the step's own tensors
    [("a", 1), ("b", 1), ("c", 3)],  # decodes in front of a prompt, 5 rows: the skinny GEMM
    [("a", 1), ("c", 2)],  # few rows, six launches a layer: a decode and a chunk
    [("a", 1), ("b", 1)],  # few rows: decodes
]
FULL: Steps = [
    *QUICK,
    [("e", 1)],  # a prompt of one token
    [("c", 2), ("e", 1), ("a", 1)],  # a decode behind a chunk
    [("b", 6), ("d", 19), ("a", 1)],  # a chunk and a prompt that are longer than a tile
    [("a", 1), ("b", 1), ("c", 1), ("d", 1)],
    [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)],
    [("b", 1)],
    *[[("a", 1), ("d", 1)]] * 4,
]
JOINED: Steps = [  # Hopper's products: tens of rows
    [("a", 14), ("b", 3)],
    [("a", 1), ("b", 1), ("c", 16)],
]
JOINED_KINDS = ("llama", "qwen3")  # with biases, with norms of heads; others with --full
JOINED_FULL: Steps = [*JOINED, [("c", 9), ("d", 60)]]
SIZES = DecoderConfig(
    architecture="LlamaForCausalLM", vocab_size=40, hidden_size=24, intermediate_size=20, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-5,
    rope=RopeConfig(), tie_word_embeddings=True, eos_token_ids=(), dtype="float32",
)  # fmt: skip
LLAMA3_ROPE = RopeConfig(kind="llama3", factor=8.0, original_max_position_embeddings=16)
KINDS = {
    "llama": replace(SIZES, rope=LLAMA3_ROPE, attention_bias=True, mlp_bias=True, tie_word_embeddings=False),
    "qwen2": replace(SIZES, architecture="Qwen2ForCausalLM", num_key_value_heads=1, head_dim=10, num_hidden_layers=1),
    "qwen3": replace(SIZES, architecture="Qwen3ForCausalLM"),
    "mistral": replace(
        SIZES, architecture="MistralForCausalLM", sliding_window=7, full_attention_layers=frozenset({1})
    ),
    "overridden": replace(SIZES, num_hidden_layers=1),
}
# Sizes of real models, in one layer or two; for a GPU.
LARGE = {
    "llama": {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3},
    "qwen2": {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2},
    "qwen3": {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8},
    "mistral": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8},
}
LARGE_HEADS = {"llama": 64, "qwen2": 128, "qwen3": 128, "mistral": 128}


class ScaledNorm(RMSNorm):
    """A norm that is not the kernel's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1.5 * torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.forward(residual + x), residual + x


class ClippedAttention(LlamaAttention):
    def before_rotation(self, query_and_key: torch.Tensor) -> torch.Tensor:
        return query_and_key.clamp(-1.0, 1.0)


class GeluMLP(LlamaMLP):
    def act_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.gelu(gate) * up


class Overridden(Llama):
    """Differs from Llama in everything that a layer may differ in."""

    attention_class, mlp_class, norm_class = ClippedAttention, GeluMLP, ScaledNorm


def make_model(kind: str, config: DecoderConfig, device: str, dtype: torch.dtype) -> CausalLM:
    """A random model; the same for every device and, up to rounding, precision."""
    model_class = Overridden if kind == "overridden" else resolve(config.architecture)
    model = model_class(config, torch.device(device), dtype)
    generator = torch.Generator().manual_seed(5)
    for name, slot in model.weight_slots().items():
        random = torch.randn(slot.shape, generator=generator)
        if "norm" in name:
            random = 1 + 0.2 * random
        elif slot.dim() == 2:
            random *= 1.6 * slot.shape[-1] ** -0.5  # whatever the size, wide enough that greedy tokens vary
        slot.copy_(random.to(torch.bfloat16))
    return model


@dataclass
class Side:
    """One of the two: a model, its attention, its pages, and the tokens that it has chosen."""

    model: CausalLM
    attention: AttentionBackend
    num_blocks: int
    device: str
    dtype: torch.dtype
    only_last: bool = False
    tokens: dict[str, list[int]] = field(default_factory=dict)
    computed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = self.model.config
        heads = (config.num_key_value_heads, config.head_dim)
        shape = self.attention.kv_cache_shape(len("abcde") * self.num_blocks, BLOCK_SIZE, *heads)
        self.kv_caches = [
            torch.full(shape, float("nan"), device=self.device, dtype=self.dtype)
            for _ in range(config.num_hidden_layers)
        ]

    @torch.inference_mode()
    def run(self, step: list[tuple[str, int]]) -> torch.Tensor:
        """Logits of all tokens of a step: (tokens, vocab_size), or of each request's last one if only these are
        wanted: (requests, vocab_size). The greedy ones are kept as the next inputs."""
        ids, positions, slots = [], [], []
        seq_lens = np.array([self.computed.get(name, 0) + new for name, new in step], dtype=np.int32)
        # A request's pages lie backwards.
        last_block = [(ord(name) - ord("a") + 1) * self.num_blocks - 1 for name, _ in step]
        table = np.array(last_block, dtype=np.int32)[:, None] - np.arange(self.num_blocks, dtype=np.int32)
        for row, (name, new) in enumerate(step):
            first = self.computed.get(name, 0)
            known = self.tokens.setdefault(name, prompt(name, new, self.model.config.vocab_size))
            known += prompt(name, max(0, first + new - len(known)), self.model.config.vocab_size)
            position = np.arange(first, first + new)
            ids += known[first : first + new]
            positions.append(position)
            slots.append(table[row, position // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + position % BLOCK_SIZE)
            self.computed[name] = first + new
        starts = np.cumsum([0] + [new for _, new in step], dtype=np.int32)
        metadata = AttentionMetadata(starts, seq_lens, table, np.concatenate(slots), BLOCK_SIZE)
        device = torch.device(self.device)
        prepared = self.attention.prepare(metadata, device, self.dtype)
        where = torch.from_numpy(np.concatenate(positions)).to(device)
        inputs = torch.tensor(ids, device=device), where, self.kv_caches, self.attention, prepared
        last = starts[1:] - 1
        wanted = torch.from_numpy(last).to(device) if self.only_last else None
        logits = self.model.compute_logits(self.model.forward(*inputs, wanted))
        for (name, _), row in zip(step, range(len(step)) if self.only_last else last, strict=True):
            del self.tokens[name][self.computed[name] :]
            self.tokens[name].append(int(logits[row].argmax()))
        return logits


def prompt(name: str, length: int, vocab_size: int) -> list[int]:
    """Tokens that nobody has chosen."""
    return [(7 * ord(name) + 13 * i * i + i) % vocab_size for i in range(length)]


def check_float32(kind: str, config: DecoderConfig, device: str, steps: Steps) -> None:
    """Logits of every token within `FLOAT32_NEAR`, greedy tokens equal, pages alike; each side feeds itself."""
    dtype = torch.float32
    reference = reference_side(kind, config, device, dtype, steps)
    kernels = kernel_side(kind, config, device, dtype, steps)
    assert (kernels.model.few_rows is None) == (kind == "overridden"), (
        "overridden layers take the way of single kernels"
    )
    for index, step in enumerate(steps):
        expected, got = reference.run(step), kernels.run(step)
        near = FLOAT32_NEAR * float(expected.abs().max())
        torch.testing.assert_close(got, expected, atol=near, rtol=0, msg=lambda text, i=index: f"step {i}: {text}")
        assert kernels.tokens == reference.tokens, f"step {index}: greedy tokens differ"
    check_pages(kernels, reference)


def check_only_last(kind: str, config: DecoderConfig, device: str, steps: Steps) -> None:
    """Who asks for each request's last token alone gets that, and leaves the same pages behind."""
    reference = reference_side(kind, config, device, torch.float32, steps)
    kernels = kernel_side(kind, config, device, torch.float32, steps)
    kernels.only_last = True
    for index, step in enumerate(steps):
        last = torch.tensor([new for _, new in step]).cumsum(0) - 1
        expected, got = reference.run(step)[last], kernels.run(step)
        near = FLOAT32_NEAR * float(expected.abs().max())
        torch.testing.assert_close(got, expected, atol=near, rtol=0, msg=lambda text, i=index: f"step {i}: {text}")
    check_pages(kernels, reference)


def check_pages(kernels: Side, reference: Side) -> None:
    for got, expected in zip(kernels.kv_caches, reference.kv_caches, strict=True):
        assert torch.equal(got.isnan(), expected.isnan()), "what is written and what is not"
        assert (got - expected).nan_to_num().abs().max() < FLOAT32_NEAR * expected.nan_to_num().abs().max()


def check_half(kind: str, config: DecoderConfig, device: str, steps: Steps) -> None:
    """The kernels in half precision are as near to float32 as PyTorch is in it; all are fed the same tokens."""
    dtype = half(device)
    reference = reference_side(kind, config, device, torch.float32, steps)
    plain = reference_side(kind, config, device, dtype, steps)
    kernels = kernel_side(kind, config, device, dtype, steps)
    for index, step in enumerate(steps):
        expected = reference.run(step)
        errors = {}
        for name, side in (("torch", plain), ("kernels", kernels)):
            errors[name] = float((side.run(step).float() - expected).square().mean().sqrt() / expected.std())
            side.tokens = {request: list(tokens) for request, tokens in reference.tokens.items()}
        assert errors["kernels"] < 1.5 * errors["torch"] + 0.2 * torch.finfo(dtype).eps, f"step {index}: {errors}"


def check_joined(kind: str, config: DecoderConfig, device: str, steps: Steps) -> None:
    """The same for steps that all go through Hopper's products, of a model whose weights the copy engine takes."""
    config = replace(config, intermediate_size=-(-config.intermediate_size // 8) * 8)
    layers = kernel_side(kind, config, device, half(device), steps).model.some_rows
    is_joined = [layers is not None and layers.takes(sum(new for _, new in step)) for step in steps]
    assert all(is_joined) if kind != "overridden" else not any(is_joined), is_joined
    check_half(kind, config, device, steps)


def half(device: str) -> torch.dtype:
    """Not bfloat16 in the interpreter, which multiplies it wrongly."""
    return torch.float16 if device == "cpu" else torch.bfloat16


def reference_side(kind: str, config: DecoderConfig, device: str, dtype: torch.dtype, steps: Steps) -> Side:
    attention = TorchSdpaBackend(config.windows)
    return Side(make_model(kind, config, device, dtype), attention, blocks_for(steps), device, dtype)


def kernel_side(kind: str, config: DecoderConfig, device: str, dtype: torch.dtype, steps: Steps) -> Side:
    model = make_model(kind, config, device, dtype)
    model.use_kernels(KernelOps(most_skinny_rows=MOST_SKINNY_ROWS))
    return Side(model, TritonBackend(), blocks_for(steps), device, dtype)


def blocks_for(steps: Steps) -> int:
    """Pages for the longest request."""
    totals = Counter[str]()
    for step in steps:
        totals.update(dict(step))
    return -(-max(totals.values()) // BLOCK_SIZE)


def large(kind: str) -> DecoderConfig:
    """Sizes of a real model."""
    return replace(KINDS[kind], **LARGE[kind], head_dim=LARGE_HEADS[kind], vocab_size=1000, num_hidden_layers=2)


def few_programs() -> None:
    """The interpreter takes milliseconds for each program, so let each have many rows of the weight."""
    for module in (fused_linear, skinny_linear):
        module.gemv_tiling = lambda _rows, _outputs, size: skinny_linear.Tiling(16, next_power_of_2(size), 1)


def play_hopper() -> bool:
    """Let its products run here, in float16; whether this Triton has them."""
    if not hasattr(hopper_linear.hopper_linear_kernel, "fn"):
        return False
    pretend(setattr)

    def most_rows(weight: torch.Tensor) -> int:
        fits = weight.dtype == torch.float16 and weight.shape[1] % hopper_linear.ROW_MULTIPLE == 0
        return hopper_linear.MOST_ROWS if fits else 0

    hopper_linear.most_rows = most_rows
    return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    device, steps = options.device, FULL if options.full else QUICK
    if device == "cpu":
        few_programs()
        hasten(checks_overflow=False)
    plays_hopper = play_hopper() if device == "cpu" else torch.cuda.get_device_capability() == (9, 0) and HAS_GLUON
    failures: dict[str, str | None] = {}
    for kind in options.kinds:
        checks = [("float32", partial(check_float32, kind, KINDS[kind], device, steps))]
        # The last layer is the one that differs: where layers have windows, let it have one.
        config = replace(KINDS[kind], full_attention_layers=frozenset({0})) if kind == "mistral" else KINDS[kind]
        checks.append(("only last", partial(check_only_last, kind, config, device, ONLY_LAST)))
        if options.full:
            checks.append(("half", partial(check_half, kind, KINDS[kind], device, steps)))
        if plays_hopper and (options.full or kind in JOINED_KINDS):
            joined = JOINED_FULL if options.full else JOINED
            checks.append(("joined", partial(check_joined, kind, KINDS[kind], device, joined)))
        if device == "cuda" and kind in LARGE:
            checks.append(("large float32", partial(check_float32, kind, large(kind), device, steps)))
            checks.append(("large half", partial(check_half, kind, large(kind), device, steps)))
        for name, check in checks:
            try:
                check()
                failures[f"{kind}, {name}"] = None
            except Exception:
                failures[f"{kind}, {name}"] = traceback.format_exc(limit=-4)
    print(json.dumps(failures))


if __name__ == "__main__":
    main()
