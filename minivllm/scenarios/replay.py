"""Owns turning a recorded run back into something that can be planned again, with the same arrivals and tokens."""

from __future__ import annotations

from typing import Any

import msgspec

from minivllm.config import Semantics, VllmConfig
from minivllm.core.messages import EngineCoreRequest
from minivllm.executor.sim import TokenRule, recorded_token_rule
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.driver import DEFAULT_MAX_STEPS, Arrival
from minivllm.scenarios.workload import Workload
from minivllm.trace.reader import Log


def workload_from_log(log: Log, semantics: Semantics) -> tuple[Workload, TokenRule]:
    """The arrivals, aborts and settings of a recorded run, and a rule that samples what it sampled.

    Args:
        log: A complete log.
        semantics: Rules for the new run.
    """
    vllm_config = msgspec.convert(log.header.config, VllmConfig)
    scheduler_config = msgspec.structs.replace(vllm_config.scheduler_config, semantics=semantics)
    vllm_config = msgspec.structs.replace(vllm_config, scheduler_config=scheduler_config)
    aborts: dict[str, tuple[int | None, Any]] = {}
    drafts: dict[str, dict[int, list[int]]] = {}
    for event in log.events:
        if event.kind == "requests.aborted":
            aborts.update({request_id: (event.step, event.data["phase"]) for request_id in event.data["asked"]})
        if event.kind == "drafts.given":
            for request_id, tokens in event.data.items():
                drafts.setdefault(request_id, {})[event.step] = tokens
    arrivals = []
    for event in log.events:
        if event.kind == "request.arrived" and event.request is not None:
            request = EngineCoreRequest(
                event.request,
                event.data["prompt_token_ids"],
                msgspec.convert(event.data["sampling_params"], SamplingParams, str_keys=True),
                arrival_time=event.data["arrival_time"],
                priority=event.data["priority"],
            )
            abort_step, abort_phase = aborts.get(event.request, (None, "before"))
            parent = (event.data["parent"], event.data["index"]) if "parent" in event.data else None
            arrivals.append(
                Arrival(
                    event.step,
                    request,
                    abort_step,
                    abort_phase,
                    event.data.get("prompt"),
                    parent,
                    drafts.get(event.request, {}),
                )
            )
    workload = Workload(log.header.scenario or "log", vllm_config, 1, arrivals, DEFAULT_MAX_STEPS)
    return workload, recorded_token_rule(_sampled_tokens(log))


def _sampled_tokens(log: Log) -> dict[str, list[int]]:
    """All that each request sampled, in order: what was sampled one step too late, and thrown away, included."""
    outputs: dict[str, list[int]] = {}
    for event in log.events:
        if event.kind == "update":
            for request_id, tokens in event.data["sampled"].items():
                outputs.setdefault(request_id, []).extend(tokens)
    return outputs
