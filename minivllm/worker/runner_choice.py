"""Owns which runner a worker takes, and why.

Upstream: vllm/v1/worker/gpu_worker.py (the choice of the runner), vllm/config/compilation.py::CUDAGraphMode.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.config import CUDAGraphMode, VllmConfig
from minivllm.models.registry import CausalLM
from minivllm.worker.cuda_graphs import resolve_cudagraph_mode
from minivllm.worker.gpu_model_runner import GPUModelRunner

_AS_GRAPHS: dict[CUDAGraphMode, str] = {
    "PIECEWISE": "the model in graphs between the calls of attention",
    "FULL": "steps of decodes and steps with prompts as graphs",
    "FULL_DECODE_ONLY": "steps of decodes as graphs",
    "FULL_AND_PIECEWISE": "steps of decodes as graphs, steps with prompts in graphs between the calls of attention",
}


def choose_runner(
    vllm_config: VllmConfig,
    model: CausalLM,
    attention: Any,
    device: torch.device,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
) -> tuple[GPUModelRunner, str]:
    """The runner for a model on a device, and the reason in one line.

    Raises:
        ValueError: Graphs were asked for, and cannot be had.
    """
    obstacle = why_no_graphs(vllm_config, attention, device)
    if obstacle is not None:
        if vllm_config.cudagraph_mode not in (None, "NONE"):
            raise ValueError(f"cudagraph_mode {vllm_config.cudagraph_mode} cannot be had: {obstacle}; leave it out")
        runner = GPUModelRunner(vllm_config, model, attention, device, dtype, cache_dtype)
        return runner, f"GPUModelRunner, each step launched kernel by kernel: {obstacle}"
    from minivllm.worker.captured_runner import CapturedModelRunner

    mode, change = resolve_cudagraph_mode(vllm_config.cudagraph_mode, attention.graph_support, attention.name)
    vllm_config = msgspec.structs.replace(vllm_config, cudagraph_mode=mode)
    captured = CapturedModelRunner(vllm_config, model, attention, device, dtype, cache_dtype)
    reason = f"CapturedModelRunner: {_AS_GRAPHS[mode]}, tokens sampled on the device"
    return captured, f"{reason}; {change}" if change else reason


def why_no_graphs(vllm_config: VllmConfig, attention: AttentionBackend[Any], device: torch.device) -> str | None:
    """What keeps steps from running as graphs; None if nothing does."""
    if vllm_config.cudagraph_mode == "NONE":
        return "cudagraph_mode is NONE (enforce_eager)"
    if device.type != "cuda":
        # In Triton's interpreter the same steps can be run, only not recorded: for tests, by name only.
        is_interpreted = os.environ.get("TRITON_INTERPRET") == "1" and attention.on_kernels
        if not is_interpreted or vllm_config.cudagraph_mode is None:
            return f"a {device.type.upper()} has no graphs"
    elif not attention.on_kernels:
        return f"attention backend {attention.name} cannot be recorded, and makes its batch on the host"
    if vllm_config.batch == "rows":
        return "batch is 'rows': rows move, and what a graph reads must stay where it is"
    return None
