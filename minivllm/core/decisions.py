"""Owns the record of why: for each request that was looked at and did not get all it wanted, and for the end of a loop.

The scheduler makes one record a step. It never grows with the waiting queue: requests behind the one at which the loop
stopped were not looked at, and share its reason. It stays in the core; the worker gets only the plan.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Reason(enum.StrEnum):
    """Why a request was skipped, cut short, or made the loop stop."""

    # The budget or a limit.
    TOKEN_BUDGET = "token_budget"
    MAX_NUM_SEQS = "max_num_seqs"
    LONG_PREFILL_THRESHOLD = "long_prefill_threshold"
    CHUNKED_PREFILL_OFF = "chunked_prefill_off"
    LORA_LIMIT = "lora_limit"
    MAX_MODEL_LEN = "max_model_len"
    # Memory.
    NO_FREE_BLOCKS = "no_free_blocks"
    FULL_SEQUENCE_DOES_NOT_FIT = "full_sequence_does_not_fit"
    PREEMPTED = "preempted"
    PREEMPTED_THIS_STEP = "preempted_this_step"
    # Waiting for something else.
    OUTPUT_IN_FLIGHT = "output_in_flight"
    STALE_OUTPUT_IN_FLIGHT = "stale_output_in_flight"
    WAITING_FOR_GRAMMAR = "waiting_for_grammar"
    WAITING_FOR_REMOTE_KVS = "waiting_for_remote_kvs"
    WAITING_FOR_STREAMING_REQ = "waiting_for_streaming_req"
    # The engine.
    PAUSED_NEW = "paused_new"
    PAUSED_ALL = "paused_all"
    # Nothing was left to look at.
    QUEUE_EMPTY = "queue_empty"
    ALL_WAITING_BLOCKED = "all_waiting_blocked"


@dataclass(frozen=True, slots=True)
class Decision:
    """One reason with its arithmetic.

    Attributes:
        request_id: Whom it concerns; None for a loop that ran out of requests.
        reason: Which rule.
        numbers: The quantities that the rule compared, by name, e.g. {"asked": 4, "free": 2}.
    """

    request_id: str | None
    reason: Reason
    numbers: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class StepDecisions:
    """Everything that a step decided against.

    Attributes:
        budget: Tokens that the step could spend.
        not_scheduled: Requests that were looked at and got nothing.
        cut: Requests that got fewer tokens than they wanted.
        prefix_lookups: (request, tokens looked up, tokens hit) of each admitted request.
        preempted: Victims in order: (request, computed tokens lost, request that needed the blocks).
        stop: Why the last loop ended.
    """

    budget: int = 0
    not_scheduled: list[Decision] = field(default_factory=list)
    cut: list[Decision] = field(default_factory=list)
    prefix_lookups: list[tuple[str, int, int]] = field(default_factory=list)
    preempted: list[tuple[str, int, str]] = field(default_factory=list)
    stop: Decision | None = None

    def forget(self, request_id: str) -> None:
        """Drop what was recorded of a request that loses its place in this step after it was looked at."""
        self.not_scheduled = [decision for decision in self.not_scheduled if decision.request_id != request_id]
        self.cut = [decision for decision in self.cut if decision.request_id != request_id]
