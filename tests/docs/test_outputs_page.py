"""The worked example of docs/outputs.md is what the code does."""

from __future__ import annotations

from pathlib import Path

from minivllm.core.messages import EngineCoreOutput, EngineCoreRequest
from minivllm.engine.output_processor import OutputProcessor
from minivllm.sampling_params import RequestOutputKind, SamplingParams

PAGE = Path(__file__).parents[2] / "docs" / "outputs.md"
TOKENS = ["Once", " upon", " a", " ti", "le", ", one", " time", "!"]


class Words:
    """A tokenizer with these tokens alone."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(TOKENS[i] for i in token_ids)


def worked_example() -> list[str]:
    """One line a step: its token, the text that is known, and what the caller gets."""
    params = SamplingParams(stop="time", output_kind=RequestOutputKind.DELTA, max_tokens=20)
    processor = OutputProcessor(Words())  # type: ignore[arg-type]
    processor.add_request(EngineCoreRequest("r", [0], params), None)
    state = processor.request_states["r"]
    lines = [f"{'token':<9}{'known text':<29}{'new text':<16}new tokens"]
    for token_id, token in enumerate(TOKENS):
        processed = processor.process_outputs([EngineCoreOutput("r", [token_id])])
        text, tokens = "-", "-"
        for output in processed.request_outputs:
            completion = output.outputs[0]
            text = repr(completion.text)
            tokens = " ".join(repr(TOKENS[i]) for i in completion.token_ids) or "-"
            if completion.finished():
                tokens += f", {completion.finish_reason}: {completion.stop_reason!r}"
        lines.append(f"{token!r:<9}{state.detokenizer.output_text!r:<29}{text:<16}{tokens}")
        if processed.reqs_to_abort:
            return lines
    raise AssertionError("a stop string is meant to be met")


def test_the_worked_example_is_what_happens() -> None:
    page = PAGE.read_text(encoding="utf-8")
    [block] = [part for part in page.split("```") if part.startswith("text\ntoken")]
    assert [line.rstrip() for line in block.splitlines()[1:]] == [line.rstrip() for line in worked_example()]
