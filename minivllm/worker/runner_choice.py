"""Owns which runner a worker takes, and why.

Upstream: vllm/v1/worker/gpu_worker.py (the choice of the runner), vllm/config/compilation.py::CUDAGraphMode.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from minivllm.config import VllmConfig
from minivllm.models.registry import CausalLM
from minivllm.worker.gpu_model_runner import GPUModelRunner


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
    obstacle = why_no_graphs(vllm_config, attention.name, device)
    if obstacle is not None:
        if vllm_config.cudagraph_mode not in (None, "NONE"):
            raise ValueError(f"cudagraph_mode {vllm_config.cudagraph_mode} cannot be had: {obstacle}; leave it out")
        runner = GPUModelRunner(vllm_config, model, attention, device, dtype, cache_dtype)
        return runner, f"GPUModelRunner, each step launched kernel by kernel: {obstacle}"
    from minivllm.worker.captured_runner import CapturedModelRunner

    captured = CapturedModelRunner(vllm_config, model, attention, device, dtype, cache_dtype)
    what = "steps of decodes and steps with prompts" if vllm_config.cudagraph_mode == "FULL" else "steps of decodes"
    return captured, f"CapturedModelRunner: {what} as graphs, tokens sampled on the device"


def why_no_graphs(vllm_config: VllmConfig, attention_backend: str, device: torch.device) -> str | None:
    """What keeps steps from running as graphs; None if nothing does."""
    if vllm_config.cudagraph_mode == "NONE":
        return "cudagraph_mode is NONE (enforce_eager)"
    if device.type != "cuda":
        # In Triton's interpreter the same steps can be run, only not recorded: for tests, by name only.
        is_interpreted = os.environ.get("TRITON_INTERPRET") == "1" and attention_backend == "triton"
        if not is_interpreted or vllm_config.cudagraph_mode is None:
            return f"a {device.type.upper()} has no graphs"
    elif attention_backend != "triton":
        return f"attention backend {attention_backend} cannot be recorded"
    if vllm_config.batch == "rows":
        return "batch is 'rows': rows move, and what a graph reads must stay where it is"
    return None
