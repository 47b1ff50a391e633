"""Owns what is read off a running engine: each probe turns one call into one event.

Probes read state by its names and never change it. They see the scheduler's answer the moment it is given, so an event
holds the state of that moment.
"""

from __future__ import annotations

from typing import Any

from minivllm.trace.events import EventLog
from minivllm.trace.install import Call, Probe

# How much of the queues an event carries. `why` needs the front, a picture needs a count.
NUM_FREE_HEAD = 12


def engine_probes(log: EventLog) -> dict[str, Probe]:
    """The probes of the control plane, by our symbol. They need no torch."""
    # With async scheduling an output is committed one step after it was planned: remember which plan is of which step.
    step_of_plan: dict[int, int] = {}
    return {
        "minivllm.core.scheduler:Scheduler.schedule": lambda call: _schedule(log, call, step_of_plan),
        "minivllm.core.scheduler:Scheduler.update_from_output": lambda call: _update(log, call, step_of_plan),
    }


def _schedule(log: EventLog, call: Call, step_of_plan: dict[int, int]) -> None:
    scheduler, plan = call.args[0], call.result
    step_of_plan[id(plan)] = log.step
    cached = plan.scheduled_cached_reqs
    new_ids = [new.req_id for new in plan.scheduled_new_reqs]
    before = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
    before.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    block_ids = {new.req_id: new.block_ids for new in plan.scheduled_new_reqs}
    block_ids.update({i: blocks for i, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True) if blocks})
    decisions = scheduler.last_decisions
    order = list(plan.num_scheduled_tokens)
    pool = scheduler.kv_cache_manager.block_pool
    data = {
        "scheduled": [[i, plan.num_scheduled_tokens[i]] for i in order],
        "total_scheduled": plan.total_num_scheduled_tokens,
        "new": new_ids,
        "resumed": [i for i in cached.req_ids if i in cached.resumed_req_ids],
        "running": [i for i in cached.req_ids if i not in cached.resumed_req_ids],
        "preempted": [victim for victim, _, _ in decisions.preempted],
        "finished_since_last": sorted(plan.finished_req_ids),
        "block_ids": {i: list(block_ids[i]) for i in order if block_ids.get(i)},
        "num_computed_before": {i: before[i] for i in order},
        "num_computed_after": {i: scheduler.requests[i].num_computed_tokens for i in order},
        "num_tokens": {i: scheduler.requests[i].num_tokens for i in order},
        "prefix_cache": [list(lookup) for lookup in decisions.prefix_lookups],
        "num_common_prefix_blocks": plan.num_common_prefix_blocks,
        "free_blocks_scheduled": pool.get_num_free_blocks(),
        "waiting_scheduled": [r.request_id for r in scheduler.waiting],
        "running_scheduled": [r.request_id for r in scheduler.running],
        "spec_tokens": {i: list(tokens) for i, tokens in plan.scheduled_spec_decode_tokens.items()},
        "budget": decisions.budget,
        "max_num_seqs": scheduler.config.max_num_seqs,
        "block_size": scheduler.kv_cache_manager.block_size,
        "not_scheduled": [_decision(d) for d in decisions.not_scheduled],
        "cut": [_decision(d) for d in decisions.cut],
        "preemptions": [list(preemption) for preemption in decisions.preempted],
        "stop": _decision(decisions.stop) if decisions.stop else None,
    }
    _add(log, call, "engine_core", "schedule", data)


def _decision(decision: Any) -> dict[str, Any]:
    return {"request": decision.request_id, "reason": str(decision.reason), "numbers": decision.numbers}


def _update(log: EventLog, call: Call, step_of_plan: dict[int, int]) -> None:
    plan, output = call.args[1:3]
    outputs = call.result.outputs
    data = {
        "update_of": step_of_plan.pop(id(plan)),
        "sampled": {i: list(output.sampled_token_ids[k]) for i, k in output.req_id_to_index.items()},
        "emitted": {o.request_id: list(o.new_token_ids) for o in outputs},
        "finished": {
            o.request_id: [str(o.finish_reason), o.stop_reason] for o in outputs if o.finish_reason is not None
        },
    }
    _add(log, call, "engine_core", "update", data)


def queue_state(scheduler: Any) -> dict[str, Any]:
    """The queues and the pool, as they stand now."""
    pool = scheduler.kv_cache_manager.block_pool
    free_head = [block.block_id for block, _ in zip(pool.free_block_queue, range(NUM_FREE_HEAD), strict=False)]
    return {
        "waiting": [r.request_id for r in scheduler.waiting],
        "running_after": [r.request_id for r in scheduler.running],
        "skipped_waiting": [r.request_id for r in scheduler.skipped_waiting],
        "free_blocks": pool.get_num_free_blocks(),
        "free_head": free_head,
        "cached_hashes": len(pool.cached_block_hash_to_block),
        "num_preemptions": {i: r.num_preemptions for i, r in scheduler.requests.items() if r.num_preemptions},
    }


def worker_probes(log: EventLog) -> dict[str, Probe]:
    """The probes of the data plane. Installing them imports torch."""
    return {"minivllm.worker.gpu_model_runner:GPUModelRunner.execute_model": lambda call: _batch(log, call)}


def _batch(log: EventLog, call: Call) -> None:
    runner, plan = call.args[:2]
    if plan.total_num_scheduled_tokens > 0:
        facts = runner.last_batch.describe()
        data = {name: getattr(facts, name) for name in facts.__slots__}
        _add(log, call, "worker", "prepare_inputs", data)


def frontend_probes(log: EventLog) -> dict[str, Probe]:
    """The probes of the frontend."""
    symbol = "minivllm.engine.output_processor:OutputProcessor.process_outputs"
    text_so_far: dict[str, int] = {}
    return {symbol: lambda call: _text(log, call, text_so_far)}


def _text(log: EventLog, call: Call, text_so_far: dict[str, int]) -> None:
    tokenizer = call.args[0].tokenizer
    new_tokens = {output.request_id: output.new_token_ids for output in call.args[1]}
    for output in call.result.request_outputs:
        completion = output.outputs[0]
        start = text_so_far.get(output.request_id, 0)
        text_so_far[output.request_id] = len(completion.text)
        tokens = [[i, tokenizer.token_text(i) if tokenizer else ""] for i in new_tokens[output.request_id]]
        data = {"delta": completion.text[start:], "tokens": tokens, "finish_reason": completion.finish_reason}
        log.add(
            "frontend", "output.text", request=output.request_id, data=data, src=call.entry.ours, ref=call.entry.vllm
        )


def _add(log: EventLog, call: Call, process: str, kind: str, data: dict[str, Any]) -> None:
    log.add(
        process,
        kind,
        data=data,
        src=call.entry.ours,
        ref=call.entry.vllm,
        wall_ns=call.end_ns,
        dur_ns=call.end_ns - call.start_ns,
    )
