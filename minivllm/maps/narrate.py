"""Owns the sentences above a map: one for each thing that happened in an iteration, in the order in which it did."""

from __future__ import annotations

from typing import Any

# Why a request got fewer tokens than it owed, in few words.
_LIMITS = {
    "long_prefill_threshold": "its chunk limit",
    "token_budget": "what the budget had left",
    "max_model_len": "up to the model's length",
    "output_in_flight": "the rest is still on its way",
}


def narrate(iteration: dict[str, Any], requests: dict[str, dict[str, Any]]) -> list[str]:
    """Tell an iteration of the plan map in plain sentences.

    Args:
        iteration: One entry of `plan_map`'s iterations.
        requests: By id, what is known of each request.
    """
    sentences = [_arrived(requests[i]) for i in iteration["arrived"]]
    sentences += [f"{i} was refused: {message}" for i, message in iteration["refused"]]
    sentences += [f"{i} was aborted by its caller." for i in iteration["aborted"]]
    if iteration["idle"]:
        return [*sentences, "Nobody had anything to do."]
    lost = {i: (lost, by) for i, lost, by in iteration["preemptions"]}
    reasons = {entry["request"]: entry for entry in iteration["not_scheduled"]}
    for victim, (num_lost, by) in lost.items():
        who = "itself" if by == victim else by
        why = reasons[victim]["detail"] if victim in reasons else "blocks ran out"
        sentences.append(f"{victim} was preempted for {who}: {why}; {num_lost} computed tokens are lost.")
    if not iteration["scheduled"] and iteration["told_finished"]:
        names = ", ".join(iteration["told_finished"])
        sentences.append(f"Nothing is left to compute; the worker is told that {names} finished.")
    for entry in iteration["scheduled"]:
        sentences.append(_scheduled(entry, iteration, requests[entry["request"]]))
    for entry in iteration["not_scheduled"]:
        if entry["request"] not in lost:
            sentences.append(f"{entry['request']} waits: {entry['detail']}.")
    for entry in iteration["finished"]:
        stop = f" ({entry['stop_reason']})" if entry["stop_reason"] is not None else ""
        sentences.append(f"{entry['request']} finished: {entry['reason']}{stop}.")
    return sentences


def _arrived(request: dict[str, Any]) -> str:
    return f"{request['request']} arrived with {_tokens(request['num_prompt_tokens'])}."


def _scheduled(entry: dict[str, Any], iteration: dict[str, Any], request: dict[str, Any]) -> str:
    i, now, before, known = (entry[k] for k in ("request", "num_tokens", "num_computed_before", "num_tokens_known"))
    to_go = known - before - now
    if entry["kind"] == "running" and now == 1 + entry["num_drafts"] and before >= request["num_prompt_tokens"]:
        drafts = f" and {entry['num_drafts']} drafts" if entry["num_drafts"] else ""
        text = f"{i} decoded one token{drafts}: {known} known, {before} computed before"
        if before >= known:
            text += ", the newest token still on its way"
    elif entry["kind"] == "running":
        text = f"{i} went on: {_tokens(now)} computed now, {before} before"
    else:
        verb = "entered" if entry["kind"] == "new" else "came back"
        what = "prompt tokens" if entry["kind"] == "new" else "tokens"
        hit = f"{entry['num_cached']} of its {known} {what} were in the prefix cache, " if entry["num_cached"] else ""
        text = f"{i} {verb}: {hit}{_tokens(now)} computed now"
        if not hit:
            text += f" of {known}" if to_go > 0 else ""
    cut = next((c for c in iteration["cut"] if c["request"] == i), None)
    if cut is not None:
        text += f" ({_LIMITS[cut['reason']]})"
    if to_go > 0:
        text += f", {to_go} to go"
    if sampled := iteration["sampled"].get(i):
        texts = iteration["token_texts"].get(i)
        shown = " ".join(f'"{t}"' for t in texts) if texts else " ".join(map(str, sampled))
        text += f"; it sampled {shown}"
    return text + "."


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"
