"""Owns the sentences of explanations in English. Every key has its twin in words_explain_zh.py."""

from __future__ import annotations

TEMPLATES = {
    "comma": ", ",
    "full_stop": ".",
    "and_so_on": ", ",
    "and": " and ",
    # Column headings and titles.
    "request": "request",
    "iteration": "iteration",
    "tokens": "tokens",
    "budget": "budget",
    "what_for": "what for",
    "what": "what",
    "bytes": "bytes",
    "how": "how",
    "blocks": "blocks",
    "new": "new",
    "when": "when",
    # Budget.
    "spent": "Iteration {step} spent {used} of {budget} tokens on {count:request|requests}.",
    "in_order": "in the order of the scheduler",
    "left": "{count} left",
    "kind_new": "new",
    "kind_resumed": "resumed",
    "kind_running": "running",
    "what_drafts": "{kind}: {before} to {after}, {drafts:draft|drafts} behind its {known} known",
    "what_known": "{kind}: {before} to {after} of {known}",
    "what_ahead": "{kind}: {before} to {after}, planned ahead",
    "bounds_budget": "max_num_batched_tokens ({limit}) bounds the tokens of one iteration, over all requests.",
    "bounds_seqs": "max_num_seqs ({limit}) bounds how many requests share them: {count} here.",
    "bounds_length": "max_model_len ({limit}) bounds one request over its whole life, prompt and output.",
    "longest_in_chunks": (
        "The longest prompt of this run has {longest} tokens, and one request gets at most {most} an iteration: it "
        "comes in chunks."
    ),
    "longest_in_one": (
        "The longest prompt of this run has {longest} tokens, and one request gets at most {most} an iteration: it can "
        "come in one piece."
    ),
    "got_less": "{request} got less than it owed: {why}.",
    "got_none": "{request} got none: {why}.",
    "in_chunks": (
        "The prompt of {request} has {prompt} tokens: {hit} were cached, the rest came in {count:chunk|chunks}, in "
        "iterations {first} to {last}."
    ),
    "in_one_chunk": (
        "The prompt of {request} has {prompt} tokens: {hit} were cached, the rest came in {count:chunk|chunks}."
    ),
    "chunks": "chunks",
    "of_the_prompt": "of the prompt",
    "not_computed": "{count} tokens of it were not computed before the log ended.",
    "only_has_to_fit": (
        "A prompt only has to fit max_model_len ({longest}); max_num_batched_tokens ({budget}) bounds what one "
        "iteration computes of it. Only the last chunk samples a token."
    ),
    "for_others": "{budget} - {others} for others",
    "from_to": "{before} to {after} of {prompt}",
    # Slot.
    "slot": "Position {pos} of {request} is in slot {slot}: offset {offset} of block #{block}. It {how}.",
    "was_written": "was written in iteration {step}",
    "was_cached": ("was in the prefix cache: {request} took over its block in iteration {step} and computed nothing"),
    "positions_of_block": (
        "Positions {first} to {last} of {request} are block #{block}. Two positions of one request differ in the block "
        "or in the offset, so their slots differ."
    ),
    "one_owner": (
        "A block that is written to has one owner. It is shared only when it is full, by requests whose tokens up to "
        "its end are the same, and nobody writes to it any more."
    ),
    "no_slot_yet": (
        "Position {pos} of {request} has no slot yet in iteration {until}: {done} tokens are computed by then. {later}"
    ),
    "computed_later": "It is computed in iteration {steps}.",
    "computed_often": "It is computed in iterations {steps}.",
    "never_a_slot": (
        "Position {pos} of {request} never gets a slot: it is its last token, and nothing comes after that."
    ),
    "no_batch": "The log holds no batch of that iteration (prepare_inputs) to compare with.",
    "to_slots": "In iteration {step}, {count:token|tokens} went to {slots} different slots.",
    "to_one_slot": "In iteration {step}, {count:token|tokens} went to one slot.",
    "contradiction": (
        "The worker's slot_mapping says {logged}: table and mapping contradict each other (minivllm check)."
    ),
    # Memory.
    "memory": ("A KV block takes {block}, and there are {blocks} ({reason}): {all} with room for {tokens} tokens."),
    "memory_title": "memory",
    "one_token": "one token",
    "one_block": "one block",
    "kv_cache": "KV cache",
    "one_long_request": "one request of max_model_len",
    "weights": "weights",
    "factors": "2 x {layers} x {heads} x {head_dim} x {number} bytes",
    "so_many_tokens": "{count} tokens",
    "with_null_block": "{count} blocks, one of them the null block",
    "tokens_and_blocks": "{tokens} tokens, {blocks} blocks",
    "two_is_for": (
        "2 is for keys and values. Query heads cost nothing here: several of them share one KV head ({queries} on "
        "{heads})."
    ),
    "null_block": "Block 0 is the null block: block tables are padded with it, and it is never anybody's.",
    "memory_contradiction": (
        "The worker reported {block} bytes a block and {all} for all: shape and report contradict each other."
    ),
    # Alloc.
    "began": (
        "{request} began with {first:block|blocks} for {tokens} tokens in iteration {step}, and held {peak} at most "
        "(iteration {peak_step})."
    ),
    "changes": "iterations in which its blocks changed",
    "from_cache": "from the cache",
    "given_back": "given back",
    "held": "held",
    "free_after": "free after",
    "one_by_one": (
        "Blocks come one by one as tokens come. For its prompt and max_tokens ({prompt} + {max_tokens}) it would have "
        "been {upfront} at once; nobody reserves them."
    ),
    "for_drafts": "{more} more than that are for drafts (num_lookahead_tokens is {drafts}).",
    "alloc_contradiction": (
        "The log has {held} blocks there: block events and plan contradict each other (minivllm check)."
    ),
    "never_scheduled": "never scheduled",
    "given_back_in": "given back in iteration {steps}",
    "still_held": "still held",
    "taken": (
        "{count:block|blocks} were taken from the free queue and {shared} from the prefix cache, one by one as tokens "
        "came. {more}"
    ),
    "requests": "requests",
    "first": "first",
    "most": "most",
    "usable": ("{usable} usable blocks hold {fit} requests of max_model_len ({longest} tokens, {each} blocks each)."),
    "more_may_run": (
        "{ran} ran in one iteration at most: requests that are shorter, or still growing, need fewer blocks, so more "
        "may run than the number at start-up says. If the pool runs out, somebody is preempted."
    ),
    # Hit rate.
    "hit_rate": (
        "{hits} of {queries} tokens{of} were found in the prefix cache: {percent} %, in {count:look-up|look-ups}."
    ),
    "of_request": " of {request}",
    "lookups": "look-ups",
    "found": "found",
    "and_then": "and then",
    "again": "{request}, again",
    "next_block": "block {index}: {why}",
    "never_computed": "never computed",
    "evicted": "evicted",
    "differs": "differs",
    "not_full": "not full",
    "last_token": "last token",
    "caching_off": "caching off",
    "not_asked": "not asked",
    "whole_blocks": (
        "Only whole blocks are cached: a hit is a multiple of {size} tokens, and the last token is always computed."
    ),
    "queries_are": (
        "The queries of an admission are all tokens that the request has then, not only those that a block could hold."
    ),
    "not_among": (
        "Not among these: {count:look-up|look-ups} with {hits} hits in {queries} tokens of preempted requests that "
        "came back. They find what they computed themselves, so they are counted apart "
        "(PrefixCacheStats.preempted_queries)."
    ),
    "of_everything": ("A count of everything would say {hits} of {queries} tokens: hits without a common prefix."),
    "each_counts": "Every look-up in the log led to an admission, and each counts once.",
    "no_admission": (
        "The log has {count:look-up|look-ups} more that led to no admission, and do not count: a blocked request looks "
        "up again in every iteration (only a new answer is logged)."
    ),
    # Weights.
    "became": "{count:tensor|tensors} of {model} became {size} of parameters in {dtype}.",
    "tensors": "tensors",
    "in_checkpoint": "in the checkpoint",
    "stored": "stored",
    "our_parameter": "our parameter",
    "layers": "layers",
    "bytes_by_part": "bytes by part",
    "part": "part",
    "share": "share",
    "weights_contradiction": "The loader counted {count} bytes: header and rows contradict each other.",
    "fused": ("{ours} is {names} one below the other: one large product is faster than {count} small ones."),
    "tied": ("The head is tied: logits are computed with the embedding's own rows, and lm_head.weight takes nothing."),
    "own_head": "The head has rows of its own (lm_head.weight).",
    # Ledger.
    "lived": (
        "{request} lived for {life:iteration|iterations}: {queue} in the queue, {prefill} until its first token, "
        "{decode} after it."
    ),
    "ledger_no_clocks": "The log has no clocks: time is counted in iterations.",
    "ledger_no_messages": "What it cost in messages is not known: the log holds none (message).",
    "ledger_no_phases": "What it cost the processor is not known: the log holds no phases (span).",
    "bears_its_share": "Of a phase it bears its share: of forward by its tokens, else one part of all requests.",
    "account": "account",
    "amount": "amount",
    "messages": "{count:message|messages}, {bytes} bytes",
    "back_in": "{count} in iteration {step}",
    "not_yet": "not yet",
    "row_arrived": "arrived",
    "row_first_scheduled": "first scheduled",
    "row_first_token": "first token",
    "row_last_token": "last token",
    "row_queue_iterations": "queue iterations",
    "row_prefill_iterations": "prefill iterations",
    "row_decode_iterations": "decode iterations",
    "row_life_iterations": "life iterations",
    "row_ttft_iterations": "ttft iterations",
    "row_itl_iterations": "itl iterations",
    "row_queue_ms": "queue",
    "row_prefill_ms": "prefill",
    "row_decode_ms": "decode",
    "row_ttft_ms": "ttft",
    "row_itl_ms": "itl",
    "row_e2e_ms": "e2e",
    "row_peak_blocks": "peak blocks",
    "row_peak_bytes": "peak bytes",
    "row_block_iterations": "block iterations",
    "row_shared_blocks": "shared blocks",
    "row_allocated_blocks": "allocated blocks",
    "row_boundary_1": "frontend - engine core",
    "row_boundary_2": "engine core - worker",
    "row_boundary_3": "worker - device",
    "row_prompt_tokens": "prompt tokens",
    "row_cached_tokens": "cached tokens",
    "row_cached_again": "cached again",
    "row_computed_tokens": "computed tokens",
    "row_recomputed_tokens": "recomputed tokens",
    "row_sampled_tokens": "sampled tokens",
    "row_preemptions": "preemptions",
    "row_finish_reason": "finish reason",
    "row_stop_reason": "stop reason",
    "row_characters_sent": "characters sent",
    "row_most_held": "most held",
    "row_total_ms": "total",
    "title_time": "time",
    "title_memory": "memory",
    "title_communication": "communication",
    "title_cpu": "cpu",
    "title_request": "request",
    # Around the explanation.
    "here": "here",
    "next": "next: {command}",
    "more_rows": "and {count} more (--json has all)",
}
