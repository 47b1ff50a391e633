"""A request that is planned and then preempted in the same step never wrote the blocks that it had published."""

from __future__ import annotations

from pathlib import Path

from minivllm import LLM, SamplingParams
from minivllm.core.integrity import check_integrity

LONG_PROMPT = [(7 * i) % 500 + 1 for i in range(50)]


def test_nobody_hits_blocks_that_a_preempted_request_published_and_never_wrote(tiny_model: Path) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    alone = LLM(model=str(tiny_model), max_model_len=64, block_size=4, num_gpu_blocks_override=40)
    [expected] = alone.generate({"prompt_token_ids": LONG_PROMPT}, greedy)

    # "low" goes first in the running list and takes the last free blocks for its next chunk; then "high" needs one, and
    # is done soon, so that most of those blocks are still there when "low" comes back.
    llm = LLM(
        model=str(tiny_model),
        max_model_len=64,
        block_size=4,
        num_gpu_blocks_override=15,
        scheduling_policy="priority",
        scheduler_reserve_full_isl=False,
        long_prefill_token_threshold=16,
        max_num_seqs=2,
    )
    engine = llm.llm_engine
    scheduler = engine.engine_core.scheduler
    engine.add_request("low", {"prompt_token_ids": LONG_PROMPT}, greedy, priority=1)
    engine.step()
    high = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    engine.add_request("high", {"prompt_token_ids": [3] * 8}, high, priority=0)
    outputs = {}
    preempted_after_planning = False
    while engine.has_unfinished_requests():
        running_before = [request.request_id for request in scheduler.running]
        outputs.update({output.request_id: output for output in engine.step()})
        check_integrity(scheduler)
        for victim, _, needed_by in scheduler.last_decisions.preempted:
            preempted_after_planning |= running_before.index(victim) < running_before.index(needed_by)
    assert preempted_after_planning, "the case is meant to preempt a request that is in the plan already"
    [low] = [output for request_id, output in outputs.items() if request_id.startswith("low")]
    assert low.outputs[0].token_ids == expected.outputs[0].token_ids
