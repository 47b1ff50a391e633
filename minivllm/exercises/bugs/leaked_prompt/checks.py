"""What callers are sent behind prompts that end inside a character, and behind others."""

from __future__ import annotations

from minivllm.exercises.bench import Bench
from minivllm.exercises.faults import run_here
from minivllm.exercises.runs import Run


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [run_here(bench)]


def _deltas(run: Run, request: str) -> list[str]:
    return [e.data["delta"] for e in run.log.events if e.kind == "output.text" and e.request == request]


def test_the_first_piece_is_one_character(bench: Bench) -> None:
    """R0's first output is the character that its token completes, and no more."""
    run = run_here(bench)
    if (got := _deltas(run, "R0")[0]) != "🙂":
        raise bench.wrong(run, 0, call="the first text that R0 is sent", expected="🙂", got=got, map="state")


def test_no_piece_holds_the_prompt(bench: Bench) -> None:
    """A text has what its tokens say: every invariant holds."""
    bench.sound(run_here(bench))


def test_every_text_is_as_without_the_fault(bench: Bench) -> None:
    """Piece by piece, everybody is sent what the engine without the fault sends."""
    bench.same_plans(run_here(bench))


def test_other_texts_stay(bench: Bench) -> None:
    """Texts behind whole prompts, with their spaces, and characters made of several output tokens stay as they are."""
    for name in ("hello", "utf8-split", "stop-strings"):
        bench.same_plans(bench.run(name))
