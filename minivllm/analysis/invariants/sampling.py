"""The invariants of what is drawn and of what is counted: the likeliest token, and the sums of the prefix cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minivllm.analysis.invariants.registry import invariant
from minivllm.analysis.iteration import Iteration

# Logits are logged with 4 digits: closer ones are equal, and either token is right.
_EQUAL = 2e-4
# Whoever asks for one of these has its logits changed before a token is picked; the log has them as the model gave
# them.
_CHANGES_LOGITS = {
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": (),
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
}
_COUNTS = ("requests", "queries", "hits")


@invariant(
    "INV-31",
    "At temperature 0 a request gets the token that its own logits find likeliest.",
    reason="Where inputs are right and the output is not, rows were mixed up between the logits and the answer.",
    map="plan",
    bug="vLLM #49694: rows were shifted after drafts had been trimmed, and each request got its neighbour's",
    needs=("logits",),
)
def likeliest(it: Iteration) -> Iterator[str]:
    update = it.data("update")
    if update is None:  # planned ahead: its output is still to come
        return
    plan = it.run.plans.get(update["update_of"], {"spec_tokens": {}})
    for request, top in it.run.logits.get(update["update_of"], {}).items():
        tokens, drafts = update["sampled"].get(request, []), plan["spec_tokens"].get(request, ())
        if len(tokens) != 1 + len(drafts) or not _is_plainly_greedy(it.run.params.get(request)):
            continue  # with a draft that was wrong, the logged row is not the one that counted
        best = top[0][1]
        if all(value > best - _EQUAL for _, value in top):
            continue  # more tokens than the log has may be as likely
        if tokens[-1] not in [token for token, value in top if value > best - _EQUAL]:
            yield f"{request} sampled token {tokens[-1]}, its logits find {top[0][0]} likeliest"


def _is_plainly_greedy(params: dict[str, Any] | None) -> bool:
    if params is None or params.get("temperature", 1.0) != 0:
        return False
    return all(params.get(name, usual) in (usual, None, [], {}) for name, usual in _CHANGES_LOGITS.items())


@invariant(
    "INV-32",
    "The prefix cache counts each look-up of an admitted request once: what it knew, and what it found.",
    reason="The hit rate is what operators go by. A count that is wrong sends them after a fault that is none.",
    map="plan",
    bug="vLLM #25780: hit rates of 30 % on random prompts, because requests that came back were counted, too",
    needs=("schedule",),
)
def cache_counts(it: Iteration) -> Iterator[str]:
    plan = it.data("schedule")
    if plan is None:
        return
    counted = [request for request, _, _ in plan["prefix_cache"]]
    admitted = {*plan["new"], *plan["resumed"]}
    yield from (f"{request} is counted twice" for request in sorted({r for r in counted if counted.count(r) > 1}))
    yield from (f"{request} is counted, and did not enter" for request in counted if request not in admitted)
    if it.run.config["cache_config"]["enable_prefix_caching"]:
        asking = {r for r in admitted if not it.run.params.get(r, {}).get("skip_reading_prefix_cache")}
        known = {r for r in asking if r in it.run.params}
        yield from (f"{request} entered, and its look-up is not counted" for request in sorted(known - set(counted)))
    for request, queried, hit in plan["prefix_cache"]:
        if request in plan["num_tokens"] and queried != plan["num_tokens"][request]:
            yield f"{request} is counted with {queried} tokens, it has {plan['num_tokens'][request]}"
        if request in plan["num_computed_before"] and hit != plan["num_computed_before"][request]:
            yield f"{request} is counted with a hit of {hit}, it starts at {plan['num_computed_before'][request]}"
    yield from _sums(it, plan)


def _sums(it: Iteration, plan: dict[str, Any]) -> Iterator[str]:
    """The counts since the start are those before and what this plan adds; of requests that come back, apart."""
    told = plan.get("cache_stats")
    before = it.run.cache_stats
    if before is None and it.run.is_whole:
        before = {}
    if told is not None and before is not None:
        due = dict(before)
        for request, queried, hit in plan["prefix_cache"]:
            prefix = "preempted_" if request in plan["resumed"] else ""
            for name, amount in zip(_COUNTS, (1, queried, hit), strict=True):
                due[prefix + name] = due.get(prefix + name, 0) + amount
        for name, count in told.items():
            if count != due.get(name, 0):
                yield f"the prefix cache counts {count} {name}, the look-ups make {due.get(name, 0)}"
    if told is not None:
        it.run.cache_stats = told
    elif plan["prefix_cache"]:
        it.run.cache_stats = None  # a log without these counts
