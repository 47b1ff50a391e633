"""Owns which part of a plan map a user sees, and as what: the iterations asked for, drawn or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from minivllm.entrypoints.cli.choosing import check_iteration_option, check_request, choose_iterations
from minivllm.entrypoints.cli.common import print_json, stdout_console
from minivllm.maps.plan import is_plain_decode
from minivllm.maps.render.plan import PlanRenderer
from minivllm.trace.events import Header

Iterations = list[dict[str, Any]]

# A run of more iterations is drawn without those in which nothing new is to be seen.
_MAX_DRAWN = 8
# Of more than so many pictures the rest is only told, and of more than so many stories the rest is only named.
_MAX_PICTURES, _MAX_STORIES = 8, 12


@dataclass(frozen=True, slots=True)
class PlanView:
    """What to show of a plan map.

    Attributes:
        iteration: N, A:B (both included), last, all, or None for all in which something happened.
        request: Only iterations that concern it; None for all.
        as_json: Print one document instead of a picture.
        width: Columns to draw for; None for the terminal's.
        ascii_only: Use no character beyond ASCII.

    Raises:
        BadParameter: `iteration` is none of these.
    """

    iteration: str | None = None
    request: str | None = None
    as_json: bool = False
    width: int | None = None
    ascii_only: bool = False

    def __post_init__(self) -> None:
        check_iteration_option(self.iteration)

    def choose(self, plan: dict[str, Any]) -> Iterations:
        """The iterations to show.

        Raises:
            ValueError: The run has no such iteration or request, or no iteration at all.
        """
        numbers = set(choose_iterations(self.iteration, [entry["iteration"] for entry in plan["iterations"]]))
        chosen = [entry for entry in plan["iterations"] if entry["iteration"] in numbers]
        check_request(self.request, [entry["request"] for entry in plan["requests"]])
        if self.request is None:
            return chosen
        return [entry for entry in chosen if _concerns(entry, self.request)]

    def _groups(self, plan: dict[str, Any], chosen: Iterations) -> list[Iterations]:
        """What is drawn: one iteration, or several that are only told of, if nobody asked for any in particular."""
        if self.iteration is not None or len(chosen) <= _MAX_DRAWN:
            return [[entry] for entry in chosen]
        return _groups_of_plain(chosen, {entry["request"]: entry for entry in plan["requests"]})

    def show(
        self,
        kind: str,
        plan: dict[str, Any],
        chosen: Iterations,
        header: Header,
        *,
        log: str,
        violations: list[dict[str, Any]],
        remark: str = "",
    ) -> None:
        """Print the chosen iterations.

        Args:
            kind: Of the JSON document.
            plan: The whole plan map.
            chosen: What `choose` gave.
            header: The log's.
            log: Path of the log.
            violations: Invariants that did not hold.
            remark: Said under the picture.
        """
        if self.as_json:
            document = {"log": log, "iterations": chosen, "requests": plan["requests"], "violations": violations}
            print_json(kind, document)
            return
        self.draw(plan, chosen, header, stdout_console(self.width), remark=remark)

    def draw(
        self, plan: dict[str, Any], chosen: Iterations, header: Header, console: Console, *, remark: str = ""
    ) -> None:
        """Draw the chosen iterations on any console. For the arguments see `show`."""
        renderer = PlanRenderer(plan, header, console, ascii_only=self.ascii_only, request=self.request)
        renderer.draw_header()
        self.draw_iterations(renderer, plan, chosen)
        renderer.draw_requests()
        if remark:
            renderer.draw_note(remark)

    def draw_iterations(self, renderer: PlanRenderer, plan: dict[str, Any], chosen: Iterations) -> None:
        """Draw the chosen iterations; unless they were asked for, only as many as a reader goes through.

        Of those in which nothing new is to be seen it is only said that they are there.
        """
        groups = self._groups(plan, chosen)
        shown = len(groups) if self.iteration is not None else _MAX_PICTURES + _MAX_STORIES
        for place, group in enumerate(groups[:shown]):
            if len(group) == 1:
                renderer.draw(group[0], with_plan=self.iteration is not None or place < _MAX_PICTURES)
            else:
                renderer.draw_left_out(group)
        if rest := [entry for group in groups[shown:] for entry in group]:
            renderer.draw_rest(rest)


def _groups_of_plain(iterations: Iterations, requests: dict[str, dict[str, Any]]) -> list[Iterations]:
    """Neighbours with nothing but plain decoding together, every other iteration alone; so are those at both ends."""
    groups: list[Iterations] = []
    open_group = False
    for place, entry in enumerate(iterations):
        before = iterations[place - 1] if place else entry
        is_plain = 2 <= place < len(iterations) - 1 and is_plain_decode(entry, requests, before)
        if is_plain and open_group:
            groups[-1].append(entry)
        else:
            groups.append([entry])
        open_group = is_plain
    return groups


def _concerns(iteration: dict[str, Any], request: str) -> bool:
    if any(request in iteration[key] for key in ("arrived", "aborted")):
        return True
    entries = (e for key in ("scheduled", "not_scheduled", "finished") for e in iteration[key])
    return any(entry["request"] == request for entry in entries)
