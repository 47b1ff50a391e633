"""Owns the Llama architecture: Llama 2 and 3, SmolLM2, and everything shaped like them.

It is also the template: the other models here are Llama with a difference, and say only that. Query, key and value are
one matrix product, gate and up are another: `weight_slots` says which rows each tensor of a checkpoint fills.

On a GPU the layers run on our kernels, see `use_kernels`; nothing else changes there.

Upstream: vllm/model_executor/models/llama.py.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import nn

from minivllm.attention.backend import AttentionBackend, UnrotatedBackend
from minivllm.layers.activation import silu_and_mul
from minivllm.layers.linear import Linear
from minivllm.layers.norm import RMSNorm
from minivllm.layers.rotary import RotaryEmbedding, Rotation, rotate
from minivllm.models.config import DecoderConfig
from minivllm.sourcemap.registry import on_map

if TYPE_CHECKING:
    from minivllm.layers.kernel_ops import KernelOps
    from minivllm.models.few_rows import FewRows
    from minivllm.models.some_rows import SomeRows


class LlamaAttention(nn.Module):
    """Projections around attention; several query heads share one key and value head (GQA)."""

    def __init__(self, config: DecoderConfig, layer: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.window = config.window_of(layer)
        qkv_bias, output_bias = self.has_bias(config)
        rows = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.qkv_proj = Linear(config.hidden_size, rows, device, dtype, bias=qkv_bias)
        self.o_proj = Linear(self.heads * self.head_dim, config.hidden_size, device, dtype, bias=output_bias)

    def has_bias(self, config: DecoderConfig) -> tuple[bool, bool]:
        """Whether query, key and value have a bias, and whether the output has one."""
        return config.attention_bias, config.attention_bias

    def head_norms(self) -> tuple[RMSNorm, RMSNorm] | None:
        """The norms over each head of query and of key before they are rotated, if the model has them."""
        return None

    def before_rotation(self, query_and_key: torch.Tensor) -> torch.Tensor:
        """What happens to the heads of query and key before they are rotated: (tokens, q + k heads, head_dim)."""
        norms = self.head_norms()
        if norms is None:
            return query_and_key
        query, key = query_and_key.tensor_split((self.heads,), dim=1)  # (tokens, heads or kv_heads, head_dim)
        return torch.cat((norms[0].forward(query), norms[1].forward(key)), dim=1)

    def forward(
        self,
        hidden: torch.Tensor,
        rotation: Rotation,
        kv_cache: torch.Tensor,
        attention: AttentionBackend[Any],
        metadata: Any,
        residual: torch.Tensor,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """What is to be added to the residual, or None if it has been: see `Linear.add_to`.

        Args:
            residual: As many rows as are wanted.
            wanted: See `Llama.forward`.
        """
        qkv = self.qkv_proj.forward(hidden)  # (tokens, (q + k + v heads) * head_dim)
        return self.o_proj.add_to(residual, self.attend(qkv, rotation, kv_cache, attention, metadata, wanted))

    def attend(
        self,
        qkv: torch.Tensor,
        rotation: Rotation,
        kv_cache: torch.Tensor,
        attention: AttentionBackend[Any],
        metadata: Any,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """What lies between the two projections: (tokens, heads * head_dim), or of those that are wanted."""
        table = rotation.table
        if isinstance(attention, UnrotatedBackend) and table is not None and self.only_norms_before_rotation():
            return self._attend_unrotated(qkv, rotation.positions, table, kv_cache, attention, metadata, wanted)
        qkv = qkv.view(len(qkv), -1, self.head_dim)  # (tokens, q + k + v heads, head_dim)
        query_and_key, value = qkv.tensor_split((self.heads + self.kv_heads,), dim=1)
        rotated = rotate(self.before_rotation(query_and_key), *rotation.cos_sin)
        query, key = rotated.tensor_split((self.heads,), dim=1)
        out = attention.forward(query, key, value, kv_cache, metadata, self.window)  # (tokens, heads, head_dim)
        return (out if wanted is None else out.index_select(0, wanted)).flatten(1)

    def only_norms_before_rotation(self) -> bool:
        """Whether a kernel that norms, rotates and writes in one go does the same as this class."""
        norms = self.head_norms() or ()
        is_plain = type(self).before_rotation is LlamaAttention.before_rotation
        return is_plain and all(type(norm).forward is RMSNorm.forward for norm in norms)

    def _attend_unrotated(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        table: torch.Tensor,
        kv_cache: torch.Tensor,
        attention: UnrotatedBackend[Any],
        metadata: Any,
        wanted: torch.Tensor | None,
    ) -> torch.Tensor:
        norms = self.head_norms()
        weights, eps = (None, 0.0) if norms is None else ((norms[0].weight, norms[1].weight), norms[0].eps)
        before = qkv, positions, table, weights, eps
        return attention.forward_unrotated(*before, kv_cache, metadata, self.window, wanted).flatten(1)

    def weight_slots(self) -> dict[str, torch.Tensor]:
        q_rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim
        slots = self.qkv_proj.slots(q_proj=q_rows, k_proj=kv_rows, v_proj=kv_rows)
        return slots | self.o_proj.slots(o_proj=len(self.o_proj.weight))


class LlamaMLP(nn.Module):
    """down(act(gate(x)) * up(x)), where act is SiLU."""

    kernels: KernelOps | None = None

    def __init__(self, config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_up_proj = Linear(hidden, 2 * inner, device, dtype, bias=bias)
        self.down_proj = Linear(inner, hidden, device, dtype, bias=bias)

    def act_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """act(gate) * up, (tokens, intermediate), of both side by side, (tokens, 2 * intermediate)."""
        return silu_and_mul(gate_up, self.kernels)

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor | None:
        """What is to be added to the residual, or None if it has been: see `Linear.add_to`."""
        gate_up = self.gate_up_proj.forward(hidden)  # (tokens, 2 * intermediate)
        return self.down_proj.add_to(residual, self.act_and_mul(gate_up))

    def weight_slots(self) -> dict[str, torch.Tensor]:
        inner = len(self.gate_up_proj.weight) // 2
        slots = self.gate_up_proj.slots(gate_proj=inner, up_proj=inner)
        return slots | self.down_proj.slots(down_proj=len(self.down_proj.weight))


def add_and_norm(
    norm: RMSNorm, hidden: torch.Tensor | None, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`RMSNorm.add_and_norm`, where a product may have been added already (`Linear.add_to`): then hidden is None."""
    if hidden is None:
        return norm.forward(residual), residual
    return norm.add_and_norm(hidden, residual)


