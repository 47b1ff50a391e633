"""Owns which part of a run a map shows, and in which form: on a console, as JSON, or as Mermaid text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from minivllm.entrypoints.cli.choosing import check_iteration_option, check_request, choose_iterations
from minivllm.entrypoints.cli.plan_view import PlanView
from minivllm.maps.folding import Folding
from minivllm.maps.plan import plan_map
from minivllm.maps.render.frame import Frame
from minivllm.maps.stages import requests_of
from minivllm.scenarios.registry import UnknownScenarioError, get_scenario
from minivllm.trace.reader import Log

KINDS = ("process", "state", "hot", "timeline", "plan")
MERMAID_KINDS = ("process", "state")


@dataclass(frozen=True, slots=True)
class MapView:
    """A map of some iterations of a log.

    Attributes:
        kind: Which map, one of KINDS.
        iteration: N, A:B (both included), last, all; None for what is best looked at first.
        request: Only what concerns this one; None for all.
        ascii_only: Use no character beyond ASCII.
        lang: Language of the story: "en" or "zh".
        is_below: It stands below another map of the same run, which has said what ran and what happened.

    Raises:
        BadParameter: `iteration` is none of these.
    """

    kind: str
    iteration: str | None = None
    request: str | None = None
    ascii_only: bool = False
    lang: str = "en"
    is_below: bool = False

    def __post_init__(self) -> None:
        check_iteration_option(self.iteration)

    def document(self, log: Log) -> dict[str, Any]:
        """The map as data: of all iterations unless some were asked for.

        Raises:
            ValueError: The run has no such iteration or request.
        """
        if self.kind == "plan":
            plan, chosen_plans = self._plans(log)
            document = {"iterations": chosen_plans, "requests": plan["requests"], "violations": []}
        else:
            document = _DOCUMENTS[self.kind](log, self._chosen(log), self.request)
        return {"log": str(log.path), **document}

    def draw(self, log: Log, console: Console) -> None:
        """The map as a picture.

        Raises:
            ValueError: The run has no such iteration or request.
        """
        if self.kind == "plan":
            plan, chosen_plans = self._plans(log)
            self._plan_view().draw(plan, chosen_plans, log.header, console)
            return
        chosen = self._chosen(log)
        if self.iteration is None and self.kind != "timeline":
            chosen = [first_to_look_at(log, chosen, self.kind)]
        _DRAWINGS[self.kind](self, log, chosen, console)

    def mermaid(self, log: Log) -> str:
        """The map as Mermaid text; the kind is one of MERMAID_KINDS.

        Raises:
            ValueError: The run has no such iteration or request.
        """
        from minivllm.maps.lifecycle import transitions
        from minivllm.maps.process import process_map
        from minivllm.maps.render.mermaid import sequence_diagram, state_diagram

        chosen = self._chosen(log)
        if self.kind == "state":
            events = log.events if self.iteration is None else [e for e in log.events if e.step in chosen]
            return state_diagram(transitions(events, self.request))
        if self.iteration is None:
            chosen = [first_to_look_at(log, chosen, self.kind)]
        process = process_map(log)
        return sequence_diagram(process, [entry for entry in process["iterations"] if entry["iteration"] in chosen])

    def _plan_view(self) -> PlanView:
        return PlanView(self.iteration, self.request, ascii_only=self.ascii_only)

    def _plans(self, log: Log) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        plan = plan_map(log, self.lang)
        return plan, self._plan_view().choose(plan)

    def _chosen(self, log: Log) -> list[int]:
        chosen = choose_iterations(self.iteration, list(log.by_step()))
        check_request(self.request, requests_of(log))
        if self.request is None:
            return chosen
        concerned = steps_of(log, self.request)
        if not (kept := [step for step in chosen if step in concerned]):
            has = f"it is in {min(concerned)} to {max(concerned)}" if concerned else "it never was in one"
            raise ValueError(f"{self.request} has no part in iteration {self.iteration}: {has}")
        return kept


def steps_of(log: Log, request: str) -> set[int]:
    """Iterations in which a request arrived, was planned, waited at the head, or ended."""
    steps = set()
    for event in log.events:
        named = event.request == request
        if event.kind == "schedule":
            named = any(i == request for i, _ in event.data["scheduled"]) or any(
                decision["request"] == request
                for decision in (*event.data["not_scheduled"], event.data["stop"])
                if decision is not None
            )
        elif event.kind == "requests.aborted":
            named = request in event.data["ended"]
        if named and event.step >= 0:
            steps.add(event.step)
    return steps


def first_to_look_at(log: Log, chosen: list[int], kind: str) -> int:
    """The scenario's own choice; for times the step of median length; else the first with most requests in it."""
    try:
        look_at = get_scenario(log.header.scenario).look_at if log.header.scenario else None
    except UnknownScenarioError:
        look_at = None
    if look_at in chosen:
        return look_at
    sizes = {e.step: len(e.data["scheduled"]) for e in log.events if e.kind == "schedule" and e.step in chosen}
    if kind == "hot" and log.header.clock == "wall":
        from minivllm.maps.hotpath import hot_map

        times: dict[int, int] = hot_map(log, chosen)["step_ns"]["by_iteration"]
        busy = sorted((ns, step) for step, ns in times.items() if sizes.get(step))
        if busy:
            return busy[(len(busy) - 1) // 2][1]
    return max(sizes, key=lambda step: (sizes[step], -step)) if sizes else chosen[0]


# ---- documents ----------------------------------------------------------------------------------------------------


def _process_document(log: Log, chosen: list[int], request: str | None) -> dict[str, Any]:
    from minivllm.maps.process import process_map

    process = process_map(log)
    first = process["iterations"][0]["iteration"]  # with it stands what crossed before, while the core started
    process["messages"] = [
        message
        for message in process["messages"]
        if max(message["iteration"], first) in chosen and (request is None or request in message["requests"])
    ]
    process["iterations"] = [entry for entry in process["iterations"] if entry["iteration"] in chosen]
    return process


def _hot_document(log: Log, chosen: list[int], request: str | None) -> dict[str, Any]:
    from minivllm.maps.hotpath import hot_map

    return hot_map(log, chosen, request)


def _state_document(log: Log, chosen: list[int], request: str | None) -> dict[str, Any]:
    from minivllm.maps.state import state_map

    return state_map(log, chosen)


def _timeline_document(log: Log, chosen: list[int], request: str | None) -> dict[str, Any]:
    from minivllm.maps.timeline import timeline_map

    timeline = timeline_map(log)
    kept = [place for place, step in enumerate(timeline["iterations"]) if step in chosen]
    timeline["iterations"] = [timeline["iterations"][place] for place in kept]
    if timeline["times"] is not None:
        timeline["times"] = [times for times in timeline["times"] if times["iteration"] in chosen]
    rows = [{**row, "cells": [row["cells"][place] for place in kept]} for row in timeline["requests"]]
    timeline["requests"] = [row for row in rows if any(row["cells"])]
    return timeline


_DOCUMENTS: dict[str, Callable[[Log, list[int], str | None], dict[str, Any]]] = {
    "process": _process_document,
    "state": _state_document,
    "hot": _hot_document,
    "timeline": _timeline_document,
}


# ---- pictures -----------------------------------------------------------------------------------------------------


def _draw_process(view: MapView, log: Log, chosen: list[int], console: Console) -> None:
    from minivllm.maps.process import process_map
    from minivllm.maps.render.process import ProcessRenderer

    process = process_map(log)
    renderer = ProcessRenderer(process, log.header, console, ascii_only=view.ascii_only, lang=view.lang)
    if not view.is_below:
        renderer.draw_header()
    for iteration in process["iterations"]:
        if iteration["iteration"] in chosen:
            renderer.draw(iteration)


def _draw_state(view: MapView, log: Log, chosen: list[int], console: Console) -> None:
    from minivllm.maps.render.state import StateRenderer
    from minivllm.maps.state import state_map

    state = state_map(log, chosen)
    frame = Frame(log.header, state["requests"], console, ascii_only=view.ascii_only)
    narration = {}
    if not view.is_below:
        narration = {entry["iteration"]: entry["narration"] for entry in plan_map(log, view.lang)["iterations"]}
        frame.draw_header()
    renderer = StateRenderer(state, log.header, console, ascii_only=view.ascii_only)
    folding = Folding(state["requests"], view.lang, view.request)
    for iteration in state["iterations"]:
        for sentence in folding.sentences(narration.get(iteration["iteration"], [])):
            frame.print(frame.sentence(sentence))
        renderer.draw(iteration)


def _draw_hot(view: MapView, log: Log, chosen: list[int], console: Console) -> None:
    from minivllm.maps.hotpath import hot_map
    from minivllm.maps.render.hotpath import HotPathRenderer

    run = hot_map(log, None if view.iteration is None else chosen, view.request)
    for place, step in enumerate(chosen):
        renderer = HotPathRenderer(
            hot_map(log, [step]), run, log.header, console, ascii_only=view.ascii_only, lang=view.lang
        )
        if place == 0 and not view.is_below:
            renderer.draw_header()
        renderer.draw_step()
        if place == len(chosen) - 1 and not view.is_below:
            renderer.draw_run()


def _draw_timeline(view: MapView, log: Log, chosen: list[int], console: Console) -> None:
    from minivllm.maps.render.timeline import TimelineRenderer

    timeline = _timeline_document(log, chosen, view.request)
    if not view.is_below:
        Frame(log.header, requests_of(log), console, ascii_only=view.ascii_only).draw_header()
    TimelineRenderer(timeline, log.header, console, ascii_only=view.ascii_only, lang=view.lang).draw()


_DRAWINGS: dict[str, Callable[[MapView, Log, list[int], Console], None]] = {
    "process": _draw_process,
    "state": _draw_state,
    "hot": _draw_hot,
    "timeline": _draw_timeline,
}
