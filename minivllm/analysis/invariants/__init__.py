"""The invariants of the engine, each checked on the event log."""

from minivllm.analysis.invariants import batch, blocks, life, order, plan, sampling, text
from minivllm.analysis.invariants.live import LiveChecker
from minivllm.analysis.invariants.registry import (
    Checker,
    Invariant,
    Verdict,
    all_invariants,
    check_log,
)

__all__ = [
    "Checker",
    "Invariant",
    "LiveChecker",
    "Verdict",
    "all_invariants",
    "batch",
    "blocks",
    "check_log",
    "life",
    "order",
    "plan",
    "sampling",
    "text",
]
