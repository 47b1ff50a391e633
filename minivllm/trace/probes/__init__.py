"""Probes: each turns calls of our symbols into events. They read state by its names, and never change it."""

from __future__ import annotations

from minivllm.trace.probes.blocks import BlockProbes
from minivllm.trace.probes.frontend import FrontendProbes
from minivllm.trace.probes.plan import PlanProbes, queue_state
from minivllm.trace.probes.worker import WorkerProbes

__all__ = ["BlockProbes", "FrontendProbes", "PlanProbes", "WorkerProbes", "queue_state"]
