"""Owns finding the iterations in which something happened to a request, and where each rule stands in the source."""

from __future__ import annotations

from typing import Any

from minivllm.analysis.answer import Answer
from minivllm.analysis.iteration import Iteration, iterations
from minivllm.trace.reader import Log

_SCHEDULE = "vllm/v1/core/sched/scheduler.py::Scheduler.schedule"
_RUNNING = "minivllm.core.schedule_running:schedule_running"
_WAITING = "minivllm.core.schedule_waiting:"
# Where each rule stands.
_OURS = {
    "token_budget": f"{_WAITING}_why_admit_no_one",
    "max_num_seqs": f"{_WAITING}_why_admit_no_one",
    "preempted_this_step": f"{_WAITING}_why_admit_no_one",
    "paused_new": f"{_WAITING}_why_admit_no_one",
    "paused_all": f"{_WAITING}_why_admit_no_one",
    "chunked_prefill_off": f"{_WAITING}_admit",
    "no_free_blocks": "minivllm.core.kv_cache_manager:KVCacheManager.allocate_slots",
    "full_sequence_does_not_fit": "minivllm.core.kv_cache_manager:KVCacheManager.allocate_slots",
    "preempted": "minivllm.core.schedule_running:_take_victim",
    "output_in_flight": _RUNNING,
    "max_model_len": "minivllm.core.schedule_running:why_less",
    "long_prefill_threshold": "minivllm.core.schedule_running:why_less",
}
_VLLM = {
    "no_free_blocks": "vllm/v1/core/kv_cache_manager.py::KVCacheManager.allocate_slots",
    "full_sequence_does_not_fit": "vllm/v1/core/kv_cache_manager.py::KVCacheManager.allocate_slots",
}
_KNOB = {
    "token_budget": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "no_free_blocks": "num_gpu_blocks",
    "full_sequence_does_not_fit": "num_gpu_blocks",
    "preempted": "num_gpu_blocks",
    "chunked_prefill_off": "max_num_batched_tokens",
    "long_prefill_threshold": "long_prefill_token_threshold",
}


def moments(log: Log, request: str, question: str) -> list[int]:
    """Iterations in which something happened to a request."""
    found = []
    for event in log.events:
        if event.kind != "schedule" or (log.window and event.step > log.window[1]):
            continue
        plan = event.data
        preempted = request in plan["preempted"]
        if question == "preempted" and preempted:
            found.append(event.step)
        if question == "partial" and any(entry["request"] == request for entry in plan["cut"]):
            found.append(event.step)
        if question == "not-scheduled" and not preempted and not any(r == request for r, _ in plan["scheduled"]):
            passed_over = any(entry["request"] == request for entry in plan["not_scheduled"])
            if passed_over or request in (*plan["waiting_scheduled"], *plan["running_scheduled"]):
                found.append(event.step)
    return found


def pick(log: Log, request: str, question: str, iteration: int | None, said: str) -> Iteration:
    """The iteration that is asked about. Raises ValueError if it did not happen then."""
    found = moments(log, request, question)
    chosen = iteration if iteration is not None else (found[-1] if found else None)
    if chosen is None or chosen not in found:
        when = f"in iteration {iteration}" if iteration is not None else "in this run"
        others = f"; it was in {few(found)}" if found else ""
        raise ValueError(f"{request} was not {said} {when}{others}")
    return next(iterations(log, only={chosen}))


def few(steps: list[int]) -> str:
    shown = ", ".join(map(str, steps[:6]))
    return f"iteration {shown}" if len(steps) == 1 else f"iterations {shown}{' …' if len(steps) > 6 else ''}"


def answer_for(request: str, question: str, step: int, text: str, reason: str, numbers: dict[str, Any]) -> Answer:
    ours, vllm = _OURS.get(reason, "minivllm.core.scheduler:Scheduler.schedule"), _VLLM.get(reason, _SCHEDULE)
    hint = f"whatif --set {_KNOB[reason]}=…" if reason in _KNOB else f"map plan --iteration {step}"
    return Answer(request, question, step, text, reason, numbers, ours=ours, vllm=vllm, hint=hint)
