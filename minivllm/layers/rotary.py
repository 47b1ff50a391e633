"""Owns rotary position embeddings: positions enter attention as rotations of query and key.

Upstream: vllm/model_executor/layers/rotary_embedding/.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch

from minivllm.layers.native import native_ops
from minivllm.models.config import RopeConfig


class RotaryEmbedding:
    """Angles of positions: on a CPU computed once per step, for all layers; on a GPU in a table, as vLLM has it.

    Attributes:
        table: (positions, head_dim), float32: cosines, then sines of each position; None until `tabulate`.
    """

    def __init__(self, head_dim: int, rope: RopeConfig, device: torch.device, dtype: torch.dtype) -> None:
        self._frequencies = inverse_frequencies(head_dim, rope).to(device)  # (head_dim / 2,)
        self._dtype = dtype
        self.table: torch.Tensor | None = None

    def at(self, positions: torch.Tensor) -> Rotation:
        """The rotation of each token: positions is (tokens,), int64."""
        return Rotation(self, positions)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of positions, rounded as the model is: (tokens, head_dim / 2) each."""
        angles = torch.outer(positions.float(), self._frequencies)
        return angles.cos().to(self._dtype), angles.sin().to(self._dtype)

    def tabulate(self, num_positions: int) -> None:
        """Make the table of the first positions, with the very numbers that `angles` gives."""
        positions = torch.arange(num_positions, device=self._frequencies.device)
        self.table = torch.cat(self.angles(positions), dim=1).float()


class Rotation:
    """How a step's tokens are rotated: their positions, and their angles for whoever asks.

    Attributes:
        positions: (tokens,), int64.
        table: Of the `RotaryEmbedding`.
    """

    def __init__(self, rotary: RotaryEmbedding, positions: torch.Tensor) -> None:
        self._rotary = rotary
        self.positions = positions
        self.table = rotary.table

    @cached_property
    def cos_sin(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, the same for all heads: (tokens, 1, head_dim / 2) each."""
        cos, sin = self._rotary.angles(self.positions)
        return cos.unsqueeze(1), sin.unsqueeze(1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (x[i], x[i + head_dim / 2]) of x (tokens, heads, head_dim) by its position's angle i.

    In float32, rounded once, as vLLM does it. May overwrite x.
    """
    ops = native_ops(x)
    if ops is not None:
        return ops.rotate_(x, cos, sin)
    cos, sin = cos.float(), sin.float()
    first, second = x.float().chunk(2, dim=-1)  # (tokens, heads, head_dim / 2) each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def inverse_frequencies(head_dim: int, rope: RopeConfig) -> torch.Tensor:
    """Radians per position for each pair: (head_dim / 2,)."""
    frequencies = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "factors":
        return frequencies / torch.tensor(rope.factors)
    if rope.kind == "llama3":
        return _stretch_low_frequencies(frequencies, rope)
    return frequencies


def _stretch_low_frequencies(frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Llama 3.1: pairs that turn fast keep their speed, those that turn slowly are slowed down, with a ramp between."""
    turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)  # in the original context
    ramp = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = ramp.clamp(0.0, 1.0)
    return keep * frequencies + (1.0 - keep) * frequencies / rope.factor
