"""Probes: each turns calls of our symbols into events. They read state by its names, and never change it."""

from __future__ import annotations

from minivllm.trace.probes.blocks import BlockProbes
from minivllm.trace.probes.calls import CallProbes
from minivllm.trace.probes.frontend import FrontendProbes
from minivllm.trace.probes.kernels import KernelProbes
from minivllm.trace.probes.logits import LogitsProbes
from minivllm.trace.probes.messages import MessageProbes, SocketProbes
from minivllm.trace.probes.plan import PlanProbes, queue_state
from minivllm.trace.probes.spans import SpanProbes
from minivllm.trace.probes.worker import WorkerProbes

__all__ = [
    "BlockProbes",
    "CallProbes",
    "FrontendProbes",
    "KernelProbes",
    "LogitsProbes",
    "MessageProbes",
    "PlanProbes",
    "SocketProbes",
    "SpanProbes",
    "WorkerProbes",
    "queue_state",
]
