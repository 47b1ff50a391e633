"""The invariants of the log itself: causes before effects, and one plan, one batch, one output after the other."""

from __future__ import annotations

from collections.abc import Iterator

from minivllm.analysis.invariants.registry import invariant
from minivllm.analysis.iteration import Iteration

_ONCE = ("schedule", "prepare_inputs", "worker.state", "update", "step.end", "rows", "step.idle")
_IN_STEP = ("schedule", "rows", "prepare_inputs", "worker.state")


@invariant(
    "INV-30",
    "Causes come before effects: arrival, plan, batch, output, text, in this order and each once.",
    reason="A batch before its plan, or an output before its batch, was read from old state.",
    map="process",
    bug="vLLM #50835: core and worker waited for each other for ever",
    needs=("step.end",),
)
def causes(it: Iteration) -> Iterator[str]:
    places: dict[str, int] = {}
    for place, event in enumerate(it.events):
        if event.cause is not None and event.cause >= event.seq:
            yield f"event {event.seq} ({event.kind}) is caused by event {event.cause}, which comes later"
        if event.kind in _ONCE:
            if event.kind in places:
                yield f"{event.kind} comes twice"
            places[event.kind] = place
    for event, why in it.contradictions:
        yield f"event {event.seq} ({event.kind}) does not fit what was before it: {why}"
    present = [kind for kind in _IN_STEP if kind in places]
    if [places[kind] for kind in present] != sorted(places[kind] for kind in present):
        yield f"the order was not {', '.join(present)}"
    plan, update = it.data("schedule"), it.data("update")
    if "prepare_inputs" in places and (plan is None or not plan["scheduled"]):
        yield "a batch was prepared without a plan"
    if plan and plan["scheduled"] and it.run.has_worker:
        yield from (f"the plan has no {kind}" for kind in ("prepare_inputs", "worker.state") if kind not in places)
    if plan is not None and update is None and not it.run.scheduler_config["async_scheduling"]:
        yield "the plan brought no output"
    if update is not None and update["update_of"] > it.step:
        yield f"the output is of iteration {update['update_of']}, which is still to come"
    queued = [e.request or "" for e in it.all("request.queued")]
    known = set(queued) & it.before.requests.keys()
    yield from (f"{request} was queued twice" for request in sorted(known | {r for r in queued if queued.count(r) > 1}))
    if it.run.is_whole:
        arrived = {event.request for event in it.all("request.arrived")} | it.before.requests.keys()
        strangers = [e.request for e in it.all("request.queued", "request.refused") if e.request not in arrived]
        yield from (f"{request} was queued before it arrived" for request in strangers)
    again = [e.request for e in it.all("request.arrived") if e.request in it.before.requests]
    yield from (f"{request} arrived twice" for request in again)
