"""Owns the draw on a device: the same kernels, and so the same tokens, as in a step that never leaves it.

Noise, thresholds and the order of sums are the kernels' own. A request that is sampled with the host in one step and by
a graph in the next one draws as if it had always been the same way.

Upstream: vllm/v1/worker/gpu/sample/sampler.py::Sampler.
"""

from __future__ import annotations

import numpy as np
import torch

from minivllm.sample.metadata import SamplingMetadata


def has_kernels(device: torch.device) -> bool:
    """Whether tokens are drawn by kernels there. A CPU draws by NumPy, which is faster there."""
    if device.type != "cuda":
        return False
    # Triton takes half a second to import, and only a GPU has a use for it.
    from minivllm.kernels.triton_guard import HAS_TRITON

    return HAS_TRITON


def draw_on_device(logits: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
    """One token per row, greedy or drawn: (rows,) int64; -1 if the maximum of a row is not a finite number.

    Args:
        logits: (rows, vocab_size), after rules and penalties, before the temperature.
        metadata: One entry per row.
    """
    from minivllm.kernels.sample import sample
    from minivllm.kernels.scores import SamplingParameters, SamplingRows, SamplingState

    device, rows = logits.device, len(logits)

    def column(values: object, dtype: type[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.array(values, dtype=dtype)).to(device)

    ones, zeros = torch.ones(rows, device=device), torch.zeros(rows, device=device)
    parameters = SamplingParameters(
        column(metadata.temperature, np.float32),
        column(metadata.min_p, np.float32),
        column(metadata.top_k, np.int32),
        column(metadata.top_p, np.float32),
        column(metadata.seed.view(np.int64), np.int64),
        repetition=ones,
        frequency=zeros,
        presence=zeros,
    )
    places = SamplingRows(torch.arange(rows, dtype=torch.int32, device=device), column(metadata.position, np.int32))
    # The kernel also writes each token into a store of slots. All rows share one here, which nobody reads.
    longest = int(metadata.position.max(initial=0)) + 1
    store = torch.empty(longest, dtype=torch.int32, device=device).expand(rows, longest)
    return sample(logits, places, parameters, SamplingState(store, None))
