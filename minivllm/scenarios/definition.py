"""Owns what a scenario is: its name and lesson, its settings, who comes when. Definitions only; `run.py` runs them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

_HERE = Path(__file__).parent
STORIES = _HERE / "stories.txt"
LOGS = _HERE / "logs"

# An early end-of-sequence token would move everyone behind it to other iterations.
GO_ON = {"ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a prompt: `count` tokens of the story text, from token `start` on.

    The numbers of a lesson that needs an exact length come out so with any model that has its own tokenizer.
    """

    start: int
    count: int


@dataclass(frozen=True, slots=True)
class ScenarioRequest:
    """One request.

    Attributes:
        id: Its id.
        prompt: Text; or pieces of the story text and single token ids.
        max_tokens: Output limit.
        arrival_step: Iteration before which it arrives.
        abort_step, abort_phase: When its caller gives up, if ever.
        drafts: Draft tokens by iteration, as pieces of the story text.
        sampling: Other sampling parameters.
    """

    id: str
    prompt: str | tuple[Piece | int, ...]
    max_tokens: int
    arrival_step: int = 0
    priority: int = 0
    abort_step: int | None = None
    abort_phase: Literal["before", "mid"] = "before"
    drafts: dict[int, Piece] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named run that repeats exactly.

    Attributes:
        name: For the command line.
        title: In one line, what happens.
        teaches: What to see in it.
        engine: Engine arguments (see EngineArgs).
        requests: Who comes when.
        look_at: The iteration to look at first; None shows all.
        note: Said under that iteration's map.
        clock: Of its recorded log: "logical" gives the same bytes everywhere, "wall" has this one run's times.
    """

    name: str
    title: str
    teaches: str
    engine: dict[str, Any]
    requests: tuple[ScenarioRequest, ...]
    look_at: int | None = None
    note: str = ""
    clock: Literal["logical", "wall"] = "logical"

    @property
    def log_path(self) -> Path:
        """The recorded run that ships with the package."""
        return LOGS / f"{self.name}.jsonl.gz"
