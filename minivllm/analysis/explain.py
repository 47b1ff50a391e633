"""Owns what can be explained: each topic and who answers it."""

from __future__ import annotations

from collections.abc import Callable

from minivllm.analysis.explain_alloc import alloc
from minivllm.analysis.explain_answer import Ask, Explanation
from minivllm.analysis.explain_budget import budget
from minivllm.analysis.explain_graph import graph
from minivllm.analysis.explain_hits import hit_rate
from minivllm.analysis.explain_ledger import ledger
from minivllm.analysis.explain_memory import memory
from minivllm.analysis.explain_slot import slot
from minivllm.analysis.explain_weights import weights
from minivllm.analysis.roofline import roofline
from minivllm.trace.reader import Log

TOPICS: dict[str, Callable[[Log, Ask], Explanation]] = {
    "slot": slot,
    "budget": budget,
    "alloc": alloc,
    "hit-rate": hit_rate,
    "memory": memory,
    "graph": graph,
    "weights": weights,
    "roofline": roofline,
    "ledger": ledger,
}


def explain(log: Log, topic: str, ask: Ask | None = None) -> Explanation:
    """Explain one number of a run.

    Args:
        log: The run.
        topic: One of TOPICS.
        ask: About whom and when; None leaves all of it to the topic.

    Raises:
        CannotKnowError: The log does not hold what the answer rests on; the message names it.
        ValueError: There is no such thing in the run.
    """
    return TOPICS[topic](log, ask or Ask())
