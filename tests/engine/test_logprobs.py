"""Scores reach callers whole and right, however the engine cuts, caches, preempts and orders the work."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from minivllm import LLM, SamplingParams
from minivllm.core.messages import EngineCoreOutput
from minivllm.core.scheduler import Scheduler
from minivllm.core.scheduler_output import LogprobsLists
from minivllm.engine.logprobs import LogprobsProcessor
from minivllm.logprobs import FlatLogprobs
from minivllm.outputs import CompletionOutput, RequestOutput
from minivllm.sampling_params import RequestOutputKind
from minivllm.tokenizer import Tokenizer, load_tokenizer

LONG = "One day, a girl named Lucy went to the park with her mom. They saw a big tree and a small bird."
PROMPTS = [LONG, "Once upon a time", LONG + " The bird was", "A", LONG]
ASKS = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, logprobs=3, prompt_logprobs=2)
SMALL: dict[str, Any] = {"max_model_len": 256, "num_gpu_blocks_override": 300, "block_size": 4}


def generate(llm: LLM, prompts: list[str], params: SamplingParams = ASKS) -> dict[str, RequestOutput]:
    return {prompt: output for prompt, output in zip(prompts, llm.generate(prompts, params), strict=True)}


def assert_same(ours: RequestOutput, expected: RequestOutput) -> None:
    """The same tokens, ranks and texts; scores up to rounding."""
    mine, theirs = ours.outputs[0], expected.outputs[0]
    assert mine.token_ids == theirs.token_ids
    assert mine.cumulative_logprob == pytest.approx(theirs.cumulative_logprob, abs=1e-3)
    for a, b in ((mine.logprobs, theirs.logprobs), (ours.prompt_logprobs, expected.prompt_logprobs)):
        assert a is not None
        assert b is not None
        for position, other in zip(a, b, strict=True):
            if position is None or other is None:
                assert position is other
                continue
            assert position.keys() == other.keys()
            for entry, same in zip(position.values(), other.values(), strict=True):
                assert (entry.rank, entry.decoded_token) == (same.rank, same.decoded_token)
                assert entry.logprob == pytest.approx(same.logprob, abs=1e-4)


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> dict[str, RequestOutput]:
    """Each prompt alone, in one chunk, with nothing cached."""
    llm = LLM(model=str(tiny_model), **SMALL, enable_prefix_caching=False)
    return {prompt: generate(llm, [prompt])[prompt] for prompt in set(PROMPTS)}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="together"),
        pytest.param({"batch": "rows"}, id="rows"),
        pytest.param({"async_scheduling": True}, id="async"),
        pytest.param({"multiprocess": True}, id="core in a process of its own"),
        pytest.param({"max_num_batched_tokens": 8, "max_num_seqs": 3}, id="small chunks"),
        pytest.param({"long_prefill_token_threshold": 5, "batch": "rows"}, id="chunk limit, rows"),
        pytest.param({"num_gpu_blocks_override": 35, "scheduler_reserve_full_isl": False}, id="preempted"),
        pytest.param({"num_gpu_blocks_override": 35, "async_scheduling": True}, id="preempted, async"),
    ],
)
def test_scores_do_not_depend_on_how_they_are_computed(
    tiny_model: Path, expected: dict[str, RequestOutput], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    victims = []
    preempt = Scheduler.preempt_request
    monkeypatch.setattr(
        Scheduler, "preempt_request", lambda self, victim: (victims.append(victim), preempt(self, victim))
    )
    llm = LLM(model=str(tiny_model), **{**SMALL, **settings})
    for prompt, output in generate(llm, PROMPTS).items():
        assert_same(output, expected[prompt])
    assert bool(victims) == ("num_gpu_blocks_override" in settings)
    llm.llm_engine.shutdown()


def test_prompt_scores_do_not_depend_on_what_is_cached_or_on_the_order(
    tiny_model: Path, expected: dict[str, RequestOutput]
) -> None:
    for order in itertools.islice(itertools.permutations(sorted(expected)), 0, None, 7):
        llm = LLM(model=str(tiny_model), **SMALL)
        generate(llm, [LONG], msgspec.structs.replace(ASKS, prompt_logprobs=None, skip_reading_prefix_cache=False))
        for prompt in order:
            output = generate(llm, [prompt])[prompt]
            assert output.num_cached_tokens == 0
            assert_same(output, expected[prompt])


def test_prompt_scores_are_told_although_the_first_output_was_dropped(
    tiny_model: Path, expected: dict[str, RequestOutput]
) -> None:
    engine = LLM(model=str(tiny_model), **SMALL, async_scheduling=True).llm_engine
    engine.add_request("a", LONG, ASKS)
    assert engine.step() == [], "the step with the whole prompt is in flight"
    engine.engine_core.scheduler.reset_prefix_cache(reset_running_requests=True)
    last = None
    while engine.has_unfinished_requests():
        last = (engine.step() or [last])[-1]
    assert last is not None
    assert_same(last, expected[LONG])


def test_scores_of_sampled_tokens_with_a_prefix_hit(tiny_model: Path, expected: dict[str, RequestOutput]) -> None:
    llm = LLM(model=str(tiny_model), **SMALL)
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, logprobs=3)
    for _ in range(2):
        output = generate(llm, [LONG], params)[LONG]
        assert output.prompt_logprobs is None
        output.prompt_logprobs = expected[LONG].prompt_logprobs
        assert_same(output, expected[LONG])
    assert output.num_cached_tokens


def test_each_token_has_its_score_first_and_the_sum_is_their_sum(expected: dict[str, RequestOutput]) -> None:
    for output in expected.values():
        completion = output.outputs[0]
        assert completion.logprobs is not None
        first = [next(iter(position.items())) for position in completion.logprobs]
        assert [token_id for token_id, _ in first] == completion.token_ids
        assert all(entry.rank == 1 for _, entry in first), "greedy"
        assert completion.cumulative_logprob == pytest.approx(sum(entry.logprob for _, entry in first))
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is None
        prompt = [next(iter(position)) for position in output.prompt_logprobs[1:] if position is not None]
        assert prompt == output.prompt_token_ids[1:]


def test_scores_are_cut_with_the_tokens_at_a_stop(tiny_model: Path, expected: dict[str, RequestOutput]) -> None:
    llm = LLM(model=str(tiny_model), **SMALL)
    tokens = expected[LONG].outputs[0].token_ids
    at = next(i for i in range(2, 10) if tokens[i] not in tokens[:i])
    [output] = llm.generate(LONG, msgspec.structs.replace(ASKS, stop_token_ids=(tokens[at],)))
    assert output.outputs[0].token_ids == tokens[: at + 1]
    assert output.outputs[0].logprobs is not None
    assert len(output.outputs[0].logprobs) == at + 1


def test_deltas_bring_the_scores_of_their_tokens_and_the_prompts_once(
    tiny_model: Path, expected: dict[str, RequestOutput]
) -> None:
    engine = LLM(model=str(tiny_model), **SMALL).llm_engine
    engine.add_request("a", LONG, msgspec.structs.replace(ASKS, output_kind=RequestOutputKind.DELTA))
    scores, prompts = [], []
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert output.outputs[0].logprobs is not None
            assert len(output.outputs[0].logprobs) == len(output.outputs[0].token_ids)
            scores += output.outputs[0].logprobs
            prompts.append(output.prompt_logprobs)
    assert [list(position) for position in scores] == [list(p) for p in expected[LONG].outputs[0].logprobs or []]
    assert len(prompts[0] or []) == len(expected[LONG].prompt_token_ids)
    assert not any(prompts[1:])


def test_several_completions_have_scores_of_their_own(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **SMALL)
    params = SamplingParams(n=3, seed=1, max_tokens=5, logprobs=0, prompt_logprobs=0, ignore_eos=True)
    [output] = llm.generate("Once upon a time", params)
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    for completion in output.outputs:
        assert completion.logprobs is not None
        assert [list(position) for position in completion.logprobs] == [[token_id] for token_id in completion.token_ids]


def test_nobody_asks_nobody_is_told(tiny_model: Path) -> None:
    [output] = LLM(model=str(tiny_model), **SMALL).generate("A", SamplingParams(temperature=0.0, max_tokens=2))
    completion = output.outputs[0]
    assert output.prompt_logprobs is completion.logprobs is completion.cumulative_logprob is None


def test_who_wants_no_text_gets_none_beside_the_scores(tiny_model: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=2, logprobs=1, prompt_logprobs=1, detokenize=False)
    [output] = LLM(model=str(tiny_model), **SMALL).generate("A b", params)
    positions = [*(output.prompt_logprobs or ()), *(output.outputs[0].logprobs or ())]
    assert {entry.decoded_token for position in positions if position for entry in position.values()} == {None}


def test_a_broken_model_is_one_clear_error_and_not_the_end(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **SMALL)
    [before] = llm.generate("A", ASKS)
    norm = llm.llm_engine.engine_core.model_executor.worker.runner.model.norm.weight  # type: ignore[attr-defined]
    saved = norm.clone()
    with torch.inference_mode():
        norm.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match=r"request .*: its logits at position 1 are not numbers"):
        llm.generate("A", ASKS)
    with torch.inference_mode():
        norm.copy_(saved)
    assert not llm.llm_engine.has_unfinished_requests()
    [after] = llm.generate("A", ASKS)
    assert after.outputs[0].token_ids == before.outputs[0].token_ids


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return load_tokenizer(tiny_model)


@pytest.mark.parametrize("text", ["é", "日本", "🙂!", "a🙂b"])
def test_the_last_token_of_a_character_has_its_text(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    processor = LogprobsProcessor(tokenizer, SamplingParams(logprobs=0))
    for count, token_id in enumerate(token_ids, 1):
        scores = LogprobsLists([[token_id]], [[-1.0]], [1])
        processor.update_from_output(EngineCoreOutput("a", [token_id], new_logprobs=scores), count)
    assert processor.logprobs is not None
    pieces = [entry.decoded_token for position in processor.logprobs for entry in position.values()]
    assert "".join(piece or "" for piece in pieces) == text
    assert "" in pieces, "the tokenizer splits the character"
    assert processor.cumulative_logprob == -len(token_ids)


class BytePieces:
    """A tokenizer whose tokens are bytes, cut where a test wants them."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def piece(self, token_id: int) -> str:
        return self.decode([token_id])

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        return b"".join(self.pieces[i] for i in token_ids).decode(errors="replace")


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ((b"a", b" \xe5", b"\xae", b"\x9a"), ["a", "", "", " 定"]),  # the first byte comes with a space
        ((b"\xe5", b"\xae\x9a", b"b\xc3", b"\xa9"), ["", "定", "", "bé"]),
    ],
)
def test_what_stands_before_half_a_character_is_not_lost(pieces: tuple[bytes, ...], texts: list[str]) -> None:
    processor = LogprobsProcessor(BytePieces(*pieces), SamplingParams(logprobs=0))  # type: ignore[arg-type]
    for token_id in range(len(pieces)):
        scores = LogprobsLists([[token_id]], [[-1.0]], [1])
        processor.update_from_output(EngineCoreOutput("a", [token_id], new_logprobs=scores), token_id + 1)
    assert processor.logprobs is not None
    assert [entry.decoded_token for position in processor.logprobs for entry in position.values()] == texts


