"""The frontend forgets a request with its last word, and says it to whoever waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minivllm.core.admission import RequestRefusedError
from minivllm.core.messages import EngineCoreOutput, EngineCoreRequest
from minivllm.core.request import FinishReason
from minivllm.engine.input_processor import assign_request_id
from minivllm.engine.output_collector import RequestOutputCollector
from minivllm.engine.output_processor import OutputProcessor
from minivllm.outputs import CompletionOutput, RequestOutput
from minivllm.sampling_params import RequestOutputKind, SamplingParams

DELTA, CUMULATIVE, FINAL = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY


def processor_with(n: int, kind: RequestOutputKind = CUMULATIVE, **params: Any) -> tuple[OutputProcessor, list[str]]:
    """A processor without a tokenizer that knows one request, and the ids that the core has."""
    processor = OutputProcessor(None)
    request = EngineCoreRequest("r-1234", [1], SamplingParams(n=n, output_kind=kind, **params))
    children = processor.add_request(request, None, "r")
    return processor, [child.request_id for child in children]


def is_empty(processor: OutputProcessor) -> bool:
    return not (processor.request_states or processor.parent_requests or processor.external_req_ids)


def step(processor: OutputProcessor, *outputs: tuple[str, list[int], FinishReason | None]) -> list[RequestOutput]:
    return processor.process_outputs([EngineCoreOutput(*output) for output in outputs]).request_outputs


def test_children_have_ids_and_seeds_of_their_own() -> None:
    processor, ids = processor_with(3, seed=7)
    assert ids == ["0_r-1234", "1_r-1234", "2_r-1234"]
    assert [processor.request_states[i].request.sampling_params.seed for i in ids] == [7, 8, 9]
    assert {processor.request_states[i].request.sampling_params.n for i in ids} == {1}
    processor, ids = processor_with(2)
    assert {processor.request_states[i].request.sampling_params.seed for i in ids} == {None}


def test_a_stream_carries_each_child_and_is_finished_with_the_last() -> None:
    processor, (a, b) = processor_with(2, DELTA)
    outputs = step(processor, (a, [5], None), (b, [6], FinishReason.LENGTH))
    assert [(o.request_id, o.outputs[0].index, o.outputs[0].token_ids, o.finished) for o in outputs] == [
        ("r", 0, [5], False),
        ("r", 1, [6], False),
    ]
    [last] = step(processor, (a, [7], FinishReason.STOP), (b, [8], None))
    assert (last.outputs[0].token_ids, last.finished) == ([7], True), "nothing comes of a child that is done"
    assert is_empty(processor)


def test_the_end_alone_waits_for_all_children() -> None:
    processor, (a, b) = processor_with(2, FINAL)
    assert step(processor, (b, [6], FinishReason.LENGTH), (a, [5], None)) == []
    [output] = step(processor, (a, [7], FinishReason.LENGTH))
    assert [completion.token_ids for completion in output.outputs] == [[5, 7], [6]]
    assert output.finished
    assert is_empty(processor)


@pytest.mark.parametrize("kind", RequestOutputKind)
@pytest.mark.parametrize(("request_id", "internal"), [("r", False), ("r-1234", True)])
@pytest.mark.parametrize("num_done", [0, 1])
def test_an_abort_by_either_id_releases_the_parent(
    kind: RequestOutputKind, request_id: str, internal: bool, num_done: int
) -> None:
    processor, ids = processor_with(2, kind)
    step(processor, *((i, [5], FinishReason.LENGTH) for i in ids[:num_done]))
    assert processor.abort_requests([request_id, "unknown"], internal) == ids[num_done:]
    assert is_empty(processor)
    assert processor.abort_requests([request_id], internal) == []
    assert step(processor, (ids[1], [5], None)) == []


def test_a_refused_request_is_told_once_by_the_callers_id() -> None:
    processor, ids = processor_with(2)
    refusals = [EngineCoreOutput(i, [], FinishReason.ERROR, error=f"request {i!r} can never run") for i in ids]
    with pytest.raises(RequestRefusedError, match="request 'r' can never run"):
        processor.process_outputs(refusals[:1])
    assert is_empty(processor)
    assert processor.process_outputs(refusals[1:]).request_outputs == []


def test_ids_inside_are_unique_whatever_callers_choose() -> None:
    request = EngineCoreRequest("r", [1], SamplingParams())
    ids = {assign_request_id(request).request_id for _ in range(100)}
    assert len(ids) == 100
    assert {(i[:2], len(i)) for i in ids} == {("r-", 10)}


def output(index: int, tokens: list[int], finished: bool = False) -> RequestOutput:
    completion = CompletionOutput(index, "".join(map(str, tokens)), tokens, "length" if finished else None)
    return RequestOutput("r", None, [1], [completion], finished)


@pytest.mark.parametrize(("kind", "tokens"), [(DELTA, [1, 2]), (CUMULATIVE, [2])])
def test_what_is_not_fetched_is_merged(kind: RequestOutputKind, tokens: list[int]) -> None:
    async def main() -> None:
        queue = RequestOutputCollector(kind, "r")
        for new in (output(0, [1]), output(1, [7]), output(0, [2], finished=True)):
            queue.put(new)
        merged = await queue.get()
        assert [(c.index, c.token_ids) for c in merged.outputs] == [(0, tokens), (1, [7])]
        assert merged.finished
        assert queue.get_nowait() is None

    asyncio.run(main())


def test_an_error_comes_after_what_is_pending_and_wakes_who_waits() -> None:
    async def main() -> None:
        queue = RequestOutputCollector(DELTA, "r")
        queue.put(output(0, [1]))
        queue.put_error(ValueError("gone"))
        assert (await queue.get()).outputs[0].token_ids == [1]
        for _ in range(2):
            with pytest.raises(ValueError, match="gone"):
                await queue.get()
        other = RequestOutputCollector(DELTA, "r")
        waiting = asyncio.create_task(other.get())
        await asyncio.sleep(0)
        other.put_error(ValueError("gone"))
        with pytest.raises(ValueError, match="gone"):
            await waiting

    asyncio.run(main())


@pytest.mark.parametrize(("engine", "own", "sizes"), [(1, 3, [1, 3, 2]), (4, 3, [1, 4, 1]), (2, None, [1, 2, 2, 1])])
def test_a_request_may_want_fewer_outputs_than_the_engine_sends(engine: int, own: int | None, sizes: list[int]) -> None:
    processor = OutputProcessor(None, stream_interval=engine)
    params = SamplingParams(output_kind=DELTA, stream_interval=own)
    processor.add_request(EngineCoreRequest("r", [1], params), None)
    ends = [None] * 5 + [FinishReason.LENGTH]
    outputs = [output for end in ends for output in step(processor, ("r", [5], end))]
    assert [len(output.outputs[0].token_ids) for output in outputs] == sizes