class LlamaDecoderLayer(nn.Module):
    """Attention, then MLP, each around a residual connection."""

    def __init__(
        self, input_layernorm: RMSNorm, attention: LlamaAttention, post_attention_layernorm: RMSNorm, mlp: LlamaMLP
    ) -> None:
        super().__init__()
        self.input_layernorm = input_layernorm
        self.self_attn = attention
        self.post_attention_layernorm = post_attention_layernorm
        self.mlp = mlp

    def forward(
        self,
        hidden: torch.Tensor | None,
        residual: torch.Tensor,
        rotation: Rotation,
        kv_cache: torch.Tensor,
        attention: AttentionBackend[Any],
        metadata: Any,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """The output of the MLP, and the residual that it is to be added to: the next norm does that, in one go.

        Args:
            hidden: What the layer before has left to be added; None if it has added it.
            wanted: See `Llama.forward`.
        """
        normed, residual = add_and_norm(self.input_layernorm, hidden, residual)
        if wanted is not None:
            residual = residual.index_select(0, wanted)
        hidden = self.self_attn.forward(normed, rotation, kv_cache, attention, metadata, residual, wanted)
        normed, residual = add_and_norm(self.post_attention_layernorm, hidden, residual)
        return self.mlp.forward(normed, residual), residual

    def weight_slots(self) -> dict[str, torch.Tensor]:
        slots: dict[str, torch.Tensor] = {
            "input_layernorm.weight": self.input_layernorm.weight,
            "post_attention_layernorm.weight": self.post_attention_layernorm.weight,
        }
        slots |= {f"self_attn.{name}": slot for name, slot in self.self_attn.weight_slots().items()}
        slots |= {f"mlp.{name}": slot for name, slot in self.mlp.weight_slots().items()}
        return slots


class Llama(nn.Module):
    """Embedding, decoder layers, final norm, and the language model head. The classes are what others differ in."""

    attention_class: ClassVar[type[LlamaAttention]] = LlamaAttention
    mlp_class: ClassVar[type[LlamaMLP]] = LlamaMLP
    norm_class: ClassVar[type[RMSNorm]] = RMSNorm

    kernels: KernelOps | None = None
    few_rows: FewRows | None = None
    some_rows: SomeRows | None = None

    def __init__(self, config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Parameter(
            torch.empty(config.vocab_size, config.hidden_size, device=device, dtype=dtype), requires_grad=False
        )
        norm = partial(self.norm_class, config.hidden_size, config.rms_norm_eps, device, dtype)
        self.layers = nn.ModuleList(
            LlamaDecoderLayer(
                norm(), self.attention_class(config, i, device, dtype), norm(), self.mlp_class(config, device, dtype)
            )
            for i in range(config.num_hidden_layers)
        )
        self.norm = norm()
        if config.tie_word_embeddings:
            self.lm_head = Linear.of(self.embed_tokens)
        else:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, device, dtype, bias=False)
        self.rotary = RotaryEmbedding(config.head_dim, config.rope, device, dtype)

    def use_kernels(self, ops: KernelOps | None = None) -> None:
        """Run on our kernels from now on: on a GPU, or in Triton's interpreter.

        It takes the memory of the rotary table, (max_position_embeddings + 1) x head_dim x 4 bytes.

        Args:
            ops: Which kernels, up to which sizes.

        Raises:
            ImportError: Triton is not installed.
        """
        from minivllm.layers.kernel_ops import KernelOps  # imports Triton, which takes a second
        from minivllm.models.few_rows import FewRows
        from minivllm.models.some_rows import SomeRows

        ops = ops or KernelOps()
        for module in self.modules():
            if isinstance(module, Linear | RMSNorm | LlamaMLP | Llama):
                module.kernels = ops
        self.rotary.tabulate(self.config.max_position_embeddings + 1)
        layers = cast("list[LlamaDecoderLayer]", list(self.layers))
        if FewRows.can_run(layers):
            self.few_rows, self.some_rows = FewRows(layers, ops), SomeRows(layers, self.norm, ops)

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """What goes into the first layer: (tokens, hidden_size)."""
        return F.embedding(input_ids, self.embed_tokens)

    @on_map(
        "model forward", vllm="vllm/model_executor/models/llama.py::LlamaModel.forward", plane="data", process="worker"
    )
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: list[torch.Tensor],
        attention: AttentionBackend[Any],
        metadata: Any,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states: see `CausalLM.forward`.

        Of a token that is not wanted the last layer needs only keys and values: later tokens will look at them, and
        nobody at anything behind. With prompts, that is most of a layer.
        """
        residual = self.embed(input_ids)  # (tokens, hidden_size)
        rotation = self.rotary.at(positions)
        for rows in (self.few_rows, self.some_rows):
            if rows is not None and rows.takes(len(residual)):
                residual = rows.forward(residual, rotation, kv_caches, attention, metadata)
                return self.norm.forward(residual if wanted is None else residual.index_select(0, wanted))
        hidden: torch.Tensor | None = None
        wanted_by = [None] * (len(self.layers) - 1) + [wanted]
        for layer, kv_cache, rows_wanted in zip(self.layers, kv_caches, wanted_by, strict=True):
            hidden, residual = layer(hidden, residual, rotation, kv_cache, attention, metadata, rows_wanted)
        return add_and_norm(self.norm, hidden, residual)[0]

    @on_map(
        "logits",
        vllm="vllm/model_executor/models/llama.py::LlamaForCausalLM.compute_logits",
        plane="data",
        process="worker",
    )
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head.forward(hidden)  # (rows, vocab_size)

    def weight_slots(self) -> dict[str, torch.Tensor]:
        slots: dict[str, torch.Tensor] = {"model.embed_tokens.weight": self.embed_tokens}
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, LlamaDecoderLayer)
            slots |= {f"model.layers.{i}.{name}": slot for name, slot in layer.weight_slots().items()}
        slots["model.norm.weight"] = self.norm.weight
        if not self.config.tie_word_embeddings:
            slots["lm_head.weight"] = self.lm_head.weight
        return slots