def test_without_a_tokenizer_there_are_no_texts() -> None:
    processor = LogprobsProcessor(None, SamplingParams(logprobs=1))
    scores = LogprobsLists([[5, 6]], [[-1.0, -0.5]], [2])
    processor.update_from_output(EngineCoreOutput("a", [5], new_logprobs=scores), 1)
    assert processor.logprobs is not None
    assert [(t, e.rank, e.decoded_token) for t, e in processor.logprobs[0].items()] == [(5, 2, None), (6, 1, None)]


def test_a_prompt_that_is_told_again_changes_nothing() -> None:
    processor = LogprobsProcessor(None, SamplingParams(prompt_logprobs=0))
    for score in (-1.0, -1.0001):
        prompt = LogprobsLists([[5]], [[score]], [1])
        processor.update_from_output(EngineCoreOutput("a", [7], new_prompt_logprobs=prompt), 1)
    told = processor.take_prompt_logprobs(once=True)
    assert told is not None
    assert told[1] is not None
    assert (len(told), told[1][5].logprob) == (2, -1.0)
    processor.update_from_output(EngineCoreOutput("a", [7], new_prompt_logprobs=prompt), 2)
    assert processor.take_prompt_logprobs(once=True) == [], "deltas have it already"


def test_scores_of_chosen_tokens_come_in_the_order_asked_whoever_else_is_in_the_batch(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **SMALL, max_logprobs=-1)
    plain = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    asks = [{"logprobs": -1}, {"logprob_token_ids": [9, 4, 30]}, {"logprobs": 2}, {"logprob_token_ids": [7]}, {}]
    every, three, two, one, none = (
        output.outputs[0].logprobs
        for output in llm.generate(
            [LONG] * 5,
            [msgspec.structs.replace(plain, **ask) for ask in asks],  # type: ignore[arg-type]
        )
    )
    assert every is not None and three is not None and two is not None and one is not None  # noqa: PT018
    assert none is None
    for all_of, *told in zip(every, three, two, one, strict=True):
        sampled = next(iter(all_of))
        assert [list(position) for position in told[::2]] == [
            list(dict.fromkeys([sampled, *ids])) for ids in ([9, 4, 30], [7])
        ]
        assert len(told[1]) == 2
        for position in told:
            for token_id, entry in position.items():
                assert entry.logprob == pytest.approx(all_of[token_id].logprob, abs=1e-4)
    assert [entry.rank for entry in list(three[0].values())[1:]] == [1, 2, 3], "as in vLLM: their places in the list"


