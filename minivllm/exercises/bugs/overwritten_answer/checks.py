"""What is in the mailbox, and what a slow caller has in the end."""

from __future__ import annotations

from minivllm.engine.output_collector import RequestOutputCollector
from minivllm.exercises.bench import Bench
from minivllm.exercises.callers import fetched_of
from minivllm.exercises.faults import run_here, sound_run
from minivllm.exercises.runs import Run
from minivllm.outputs import CompletionOutput, RequestOutput
from minivllm.sampling_params import RequestOutputKind


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [run_here(bench)]


def _output(index: int, text: str, *, finished: bool = False) -> RequestOutput:
    completion = CompletionOutput(
        index, text, [1] * len(text.split()), "length" if finished else None, None, None, None
    )
    return RequestOutput("R0", "Hi", [1], [completion], finished)


def _mailbox(bench: Bench, kind: RequestOutputKind, *outputs: RequestOutput) -> tuple[dict[int, str], RequestOutput]:
    mailbox = RequestOutputCollector(kind, "R0")
    for output in outputs:
        bench.call("put", mailbox, output, text="put(mailbox, output)")
    held = mailbox.get_nowait()
    assert held is not None
    return {completion.index: completion.text for completion in held.outputs}, held


def test_two_completions_wait_side_by_side(bench: Bench) -> None:
    """What two completions have said waits side by side."""
    outputs = _output(0, "one two"), _output(1, "a b")
    held, _ = _mailbox(bench, RequestOutputKind.CUMULATIVE, *outputs)
    call = bench.call("", lambda: held, text='put(mailbox, completion 0: "one two"); put(mailbox, completion 1: "a b")')
    call.gives({0: "one two", 1: "a b"})


def test_the_newest_of_one_completion_counts(bench: Bench) -> None:
    """A later output of the same completion takes the place of the earlier one."""
    held, _ = _mailbox(bench, RequestOutputKind.CUMULATIVE, _output(0, "one"), _output(1, "a"), _output(0, "one two"))
    bench.call("", lambda: held, text="one, a, one two: put one after the other").gives({0: "one two", 1: "a"})


def test_deltas_are_put_together(bench: Bench) -> None:
    """Deltas of one completion are put together, and the end of a request is not forgotten."""
    outputs = _output(0, "one"), _output(1, "a"), _output(0, " two", finished=True)
    held, output = _mailbox(bench, RequestOutputKind.DELTA, *outputs)
    bench.call("", lambda: held, text="deltas: one, a, two").gives({0: "one two", 1: "a"})
    bench.call("", lambda: output.finished, text="output.finished, after the last delta").gives(True)


def test_a_slow_caller_has_both_answers_in_the_end(bench: Bench) -> None:
    """In the engine: a caller who fetches every third iteration has both answers to their ends."""
    run, sound = run_here(bench), sound_run(bench.exercise)
    expected, got = fetched_of(sound), fetched_of(run)
    last = max(event.step for event in run.log.events)
    if got != expected:
        lost = next(index for index in expected if got.get(index) != expected[index])
        call = f"{run.call}: the last text that the caller has of completion {lost}"
        raise bench.wrong(run, last, call=call, expected=expected[lost], got=got.get(lost, "nothing"), map="state")
