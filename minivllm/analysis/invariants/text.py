"""The invariants of the frontend: text that agrees with the tokens, held back as long as needed, and no longer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minivllm.analysis.invariants.registry import invariant
from minivllm.analysis.iteration import Iteration

_BROKEN_CHARACTER = "\ufffd"


@invariant(
    "INV-27",
    "The pieces of text add up: what was sent, what is held back, and the tokens that they came from.",
    reason="A caller that joins the pieces must have the text of the whole, and ids that belong to it.",
    map="state",
    bug="vLLM #51641: text was held back for a stop string, its token ids were not: the two disagreed",
    needs=("output.text",),
)
def pieces(it: Iteration) -> Iterator[str]:
    sent = {request: (entry.sent, entry.held) for request, entry in it.before.frontend.items()}
    update = it.data("update") or {"emitted": {}}
    for event in it.all("output.text"):
        request, data = event.request or "?", event.data
        before, held = sent.get(request, (0, ""))
        if before + len(data["delta"]) != data["sent"]:
            yield f"{request} was sent {before} characters and {len(data['delta'])} more, {data['sent']} are counted"
        ids = [token for token, _ in data["tokens"]]
        is_all_told = data.get("sent_tokens") is None
        if is_all_told and data["held"] and _BROKEN_CHARACTER not in data["held"] and data["finish_reason"] is None:
            yield f"{request} has every token id, and {data['held']!r} of their text is held back"
        is_farewell = data["finish_reason"] == "abort" and not ids  # beside the output of this step, if there is one
        if ids != update["emitted"].get(request, []) and not is_farewell:
            yield f"{request} was told tokens {update['emitted'].get(request, [])}, its text is of {ids}"
        if _BROKEN_CHARACTER not in held and data["finish_reason"] is None:
            now = data["delta"] + data["held"]
            if not now.startswith(held):
                yield f"{request} held back {held!r}, and went on with {now[: len(held)]!r}"
            elif not _is_said_by(now[len(held) :], [text for _, text in data["tokens"]]):
                said = "".join(text for _, text in data["tokens"])
                yield f"{request} got the text {now[len(held) :]!r} for tokens that say {said!r}"
        sent[request] = (data["sent"], data["held"])
    texts = {event.request for event in it.all("output.text")}
    missing = [r for r in update["emitted"] if r not in texts and texts | it.before.frontend.keys()]
    yield from (f"{request} was told tokens, and no text came of them" for request in missing)


def _is_said_by(text: str, tokens: list[str]) -> bool:
    """Whether a text is that of some tokens, as far as single tokens can tell.

    Special tokens may be left out, spaces may belong to the place of a token, and parts of a character say nothing.
    """
    rest = "".join(text.split())
    if any(_BROKEN_CHARACTER in part for part in (text, *tokens)):
        # A token that is a part of a character can complete one, and that is all that it can say.
        return len(rest) <= sum(len("".join(token.split())) for token in tokens)
    for token in tokens:
        rest = rest.removeprefix("".join(token.split()))
    return not rest


@invariant(
    "INV-28",
    "No part of a stop string is sent, and nothing behind it.",
    reason="A caller that asked for an end there must not see where it would have gone on.",
    map="state",
    bug="vLLM #53066: a stop string was looked for where it did not count, and cut the answer",
    needs=("output.text",),
)
def stop_strings(it: Iteration) -> Iterator[str]:
    for event in it.all("output.text"):
        request, data = event.request or "", event.data
        params = it.run.params.get(request, {})
        stops = params.get("stop") or []
        stops = [stops] if isinstance(stops, str) else list(stops)
        text = it.run.texts.get(request, "") + data["delta"]
        it.run.texts[request] = text
        if request in it.run.ended_texts:
            yield f"{request} got text after its last output"
        if data["finish_reason"] is not None:
            it.run.ended_texts.add(request)
        start = _stops_count_from(it, request, data, params.get("min_tokens", 0))
        if stops and not params.get("include_stop_str_in_output"):
            found = [stop for stop in stops if text.find(stop, max(0, start - len(stop) + 1)) >= 0]
            yield from (f"{request} was sent the stop string {stop!r}" for stop in found)
        tokens, min_tokens = it.run.unstoppable[request][0], params.get("min_tokens", 0)
        if data["stop_reason"] in stops and tokens <= min_tokens:
            yield f"{request} ended at {data['stop_reason']!r} with {tokens} tokens, min_tokens is {min_tokens}"
        if data["stop_reason"] is not None and data["stop_reason"] not in (*stops, *params.get("stop_token_ids", ())):
            yield f"{request} ended at {data['stop_reason']!r}, which is none of its stops"


def _stops_count_from(it: Iteration, request: str, data: dict[str, Any], min_tokens: int) -> int:
    """Characters that came with the first min_tokens tokens: no stop string that ends there ends the request."""
    tokens, chars = it.run.unstoppable.get(request, (0, 0))
    tokens += len(data["tokens"])
    if tokens <= min_tokens:
        chars = data["sent"] + len(data["held"])
    it.run.unstoppable[request] = (tokens, chars)
    return chars


@invariant(
    "INV-29",
    "A caller hears of the end once, with the reason of whoever ended it.",
    reason="The core ends at tokens, the frontend at strings; the other side must be told, and nobody twice.",
    map="process",
    bug="vLLM #16863: outputs of one prompt's children overwrote each other, and an end was lost",
    needs=("output.text",),
)
def ends_are_told(it: Iteration) -> Iterator[str]:
    update = it.data("update") or {"emitted": {}, "finished": {}}
    told = {e.request: e.data["finish_reason"] for e in it.all("output.text") if e.data["finish_reason"] is not None}
    for request, (reason, _) in update["finished"].items():
        if request in {event.request for event in it.all("output.text")} and told.get(request) is None:
            yield f"{request} finished ({reason}), and its caller was not told"
        elif request in told and told[request] not in (reason, "stop"):
            yield f"{request} finished as {reason}, its caller was told {told[request]}"
    aborted = {i for event in it.all("requests.aborted") for i in event.data["ended"]}
    for request in told.keys() - update["finished"].keys() - aborted:
        yield f"{request} was told {told[request]}, and the core goes on"
