"""Owns the plan of one step while it is being made, and what a paused engine may still do.

Upstream: the local variables of Scheduler.schedule, and vllm/v1/core/sched/interface.py::PauseState.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from minivllm.core.decisions import StepDecisions
from minivllm.core.free_block_queue import KVCacheBlock
from minivllm.core.request import LoRARequest, Request


class PauseState(enum.Enum):
    """What a paused engine still does. Upstream: vllm/v1/core/sched/interface.py::PauseState."""

    UNPAUSED = enum.auto()
    PAUSED_NEW = enum.auto()  # running requests go on, nobody is admitted
    PAUSED_ALL = enum.auto()  # nothing runs


@dataclass(slots=True)
class Step:
    """The plan of one step while it is being made.

    Attributes:
        token_budget: Tokens left to give out.
        decisions: Why others got nothing, or less.
        scheduled_running_reqs, scheduled_new_reqs, scheduled_resumed_reqs: Who is in the plan, by kind, in order.
        preempted: Victims of this step.
        num_scheduled_tokens: Tokens of each scheduled request.
        new_blocks: Blocks that running requests gained; absent if none.
        spec_tokens: Drafts of the requests that have any.
        loras: Adapters of this step.
    """

    token_budget: int
    decisions: StepDecisions
    scheduled_running_reqs: list[Request] = field(default_factory=list)
    scheduled_new_reqs: list[Request] = field(default_factory=list)
    scheduled_resumed_reqs: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    new_blocks: dict[str, list[KVCacheBlock]] = field(default_factory=dict)
    spec_tokens: dict[str, list[int]] = field(default_factory=dict)
    loras: set[LoRARequest] = field(default_factory=set)