def test_flat_scores_are_the_same_scores(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **SMALL)
    [listed], [flat] = (llm.generate([LONG], msgspec.structs.replace(ASKS, flat_logprobs=f)) for f in (False, True))
    for a, b in (
        (listed.outputs[0].logprobs, flat.outputs[0].logprobs),
        (listed.prompt_logprobs, flat.prompt_logprobs),
    ):
        assert isinstance(b, FlatLogprobs)
        assert a is not None
        assert [position or {} for position in a] == list(b)
        assert list(b[2:5]) == [position or {} for position in a[2:5]]
        assert list(b[:2] + b[2:]) == list(b)
        assert b[-1] == a[-1]


def test_flat_deltas_add_up() -> None:
    flat = LogprobsProcessor(None, SamplingParams(logprobs=1, flat_logprobs=True))
    for token_id in (5, 6):
        scores = LogprobsLists([[token_id, 5]], [[-1.0, -0.5]], [1])
        flat.update_from_output(EngineCoreOutput("a", [token_id], new_logprobs=scores), token_id - 4)
    assert isinstance(flat.logprobs, FlatLogprobs)
    first = CompletionOutput(0, "", [5], logprobs=flat.logprobs[:1])
    first.extend(CompletionOutput(0, "", [6], logprobs=flat.logprobs[1:]))
    assert first.logprobs == flat.logprobs
    assert flat.logprobs.token_ids == [5, 5, 6, 5], "like vLLM: the token itself stays beside the likeliest"
