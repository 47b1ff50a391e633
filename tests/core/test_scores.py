"""Scores pass through the scheduler with the tokens that they belong to."""

from __future__ import annotations

import msgspec

from minivllm.core.scheduler_output import LogprobsLists
from tests.core.building import add, answer, make_request, make_scheduler, step


def test_scores_are_cut_with_the_tokens_after_a_stop_and_go_to_their_request_only() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a", 4, max_tokens=3), make_request("b", 4, max_tokens=20))
    step(scheduler)
    scheduler.update_draft_token_ids({"a": [51, 52, 53]})
    plan = scheduler.schedule()
    output = answer(scheduler, plan, {"a": [51, 52, 53, 9], "b": [7]})
    scores = LogprobsLists([[51], [52], [53], [9]], [[-0.1], [-0.2], [-0.3], [-0.4]], [1, 2, 3, 4])
    prompt = LogprobsLists([[5]], [[-1.0]], [1])
    output = msgspec.structs.replace(output, logprobs={"a": scores}, prompt_logprobs_dict={"b": prompt})
    told = {made.request_id: made for made in scheduler.update_from_output(plan, output).outputs}
    assert told["a"].new_token_ids == [51, 52]
    assert told["a"].new_logprobs == LogprobsLists([[51], [52]], [[-0.1], [-0.2]], [1, 2])
    assert told["a"].new_prompt_logprobs is None
    assert (told["b"].new_logprobs, told["b"].new_prompt_logprobs) == (None, prompt)
