"""Owns the sentences in English. Every key has its twin in words_zh.py, with the same values in it."""

from __future__ import annotations

TEMPLATES = {
    # Marks.
    "comma": ", ",
    "semicolon": "; ",
    "full_stop": ".",
    "and_so_on": ", ",
    # The life of a request.
    "arrived": "{request} arrived with {count:token|tokens}.",
    "arrived_child": "{request} arrived with {count:token|tokens}: it is answer {number} of {parent}.",
    "refused": "{request} was refused: {message}",
    "aborted_before": "{request}'s caller left before this iteration was planned{freed}.",
    "aborted_mid": "{request}'s caller left while the model was running: the token made for it is thrown away{freed}.",
    "aborted_frontend": "{request} was ended by the frontend{freed}.",
    "stop_string": (
        "{request}'s text has the stop string {stop}: the frontend cut it there and told the core to end the request"
        "{freed}."
    ),
    "finished_length": "{request} finished: it has its {count:token|tokens} (max_tokens){freed}.",
    "finished_model_length": "{request} finished: it is as long as the model allows{freed}.",
    "finished_eos": "{request} finished: it sampled the end-of-sequence token{freed}.",
    "finished_stop_token": "{request} finished: it sampled the stop token {stop}{freed}.",
    "finished_repetition": "{request} finished: its output only repeats itself{freed}.",
    "finished_other": "{request} finished: {reason}{freed}.",
    "freed": "; its {count:block is|blocks are} free again",
    "freed_cached": "; its {count:block is|blocks are} free again, {cached} still known to the prefix cache",
    "freed_shared": "; it gave back {count:block|blocks}, {shared} of them still used by others",
    "alike": "… and {count} more in the same way: {names}.",
    "idle": "Nobody had anything to do.",
    "only_told": "Nothing is left to compute; the worker is told that {names} finished.",
    # What was planned.
    "preempted": "{victim} was preempted for {by}: {why}; {lost:computed token is|computed tokens are} lost.",
    "preempted_self": "{victim} was preempted for itself: {why}; {lost:computed token is|computed tokens are} lost.",
    "preempted_why_unknown": "blocks ran out",
    "waits": "{request} waits: {why}.",
    "behind": "behind {request}, where the loop stopped",
    "decoded": "{request} decoded one token: {known} known, {before} computed before",
    "decoded_drafts": "{request} decoded one token and {drafts:draft|drafts}: {known} known, {before} computed before",
    "on_its_way": "its newest token is not known here yet, a placeholder stands for it",
    "went_on": "{request} went on: {now:token|tokens} computed now, {before} before",
    "entered": "{request} entered: {now:token|tokens} computed now",
    "entered_part": "{request} entered: {now:token|tokens} computed now of {known}",
    "entered_hit": (
        "{request} entered: {cached} of its {known} prompt tokens were in the prefix cache, "
        "{now:token|tokens} computed now"
    ),
    "came_back": "{request} came back: {now:token|tokens} computed now",
    "came_back_part": "{request} came back: {now:token|tokens} computed now of {known}",
    "came_back_hit": (
        "{request} came back: {cached} of its {known} tokens were in the prefix cache, {now:token|tokens} computed now"
    ),
    "limit": " ({limit})",
    "limit_long_prefill_threshold": "its chunk limit",
    "limit_token_budget": "what the budget had left",
    "limit_max_model_len": "up to the model's length",
    "limit_output_in_flight": "the rest is still on its way",
    "to_go": "{to_go} to go",
    "sampled": "it sampled {tokens}",
    "sampled_drafts": "it sampled {tokens}: {right} of {drafts:draft|drafts} accepted",
    "sampled_later": "its token {tokens} is known in the next iteration",
    "thrown_away": "its token is thrown away, since {request} ended before it came",
    # The prefix cache and the blocks.
    "miss_after_hit": "{request}'s next block (from token {token}) was not found: {why}.",
    "miss_first": "{request} found nothing in the prefix cache, which knows whole blocks of {size} tokens: {why}.",
    "never_computed": "nobody has computed it before",
    "evicted": "it was there once, and its place was given to others",
    "differs": "{other} begins alike, but differs at token {token}",
    "differs_key": "{other} has the same tokens under another salt or adapter",
    "not_full": "the rest fills no block",
    "last_token": "the last token is always computed, for its logits, and so is its block",
    "caching_off": "prefix caching is off",
    "not_asked": "it asked to be computed anew",
    "shared": "{request} uses {blocks:block|blocks} {ids} together with others.",
    "evicted_reused": "{request} got {ids}: what the prefix cache had there is gone.",
    "evicted_taken_back": "{ids} will not be computed after all: the prefix cache forgets what it was to hold.",
    "cache_reset": "The prefix cache was emptied.",
    # The worker and the frontend.
    "moved": "The worker moved {request} from row {old} to row {new}.",
    "held_stop": (
        "{request}'s last {count:character is|characters are} held back, {text}: a stop string may begin there."
    ),
    "held_character": "{request}'s text is held back: its last tokens are a part of a character.",
    "released": "{request}'s character is whole: its caller gets {text}.",
    # Reasons, as clauses.
    "token_budget_spent": "the token budget is spent ({used} of {budget})",
    "token_budget_left": "the token budget had {limit:token|tokens} left, and it owed {asked}",
    "max_num_seqs": "{running} of {max_num_seqs} places are taken (max_num_seqs)",
    "long_prefill_threshold": "its chunk limit is {limit:token|tokens} a step, and it owed {asked}",
    "chunked_prefill_off": "chunked prefill is off: it needs {asked:token|tokens} at once, {left} left",
    "lora_limit": "{loras} of {max_loras} adapters are in this step already",
    "max_model_len": "the model's length ({limit}) leaves it no position to compute",
    "no_free_blocks": "needs {asked:block|blocks}, {free} free",
    "watermark": ", {watermark} of them kept as the watermark",
    "reserved": ", {reserved} of them promised to others",
    "full_sequence_does_not_fit": "its whole sequence must fit: it needs {asked:block|blocks}, {free} free",
    "preempted_blocks": "{asked:block was|blocks were} needed, {free} free",
    "preempted_this_step": "nobody enters in a step that preempted ({preempted})",
    "output_in_flight": "its last tokens are still on their way (async scheduling)",
    "stale_output_in_flight": "output from before its preemption is still on its way ({in_flight:token|tokens})",
    "waiting_for_grammar": "its grammar is still being compiled",
    "waiting_for_remote_kvs": "its KV is still being loaded",
    "waiting_for_streaming_req": "its next input has not come yet",
    "paused_new": "the engine is paused for new requests",
    "paused_all": "the engine is paused",
    "queue_empty": "nobody is waiting",
    "all_waiting_blocked": "everyone who waits is waiting for something else",
}
