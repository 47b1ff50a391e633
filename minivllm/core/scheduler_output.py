"""Owns the messages between the scheduler and the worker: the plan of one step, and what came of it.

Integers and lists of integers only: no tensor, no Request, no KVCacheBlock ever crosses here. Block tables travel as
deltas, so the size of a decode step's plan does not depend on how long its requests are.

Upstream: vllm/v1/core/sched/output.py and vllm/v1/outputs.py. One KV group, so a block table is one list of ids where
vLLM has a tuple of lists.
"""

from __future__ import annotations

import msgspec

from minivllm.sampling_params import SamplingParams


class NewRequestData(msgspec.Struct, frozen=True):
    """All that the worker needs of a request that it sees for the first time.

    Attributes:
        req_id: Request id.
        prompt_token_ids: The whole prompt.
        sampling_params: How to sample it.
        block_ids: Its whole block table, blocks found in the prefix cache first.
        num_computed_tokens: Tokens whose KV is already in those blocks (the prefix hit).
    """

    req_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    block_ids: list[int]
    num_computed_tokens: int


class CachedRequestData(msgspec.Struct, frozen=True):
    """What changed of the requests that the worker knows already, as columns of equal length.

    Attributes:
        req_ids: Running requests in the scheduler's order, then resumed ones.
        resumed_req_ids: Those that come back from preemption: their `new_block_ids` *replace* the block table.
        all_token_ids: Prompt and output of each resumed request. (vLLM also sends them for requests that sat out
            the last step; here the worker keeps those.)
        new_block_ids: Blocks to *append* (to replace with, if resumed); None where nothing changed.
        num_computed_tokens: Tokens computed before this step.
        num_output_tokens: Output tokens so far, placeholders of steps in flight included.
    """

    req_ids: list[str]
    resumed_req_ids: set[str]
    all_token_ids: dict[str, list[int]]
    new_block_ids: list[list[int] | None]
    num_computed_tokens: list[int]
    num_output_tokens: list[int]


class SchedulerOutput(msgspec.Struct, frozen=True):
    """The plan of one step. Counters in it are the values *before* the step advances them.

    Attributes:
        scheduled_new_reqs: Requests that the worker sees for the first time.
        scheduled_cached_reqs: Deltas of the others that are scheduled.
        num_scheduled_tokens: Tokens of each scheduled request, drafts included; all above 0. Order: running
            requests, then admitted ones.
        total_num_scheduled_tokens: Their sum.
        scheduled_spec_decode_tokens: Draft tokens of the requests that have any.
        num_common_prefix_blocks: Leading blocks shared by every request that holds blocks.
        finished_req_ids: Finished since the previous plan: the worker forgets them.
        preempted_req_ids: Preempted by this step: the worker gives up their places.
    """

    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict[str, list[int]]
    num_common_prefix_blocks: int
    finished_req_ids: set[str]
    preempted_req_ids: set[str]


class LogprobsLists(msgspec.Struct, frozen=True, array_like=True):
    """Scores of a run of tokens of one request, as equally long lists: one entry a position.

    Attributes:
        logprob_token_ids: The token itself, then the most likely ones, likeliest first, or those that the request asks
            for in its order (it may be among them).
        logprobs: Their log probabilities (or logits, see `ModelConfig.logprobs_mode`).
        sampled_token_ranks: Place of the token itself among all tokens; 1 is the most likely.
    """

    logprob_token_ids: list[list[int]]
    logprobs: list[list[float]]
    sampled_token_ranks: list[int]

    def slice(self, start: int, end: int) -> LogprobsLists:
        """Only the positions from `start` to before `end`."""
        return LogprobsLists(
            self.logprob_token_ids[start:end], self.logprobs[start:end], self.sampled_token_ranks[start:end]
        )


class ModelRunnerOutput(msgspec.Struct, frozen=True):
    """What one executed plan produced.

    Attributes:
        req_ids: The scheduled requests, in the worker's batch order.
        req_id_to_index: Inverse of `req_ids`.
        sampled_token_ids: Per entry of `req_ids` the tokens sampled: empty for a prefill chunk that does not reach
            the end of the known tokens, one for a decode, up to 1 + drafts with accepted drafts.
        logprobs: Scores of the sampled tokens, by request, of those that ask; None if nobody does.
        prompt_logprobs_dict: Scores of a prompt's tokens from the second on, by request, with its first sampled
            token; None if nobody asks.
    """

    req_ids: list[str]
    req_id_to_index: dict[str, int]
    sampled_token_ids: list[list[int]]
    logprobs: dict[str, LogprobsLists] | None = None
    prompt_logprobs_dict: dict[str, LogprobsLists] | None = None
