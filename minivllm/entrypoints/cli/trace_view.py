"""Owns what `minivllm trace` shows of a run: its story, and the maps that were asked for, iteration by iteration."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console

from minivllm.entrypoints.cli.map_view import KINDS, MapView, first_to_look_at
from minivllm.entrypoints.cli.plan_view import PlanView
from minivllm.maps.render.plan import PlanRenderer
from minivllm.trace.reader import Log

# Whoever asks for few iterations sees them from all sides, whoever asks for none in particular one of them.
_FROM_ALL_SIDES = ("plan", "state", "process", "hot")
_MOST_FROM_ALL_SIDES = 3


def parse_maps(text: str | None) -> tuple[str, ...] | None:
    """The maps of "--map state,hot"; None if none were named.

    Raises:
        BadParameter: There is no such map; the message names the nearest.
    """
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise typer.BadParameter(f"--map names no map; there are {', '.join(KINDS)}")
    for name in names:
        if name not in KINDS:
            close = difflib.get_close_matches(name, KINDS, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(KINDS)}"
            raise typer.BadParameter(f"--map: there is no map {name!r}; {hint}")
    return names


@dataclass(frozen=True, slots=True)
class TraceView:
    """How a run is shown.

    Attributes:
        maps: The maps that were asked for; None for what suits the number of iterations.
        plans: Which iterations, of which request, and whether in ASCII.
        lang: Language of the sentences: "en" or "zh".
    """

    maps: tuple[str, ...] | None
    plans: PlanView
    lang: str = "en"

    @property
    def wants_calls(self) -> bool:
        """Whether the run must record every call, for a tree of them."""
        return "hot" in (self.maps or (() if self.plans.as_json else _FROM_ALL_SIDES))

    def documents(self, log: Log) -> dict[str, Any]:
        """The maps beside the plan that were asked for, as data."""
        kinds = [kind for kind in self.maps or () if kind != "plan"]
        documents = {k: MapView(k, self.plans.iteration, self.plans.request).document(log) for k in kinds}
        return {"maps": documents} if documents else {}

    def draw(self, log: Log, plan: dict[str, Any], chosen: list[dict[str, Any]], console: Console, note: str) -> None:
        """The picture.

        Args:
            log: The run.
            plan: Its plan map.
            chosen: The iterations of it that are shown.
            console: Where to draw.
            note: Said at the end.
        """
        maps = self.maps or self._usual_maps(len(chosen))
        renderer = PlanRenderer(plan, log.header, console, ascii_only=self.plans.ascii_only, request=self.plans.request)
        renderer.draw_header()
        kinds = [kind for kind in ("state", "process", "hot") if kind in maps]
        below = _Below(log, kinds, console, self)
        if self.plans.iteration is not None:
            for entry in chosen:
                renderer.draw(entry, with_plan="plan" in maps)
                below.draw(entry["iteration"])
        else:
            if "plan" in maps:
                self.plans.draw_iterations(renderer, plan, chosen)
            if below.kinds and chosen:
                number = first_to_look_at(log, [entry["iteration"] for entry in chosen], "hot")
                shown = next(entry for entry in chosen if entry["iteration"] == number)
                renderer.draw_note(f"Iteration {number} from other sides; for another one: --iteration N.")
                renderer.draw(shown, with_plan=False)
                below.draw(number)
        if "timeline" in maps:
            below.draw_timeline()
        if "hot" in maps and chosen:
            below.draw_run(chosen[0]["iteration"])
        renderer.draw_requests()
        if note:
            renderer.draw_note(note)

    def _usual_maps(self, count: int) -> tuple[str, ...]:
        if self.plans.iteration is None and count > 1:
            return (*_FROM_ALL_SIDES, "timeline")
        return _FROM_ALL_SIDES if count <= _MOST_FROM_ALL_SIDES else ("plan", "timeline")


class _Below:
    """Draws what stands below the plan of an iteration."""

    def __init__(self, log: Log, kinds: Sequence[str], console: Console, view: TraceView) -> None:
        self.kinds = kinds
        self._log = log
        self._console = console
        self._plans = view.plans
        self._lang = view.lang

    def draw(self, number: int) -> None:
        """The other maps of one iteration."""
        for kind in self.kinds:
            self._view(kind, str(number)).draw(self._log, self._console)

    def draw_timeline(self) -> None:
        """The whole run on one screen."""
        self._view("timeline", None).draw(self._log, self._console)
        self._console.print()

    def draw_run(self, number: int) -> None:
        """Where the time of the whole run went, stage by stage, and what its callers felt."""
        from minivllm.maps.hotpath import hot_map
        from minivllm.maps.render.hotpath import HotPathRenderer

        step, run = hot_map(self._log, [number]), hot_map(self._log)
        ascii_only = self._plans.ascii_only
        HotPathRenderer(step, run, self._log.header, self._console, ascii_only=ascii_only).draw_run()

    def _view(self, kind: str, iteration: str | None) -> MapView:
        return MapView(kind, iteration, None, self._plans.ascii_only, self._lang, is_below=True)
