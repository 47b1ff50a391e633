"""Owns stepping through a recorded run: which iteration, which map, how far scrolled, and what each key does.

It knows no terminal: keys are names, and a picture is a list of lines. Backwards costs what forwards does, because any
iteration is rebuilt from the log.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from rich.console import Console
from rich.text import Text

from minivllm.entrypoints.cli.choosing import check_request
from minivllm.entrypoints.cli.map_view import KINDS, MapView, steps_of
from minivllm.entrypoints.cli.plan_view import PlanView
from minivllm.entrypoints.cli.terminal import RESIZED, Terminal
from minivllm.maps.plan import plan_map
from minivllm.maps.render.plan import PlanRenderer
from minivllm.maps.stages import requests_of
from minivllm.trace.reader import Log, LogError, last_iteration, read_log, read_window

MIN_WIDTH, MIN_HEIGHT = 40, 6
# Below, there is no room for the names of all maps.
_NARROW = 76
# Iterations on either side of the one that a timeline is around.
_AROUND = 40
# Iterations that a search reads at once: as far as keyframes lie apart.
_PIECE = 64

_HELP = (
    ("→ n space", "next iteration"),
    ("← p", "previous iteration"),
    ("Home End", "first, last iteration"),
    ("g", "go to an iteration by its number"),
    ("1-5 Tab", "another map: " + ", ".join(f"{place} {kind}" for place, kind in enumerate(KINDS, 1))),
    ("↑ ↓ PgUp PgDn", "scroll"),
    ("/", "find a request: its next iteration; an empty name repeats the last search"),
    ("?", "this help, and back"),
    ("q Esc", "quit"),
)


class Stepper:
    """A place in a recorded run, and what is drawn of it.

    Args:
        path: The log.
        lang: Language of the sentences.
        kind: The map to begin with, one of KINDS.
        iteration: The iteration to begin with; None for the first.

    Attributes:
        done: Whoever pressed the keys has had enough.

    Raises:
        LogError: There is no such log, or it has no iterations.
    """

    def __init__(self, path: Path, lang: str, kind: str = "plan", iteration: int | None = None) -> None:
        self._path = path
        self._last = last_iteration(path)
        if self._last < 0:
            raise LogError(f"{path}: the run has no iterations: the log holds its header only")
        self._lang = lang
        self.kind = kind
        self.iteration = min(iteration or 0, self._last)
        self.done = False
        self._top = 0
        self._help = False
        self._message = ""
        self._asking: str | None = None  # what the answer is for: "g" or "/"
        self._answer = ""
        self._sought = ""
        self._whole: Log | None = None
        self._max_top = 0
        # A picture is drawn once; going back and forth, and scrolling, finds it again.
        self._drawn = lru_cache(maxsize=64)(self._draw)
        # A compressed log cannot be read from its middle.
        self._is_compressed = path.suffix == ".gz"

    @property
    def numbers(self) -> range:
        """The iterations of the run."""
        return range(self._last + 1)

    # ---- keys -----------------------------------------------------------------------------------------------------

    def press(self, key: str) -> None:
        """What a key does."""
        self._message = ""
        if key == "ctrl-c":
            self.done = True
        elif self._asking is not None:
            self._type(key)
        elif self._help:
            self._help = False
            self.done = key == "q"
        else:
            self._command(key)

    def _command(self, key: str) -> None:
        moves: dict[str, Callable[[], None]] = {
            **dict.fromkeys(("right", "n", " ", "l"), lambda: self.go(self.iteration + 1)),
            **dict.fromkeys(("left", "p", "h"), lambda: self.go(self.iteration - 1)),
            "home": lambda: self.go(0),
            "end": lambda: self.go(self._last),
            "down": lambda: self._scroll(1),
            "up": lambda: self._scroll(-1),
            "page down": lambda: self._scroll(10),
            "page up": lambda: self._scroll(-10),
            "tab": lambda: self._turn(KINDS.index(self.kind) + 1),
            "shift tab": lambda: self._turn(KINDS.index(self.kind) - 1),
        }
        if key in moves:
            moves[key]()
        elif key in ("q", "escape"):
            self.done = True
        elif key == "?":
            self._help = True
        elif key in ("g", "/"):
            self._asking, self._answer = key, ""
        elif key.isdecimal() and 1 <= int(key) <= len(KINDS):
            self._turn(int(key) - 1)
        else:
            self._message = f"{key!r} does nothing here; ? shows the keys"

    def _type(self, key: str) -> None:
        if key == "enter":
            asked, self._asking = self._asking, None
            try:
                self._go_to(self._answer) if asked == "g" else self.find(self._answer or self._sought)
            except ValueError as error:
                self._message = str(error)
        elif key == "escape":
            self._asking = None
        elif key == "backspace":
            self._answer = self._answer[:-1]
        elif len(key) == 1 and key.isprintable():
            self._answer += key

    def go(self, iteration: int) -> None:
        """To an iteration, or as near as the run goes."""
        if not 0 <= iteration <= self._last:
            self._message = "this is the first iteration" if iteration < 0 else "this is the last iteration"
        self.iteration = max(0, min(iteration, self._last))
        self._top = 0

    def _go_to(self, answer: str) -> None:
        if not answer.strip().isdecimal():
            raise ValueError(f"an iteration is a number, 0 to {self._last}")
        if (number := int(answer)) > self._last:
            raise ValueError(f"there is no iteration {number}: this run has 0 to {self._last}")
        self.go(number)

    def find(self, request: str) -> None:
        """To the next iteration that concerns a request; behind the last one from the beginning.

        Raises:
            ValueError: The run has no such request; the message names the nearest.
        """
        if not request:
            return
        check_request(request, requests_of(self._window(self._last, self._last)))
        self._sought = request
        self.go(self._next_with(request))
        self._message = f"{request} is in this iteration; / and Enter find the next"

    def _next_with(self, request: str) -> int:
        """Reads piece by piece, so that a long log is never in memory as a whole."""
        here = self.iteration + 1
        for first in (*range(here, self._last + 1, _PIECE), *range(0, here, _PIECE)):
            last = min(first + _PIECE - 1, self._last)
            if found := [step for step in steps_of(self._window(first, last), request) if first <= step <= last]:
                return min(found)
        raise ValueError(f"{request} never was in an iteration")

    def _turn(self, place: int) -> None:
        self.kind = KINDS[place % len(KINDS)]
        self._top = 0

    def _scroll(self, lines: int) -> None:
        self._top = max(0, min(self._top + lines, self._max_top))

    # ---- the picture ----------------------------------------------------------------------------------------------

    def picture(self, width: int, height: int) -> list[str]:
        """So many lines as the screen has."""
        if width < MIN_WIDTH or height < MIN_HEIGHT:
            text = f"too small: {MIN_WIDTH} x {MIN_HEIGHT} are needed"[:width]
            return [text, *[""] * (height - 1)]
        body = self._help_lines(width) if self._help else self._drawn(self.kind, self.iteration, width)
        room = height - 2
        self._max_top = max(0, len(body) - room)
        self._top = min(self._top, self._max_top)
        shown = body[self._top : self._top + room]
        return [self._head(width), *shown, *[""] * (room - len(shown)), self._foot(width, len(body), room)]

    def _head(self, width: int) -> str:
        head = Text(f" iteration {self.iteration} of 0-{self._last}  ")
        for place, kind in enumerate(KINDS, 1):
            is_here = kind == self.kind
            if is_here or width >= _NARROW:
                head.append(f" {place} {kind} ", style="reverse" if is_here else "")
        return _line(head, width, style="bold")

    def _foot(self, width: int, num_lines: int, room: int) -> str:
        if self._asking == "g":
            return _line(Text(f" iteration: {self._answer}_"), width, style="bold")
        if self._asking == "/":
            return _line(Text(f" request: {self._answer}_"), width, style="bold")
        if self._message:
            return _line(Text(f" {self._message}"), width, style="bold")
        scrolled = "" if num_lines <= room else f"  lines {self._top + 1}-{self._top + room} of {num_lines}, ↑↓"
        return _line(Text(f" ←→ step  g go to  1-5 map  / find  ? help  q quit{scrolled}"), width, style="dim")

    def _help_lines(self, width: int) -> list[str]:
        return ["", *(_line(Text(f"  {keys:<14} {what}"), width) for keys, what in _HELP)]

    def _draw(self, kind: str, iteration: int, width: int) -> list[str]:
        out = io.StringIO()
        here = Console()
        console = Console(
            file=out,
            width=width,
            force_terminal=True,
            color_system=here.color_system or "standard",  # type: ignore[arg-type]
            no_color=here.no_color,
            highlight=False,
            markup=False,
            emoji=False,
        )
        around = _AROUND if kind == "timeline" else 0
        log = self._window(iteration - around, iteration + around)
        view = PlanView(str(iteration))
        plan = plan_map(log, self._lang)
        renderer = PlanRenderer(plan, log.header, console, request=self._sought or None)
        renderer.draw_header()
        [entry] = view.choose(plan)
        renderer.draw(entry, with_plan=kind == "plan")
        if kind != "plan":
            shown = None if kind == "timeline" else str(iteration)
            MapView(kind, shown, lang=self._lang, is_below=True).draw(log, console)
        return out.getvalue().rstrip("\n").split("\n")

    def _window(self, first: int, last: int) -> Log:
        if not self._is_compressed:
            return read_window(self._path, max(first, 0), last)
        if self._whole is None:
            self._whole = read_log(self._path)
        return self._whole


def _line(text: Text, width: int, style: str = "") -> str:
    """One line of a screen, with its looks, cut at the edge."""
    text.truncate(width, overflow="crop", pad=True)
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(text, style=style, end="", no_wrap=True, overflow="crop")
    return capture.get()


def step_through(stepper: Stepper) -> None:
    """Show a run on this terminal until its user has seen enough."""
    with Terminal() as terminal:
        terminal.show(stepper.picture(*terminal.size()))
        for key in terminal.pressed():
            if key != RESIZED:
                stepper.press(key)
            if stepper.done:
                break
            terminal.show(stepper.picture(*terminal.size()))
