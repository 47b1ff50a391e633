"""What generation promises, whatever the engine does inside: the same tokens in every mode, and nothing left behind."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from minivllm import LLM, SamplingParams
from minivllm.models.errors import ModelError

PROMPTS = [
    "Once upon a time",
    "The little dog was very happy because",
    "One day, a girl named Lucy went to the park with her mom. They saw a big tree and a small bird.",
    "It was",
    "A",
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SMALL = {"max_model_len": 256, "num_gpu_blocks_override": 129, "block_size": 4}


def tokens(llm: LLM, prompts: list[Any], params: SamplingParams | list[SamplingParams] = GREEDY) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> list[list[int]]:
    """Each prompt alone, in whole chunks, with nothing cached."""
    llm = LLM(model=str(tiny_model), **SMALL, enable_prefix_caching=False)
    return [tokens(llm, [prompt])[0] for prompt in PROMPTS]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="together"),
        pytest.param({"batch": "rows"}, id="rows"),
        pytest.param({"async_scheduling": True}, id="async"),
        pytest.param({"async_scheduling": True, "batch": "rows"}, id="async rows"),
        pytest.param({"max_num_batched_tokens": 8, "max_num_seqs": 3}, id="small chunks"),
        pytest.param({"long_prefill_token_threshold": 5}, id="chunk limit"),
        pytest.param({"enable_prefix_caching": False}, id="no cache"),
        pytest.param({"block_size": 1}, id="block size 1"),
        pytest.param({"block_size": 32}, id="block size 32"),
        pytest.param({"num_gpu_blocks_override": 20, "scheduler_reserve_full_isl": False}, id="preempted"),
        pytest.param({"num_gpu_blocks_override": 20, "async_scheduling": True}, id="preempted async"),
        pytest.param({"num_gpu_blocks_override": 20, "batch": "rows"}, id="preempted rows"),
    ],
)
def test_greedy_tokens_do_not_depend_on_how_they_are_computed(
    tiny_model: Path, reference: list[list[int]], settings: dict[str, Any]
) -> None:
    llm = LLM(model=str(tiny_model), **{**SMALL, **settings})
    assert tokens(llm, PROMPTS) == reference
    if settings.get("num_gpu_blocks_override") == 20:
        preempted = LLM(model=str(tiny_model), **{**SMALL, **settings}).llm_engine
        for i, prompt in enumerate(PROMPTS):
            preempted.add_request(str(i), prompt, GREEDY)
        requests = list(preempted.engine_core.scheduler.requests.values())
        while preempted.has_unfinished_requests():
            preempted.step()
        assert any(request.num_preemptions for request in requests), "the setting is meant to run out of blocks"


def test_a_repeated_prompt_comes_from_the_cache_with_the_same_tokens(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **SMALL)
    [cold] = llm.generate([PROMPTS[2]], GREEDY)
    [warm] = llm.generate([PROMPTS[2]], GREEDY)
    assert cold.num_cached_tokens == 0
    # Whole blocks, and never the last token: its logits are needed.
    assert warm.num_cached_tokens == (len(warm.prompt_token_ids) - 1) // 4 * 4
    assert warm.outputs[0].token_ids == cold.outputs[0].token_ids


def test_a_seeded_draw_does_not_depend_on_the_batch(tiny_model: Path) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=16, seed=7, ignore_eos=True)
    llm = LLM(model=str(tiny_model), **SMALL)
    alone = tokens(llm, [PROMPTS[1]], params)[0]
    others = [SamplingParams(temperature=1.0, max_tokens=16, seed=i, ignore_eos=True) for i in range(4)]
    together = tokens(llm, [*PROMPTS[:1], PROMPTS[1], *PROMPTS[2:]], [others[0], params, *others[1:]])[1]
    assert alone == together
    assert alone != tokens(llm, [PROMPTS[1]], others[0])[0]


def test_outputs_come_in_the_order_of_the_prompts_and_text_is_what_the_tokens_say(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **SMALL)
    lengths = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (9, 1, 5, 2, 7)]
    outputs = llm.generate(PROMPTS, lengths)
    assert [output.prompt for output in outputs] == PROMPTS
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 1, 5, 2, 7]
    for output in outputs:
        whole = llm.get_tokenizer().decode(output.outputs[0].token_ids)
        assert output.outputs[0].text == whole.rstrip("\ufffd")
        assert (output.finished, output.outputs[0].finish_reason) == (True, "length")


def test_a_stop_id_counts_as_a_token_and_is_no_text(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **SMALL)
    full = tokens(llm, ["Once upon a time"])[0]
    stop = full[5]
    first = full.index(stop)
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, stop_token_ids=(stop,))
    [output] = llm.generate("Once upon a time", params)
    completion = output.outputs[0]
    assert completion.token_ids == full[: first + 1]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert completion.text == llm.get_tokenizer().decode(full[:first]).rstrip("\ufffd")


def test_the_end_of_sequence_token_ends_a_request_without_a_stop_reason(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **SMALL)
    engine = llm.llm_engine
    full = tokens(llm, ["It was"])[0]
    engine.input_processor.eos_token_ids = [full[3]]
    [output] = llm.generate("It was", SamplingParams(temperature=0.0, max_tokens=24))
    completion = output.outputs[0]
    assert completion.token_ids == full[: full.index(full[3]) + 1]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)


def test_no_limit_means_up_to_the_models_length(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), max_model_len=32, num_gpu_blocks_override=33, block_size=4)
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    [output] = llm.generate("It was", params)
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 32
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("", GREEDY, "the prompt is empty"),
        ({"prompt_token_ids": [1.7, 2]}, GREEDY, "prompt_token_ids is a list of whole numbers, got [1.7, 2]"),
        ({"prompt_token_ids": [True]}, GREEDY, "prompt_token_ids is a list of whole numbers"),
        ({"prompt_token_ids": 5}, GREEDY, "prompt_token_ids is a list of whole numbers, got 5"),
        ({"prompt_token_ids": []}, GREEDY, "the prompt is empty"),
        ({"prompt_token_ids": [1, 512]}, GREEDY, "token id 512 at position 1 of the prompt is out of range"),
        ({"prompt_token_ids": [-1]}, GREEDY, "token id -1 at position 0"),
        ({"prompt_token_ids": [1] * 256}, GREEDY, "the prompt has 256 tokens, and max_model_len 256 leaves no room"),
        ("a", SamplingParams(stop_token_ids=(512,)), "stop token id 512 is out of range"),
        (7, GREEDY, "a prompt is text or"),
        ({"prompt": "a", "cache_salt": 5}, GREEDY, "cache_salt must be a text in UTF-8, got 5"),
        ({"prompt": "a", "cache_salt": "\ud800"}, GREEDY, "cache_salt must be a text in UTF-8, got '\\ud800'"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused_and_harms_nobody(
    tiny_model: Path, prompt: Any, params: SamplingParams, message: str
) -> None:
    llm = LLM(model=str(tiny_model), **SMALL)
    with pytest.raises(ValueError, match=re.escape(message)):
        llm.generate(["It was", prompt], [GREEDY, params])
    scheduler = llm.llm_engine.engine_core.scheduler
    assert not scheduler.requests
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.generate("It was", GREEDY)[0].finished


def test_an_error_in_the_middle_leaves_nothing_behind(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(model=str(tiny_model), **SMALL)
    expected = tokens(llm, PROMPTS)
    calls = iter(range(100))

    def failing_step(step: Any = llm.llm_engine.step) -> Any:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm.llm_engine, "step", failing_step)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, GREEDY)
    monkeypatch.undo()
    scheduler = llm.llm_engine.engine_core.scheduler
    assert not scheduler.requests
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 128
    assert tokens(llm, PROMPTS) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_len": 5000}, r"max_model_len \(5000\) must not exceed what the model was made for \(4096"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"max_num_batched_tokens": 16, "max_num_seqs": 32}, "must be at least max_num_seqs"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 64}, "without chunked prefill"),
        ({"scheduling_policy": "lifo"}, "policy must be 'fcfs' or 'priority', got 'lifo'"),
        ({"batch": "columns"}, "batch must be 'slots' or 'rows'"),
        ({"watermark": 1.0}, r"watermark must be in \[0, 1\)"),
        ({"dtype": "int4"}, "dtype must be"),
    ],
)
def test_contradictory_settings_are_refused_before_anything_is_loaded(
    tiny_model: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(model=str(tiny_model), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_cache_memory_bytes": 10**15}, r"KV blocks take .* MiB are missing; lower num_gpu_blocks_override or kv_"),
        ({"num_gpu_blocks_override": 10**12}, r"^1000000000000 KV blocks take .* lower num_gpu_blocks_override"),
        ({"max_num_seqs": 10**9, "max_num_batched_tokens": 10**9}, r"max_num_seqs \(1000000000\) sequences of"),
        ({"max_num_seqs": 10**12}, r"max_num_seqs must be at most 2147483647, got 1000000000000"),
    ],
)
def test_what_no_memory_can_hold_is_told_by_its_setting(
    tiny_model: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, MemoryError), match=message):
        LLM(model=str(tiny_model), **settings)


def test_an_unknown_setting_is_told_with_the_known_ones(tiny_model: Path) -> None:
    with pytest.raises(
        TypeError, match="unknown engine argument 'swap_space'; known are async_scheduling, attention_backend"
    ):
        LLM(model=str(tiny_model), swap_space=0.9)


def test_an_unknown_model_is_told_with_the_known_names() -> None:
    with pytest.raises(ModelError, match=r"no model 'gpt-17'.*stories-5m, smollm2"):
        LLM(model="gpt-17")


def test_priority_goes_first_when_places_are_few(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **SMALL, scheduling_policy="priority", max_num_seqs=1)
    engine = llm.llm_engine
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    for request_id, priority in (("low", 2), ("high", 0), ("middle", 1)):
        engine.add_request(request_id, "It was", params, priority=priority)
    order = []
    while engine.has_unfinished_requests():
        order += [output.request_id for output in engine.step() if output.finished]
    assert order == ["high", "middle", "low"]


def test_arguments_of_a_wrong_kind_are_told_in_one_line(tiny_model: Path) -> None:
    with pytest.raises(TypeError, match="engine argument block_size: expected `int`, got `str`"):
        LLM(model=str(tiny_model), block_size="16")
    llm = LLM(model=str(tiny_model), **SMALL)
    with pytest.raises(ValueError, match="sampling_params is a SamplingParams, or a list"):
        llm.generate("hi", {"max_tokens": 2})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prompts is one prompt or a list of them, got int"):
        llm.generate(5)  # type: ignore[arg-type]
    assert llm.generate("It was", GREEDY)[0].finished


def test_threads_that_share_an_llm_take_turns(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **SMALL)
    expected = tokens(llm, PROMPTS)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda prompt: tokens(llm, [prompt])[0], PROMPTS * 3))
    assert results == expected * 3
