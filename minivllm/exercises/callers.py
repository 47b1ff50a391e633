"""Owns runs whose callers are no ideal ones: one who fetches late, one who leaves. What they got joins the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from minivllm.engine.output_collector import RequestOutputCollector
from minivllm.engine.output_processor import OutputProcessor, OutputProcessorOutput
from minivllm.exercises.replacing import replaced
from minivllm.exercises.runs import Run, run_with
from minivllm.outputs import RequestOutput
from minivllm.scenarios.definition import Scenario
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

_PROCESSOR = "minivllm.engine.output_processor:OutputProcessor"


def run_with_late_caller(scenario: Scenario, path: Path | None, every: int) -> Run:
    """A run whose caller has a mailbox, as with AsyncLLM, and looks into it only in every few iterations.

    Returns:
        The run. Its log tells what the caller fetched: at "fetched" of an event `output.text` each.
    """
    mailboxes: list[RequestOutputCollector] = []
    fetched: list[dict[int, str]] = []
    add, process = OutputProcessor.add_request, OutputProcessor.process_outputs
    count = 0

    def add_request(self: Any, request: Any, prompt: Any, external_req_id: Any = None, queue: Any = None) -> Any:
        mailboxes.append(RequestOutputCollector(request.sampling_params.output_kind, request.request_id))
        return add(self, request, prompt, external_req_id, mailboxes[-1])

    def process_outputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        processed = process(self, *args, **kwargs)
        count += 1
        if count % every == 0:
            fetched.extend(_contents(mailboxes))
        return processed

    with replaced({f"{_PROCESSOR}.add_request": add_request, f"{_PROCESSOR}.process_outputs": process_outputs}):
        run = run_with(scenario, {}, path)
        fetched.extend(_contents(mailboxes))
    return _told(run, [{"fetched": each} for each in fetched])


def fetched_of(run: Run) -> dict[int, str]:
    """The text of each completion as its caller has it at the end: what came last, by index."""
    texts = {}
    for event in run.log.events:
        for index, text in event.data.get("fetched", {}).items() if event.kind == "output.text" else ():
            texts[index] = text
    return texts


def run_with_leaving_caller(scenario: Scenario, path: Path | None, request_id: str, step: int) -> Run:
    """A run whose caller gives up behind a step, by the id that it gave.

    Returns:
        The run. Its log tells what the frontend still keeps at the end: at "left" of an event `output.text`.
    """
    process = OutputProcessor.process_outputs
    desks: list[OutputProcessor] = []
    count = 0

    def process_outputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        desks[:] = [self]
        processed = process(self, *args, **kwargs)
        count += 1
        gone = self.abort_requests([request_id]) if count == step else []
        return OutputProcessorOutput(processed.request_outputs, [*processed.reqs_to_abort, *gone])

    with replaced({f"{_PROCESSOR}.process_outputs": process_outputs}):
        run = run_with(scenario, {}, path)
    return _told(run, [{"left": _census(desk)} for desk in desks])


def left_of(run: Run) -> dict[str, list[str]]:
    """What the frontend keeps when everybody is done or gone."""
    return next((event.data["left"] for event in run.log.events if "left" in event.data), {})


def _census(desk: OutputProcessor) -> dict[str, list[str]]:
    kept: dict[str, Callable[[], Any]] = {
        "request_states": lambda: desk.request_states,
        "parent_requests": lambda: desk.parent_requests,
        "external_req_ids": lambda: desk.external_req_ids,
    }
    return {name: sorted(held()) for name, held in kept.items()}


def _contents(mailboxes: list[RequestOutputCollector]) -> list[dict[int, str]]:
    outputs: list[RequestOutput] = [output for box in mailboxes if (output := box.get_nowait()) is not None]
    return [{completion.index: completion.text for completion in output.outputs} for output in outputs]


def _told(run: Run, facts: list[dict[str, Any]]) -> Run:
    last = run.log.events[-1]
    told = [Event(last.seq + 1 + i, last.step, "frontend", "output.text", data=data) for i, data in enumerate(facts)]
    return replace(run, log=Log(run.log.header, [*run.log.events, *told], path=run.log.path))
