"""How both functions get into the sampler: its arrays become tensors, and its noise becomes exponential numbers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from minivllm.sample.metadata import SamplingMetadata
from minivllm.sample.noise import gumbel_noise


def seam(part: ModuleType) -> dict[str, Any]:
    """What takes the place of which symbol."""

    def apply_top_k_top_p(logits: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
        assert not (metadata.top_k > 0).any(), "the runs of this exercise have no top_k"
        return part.keep_top_p(logits, torch.from_numpy(metadata.top_p).unsqueeze(1))

    def draw(logits: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
        noise = gumbel_noise(metadata.seed, metadata.position, logits.shape[-1])
        return part.draw(logits, (-noise).exp())

    return {"minivllm.sample.filters:apply_top_k_top_p": apply_top_k_top_p, "minivllm.sample.sampler:draw": draw}
