"""Steps that are planned, staged and launched before the tokens of the step before them are known: the same tokens.

The engine core, the scheduler, the runner, the slots' mirror and the copies are real; the device is `fake_device`.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from minivllm.core.integrity import check_integrity
from minivllm.core.messages import EngineCoreRequest
from minivllm.engine.core import EngineCore
from minivllm.executor.uniproc import LateOutput, UniProcExecutor
from minivllm.kernels.triton_guard import HAS_TRITON
from minivllm.sampling_params import SamplingParams
from minivllm.worker.prepared_batch import PreparedBatch, prepare
from tests.core.building import core_request, make_config
from tests.worker.fake_device import VOCAB_SIZE, make_runner, next_token

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed on this machine")
SYSTEM_PROMPT = [0, 1, 4, 0, 3, 1, 1, 2, 2, 0, 4, 4]
# What makes a step sample with the host: a bias that changes nothing, a least length, scores, words to look out for.
WAYS: list[dict[str, Any]] = [
    {},
    {},
    {},
    {"temperature": 0.7, "seed": 3},
    {"logit_bias": {0: 1e-3}},
    {"min_tokens": 2, "all_stop_token_ids": (VOCAB_SIZE,)},
    {"logprobs": 1},
    {"prompt_logprobs": 0, "skip_reading_prefix_cache": True},
    {"bad_words_token_ids": ((1, 2), (3, 0))},
    {"bad_words_token_ids": ((4, 1), (0, 3), (2, 4))},
]


class Executor(UniProcExecutor):
    """The real one, with a runner of its own for a worker."""

    def __init__(self, runner: Any, num_gpu_blocks: int) -> None:
        self.worker = runner
        self.num_gpu_blocks = num_gpu_blocks


def make_core(monkeypatch: Any, disable_cascade_attn: bool = False, **settings: Any) -> EngineCore:
    config = make_config(**settings)
    config = replace(config, model_config=replace(config.model_config, disable_cascade_attn=disable_cascade_attn))
    runner = make_runner(config, monkeypatch)
    return EngineCore(config, Executor(runner, config.cache_config.num_gpu_blocks or 0))


def expected(request: EngineCoreRequest) -> list[int]:
    """What the model gives to a request that is alone in the world, up to its end."""
    tokens, params = list(request.prompt_token_ids), request.sampling_params
    output: list[int] = []
    while len(output) < (params.max_tokens or 0):
        token = next_token(tokens + output)
        if (*output[-1:], token) in params.bad_words_token_ids:
            token = 0 if token else 1  # all others are equally likely, and the lowest is taken
        output.append(token)
        if output[-1] in params.stop_token_ids and len(output) >= params.min_tokens:
            break
    return output


ARRAYS = ("places", "query_start_loc", "num_scheduled", "seq_lens", "positions", "input_ids", "slot_mapping",
          "block_table", "logits_indices", "samples", "generations")  # fmt: skip


def expect_batches_as_if_made_anew(core: EngineCore, monkeypatch: Any) -> list[bool]:
    """Compare each batch that follows from the one before with one made from the plan, and its rows on the device.

    Returns:
        Of each step, whether its batch follows.
    """
    runner: Any = core.model_executor.worker  # type: ignore[attr-defined]
    prepare_batch, update, follows = runner._prepare, runner._mirror.update, []

    def checked_prepare(plan: Any) -> PreparedBatch:
        batch: PreparedBatch = prepare_batch(plan)
        follows.append(batch.follows)
        if batch.follows:
            anew = prepare(plan, runner.batch, runner.attention.name)
            anew.prefix_tokens = runner._shared_prefix(plan, anew)
            anew.generations = runner._mirror.generation[anew.places]
            assert (runner._way, runner.last_dispatch) == runner._dispatch(anew)
            for name in ARRAYS:
                one, other = getattr(batch, name), getattr(anew, name)
                assert np.array_equal(one, other), name
                assert one.dtype == other.dtype, name
            for name in ("req_ids", "req_id_to_index", "num_tokens", "longest", "all_sample", "drafts", "has_drafts"):
                assert getattr(batch, name) == getattr(anew, name), name
            assert (batch.prefix_tokens, batch.takes) == (anew.prefix_tokens, runner._mirror.takes)
        return batch

    def checked_update(batch: PreparedBatch) -> None:
        known = runner._mirror._known_blocks[batch.places].copy()
        update(batch)
        if batch.follows:
            requests, table = len(batch.places), runner.batch.columns.block_table
            rows = runner._step._staged.on_device[:, :requests].numpy()
            slots, computed, scheduled, sampled_slots, new_index, new_block, _ = rows
            has_new = table.num_blocks[batch.places] == known + 1
            assert slots.tolist() == sampled_slots.tolist() == batch.places.tolist()
            assert computed.tolist() == batch.positions.tolist()
            assert scheduled.tolist() == [1] * requests
            assert new_index.tolist() == np.where(has_new, known, -1).tolist()
            assert new_block[has_new].tolist() == table.ids[batch.places, known - 1 + has_new][has_new].tolist()
            assert runner._step._staged.on_device[6, 0] == batch.prefix_tokens
            assert not runner._step._staged.on_device[2, requests:].any(), "behind them stands padding"

    monkeypatch.setattr(runner, "_prepare", checked_prepare)
    monkeypatch.setattr(runner._mirror, "update", checked_update)
    return follows


def random_request(rng: random.Random, name: str) -> EngineCoreRequest:
    shared = SYSTEM_PROMPT[: rng.choice([0, 3, 8, 12])]
    prompt = shared + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 6))]
    sampling = {"temperature": 0.0, "max_tokens": rng.randint(2, 9), **rng.choice(WAYS)}
    if rng.random() < 0.5 and "min_tokens" not in sampling:
        sampling["stop_token_ids"] = (rng.randrange(VOCAB_SIZE),)
    return EngineCoreRequest(name, prompt, SamplingParams(**sampling))


SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 200))]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_use_gives_everybody_the_tokens_of_a_request_alone(seed: int, is_async: bool, monkeypatch: Any) -> None:
    rng = random.Random(seed)
    core = make_core(
        monkeypatch,
        async_scheduling=is_async,
        max_num_seqs=rng.choice([1, 2, 5]),
        max_model_len=32,
        max_num_batched_tokens=rng.choice([5, 9, 40]),
        block_size=rng.choice([1, 2, 4]),
        num_gpu_blocks=1 + 32 + rng.choice([0, 5, 60]) if seed % 2 else 34,
        enable_prefix_caching=rng.random() < 0.7,
        scheduler_reserve_full_isl=rng.random() < 0.5,
        policy=rng.choice(["fcfs", "priority"]),
    )
    expect_batches_as_if_made_anew(core, monkeypatch)
    asked: dict[str, EngineCoreRequest] = {}
    got: dict[str, list[int]] = {}
    left: set[str] = set()
    for _ in range(300):
        what = rng.random()
        if what < 0.3 and len(asked) < 25:
            request = random_request(rng, f"R{len(asked)}")
            asked[request.request_id], got[request.request_id] = request, []
            core.add_request(request)
        elif what < 0.34 and asked:
            left.update(core.abort_requests([rng.choice(list(asked))]))
        elif what < 0.37:
            core.reset_prefix_cache(reset_running_requests=rng.random() < 0.5)
        outputs = core.step()
        check_integrity(core.scheduler)
        for output in outputs.outputs if outputs else []:
            got[output.request_id] += output.new_token_ids
            if output.new_prompt_logprobs is not None:
                prompt = asked[output.request_id].prompt_token_ids
                assert len(output.new_prompt_logprobs.logprobs) == len(prompt) - 1
        if len(asked) == 25 and not core.has_work():
            break
    assert not core.has_work(), "everybody came to an end"
    for name, request in asked.items():
        tokens = expected(request)
        assert got[name] == (tokens[: len(got[name])] if name in left else tokens), name
    runner: Any = core.model_executor.worker  # type: ignore[attr-defined]
    assert not runner._in_flight
    assert not runner.batch._slots, "the worker has heard of every end"


def test_decodes_that_share_a_prefix_read_it_in_the_first_one_s_blocks(monkeypatch: Any) -> None:
    """Any length of it, in steps of decodes and beside prompts; when the last who shares it is alone, no more."""
    core = make_core(monkeypatch, async_scheduling=True, block_size=4, max_num_batched_tokens=20)
    runner: Any = core.model_executor.worker  # type: ignore[attr-defined]
    staged: list[tuple[int, int, str]] = []
    stage = runner._step.stage

    def spy(slots: Any, computed: Any, scheduled: Any, samples: Any, *others: Any) -> None:
        staged.append((len(slots), others[-1], runner.last_dispatch.reason))
        stage(slots, computed, scheduled, samples, *others)

    monkeypatch.setattr(runner._step, "stage", spy)
    prompts = {"a": [*SYSTEM_PROMPT, 1], "b": [*SYSTEM_PROMPT, 2], "c": [*SYSTEM_PROMPT[:8], 4, 4, 4, 4]}
    requests = [core_request(name, prompt, max_tokens=12 - 3 * i) for i, (name, prompt) in enumerate(prompts.items())]
    got: dict[str, list[int]] = {name: [] for name in prompts}

    def steps(count: int) -> None:
        for _ in range(count):
            outputs = core.step()
            for output in outputs.outputs if outputs else []:
                got[output.request_id] += output.new_token_ids

    core.add_request(requests[0])
    core.add_request(requests[1])
    steps(3)
    core.add_request(requests[2])
    steps(30)
    assert not core.has_work()
    assert got == {request.request_id: expected(request) for request in requests}
    lengths = [prefix for _, prefix, _ in staged]
    assert {prefix for count, prefix, _ in staged if count == 3} == {8}
    assert {12, 8} <= set(lengths)
    assert lengths[0] == lengths[-1] == 0, "neither prompts nor a single decode share"
    for _, prefix, reason in staged:
        assert (f"decodes share a prefix of {prefix} tokens" in reason) == (prefix > 0)


def test_decodes_that_share_have_graphs_of_their_own(monkeypatch: Any) -> None:
    core = make_core(monkeypatch, async_scheduling=True, block_size=4, max_num_seqs=4)
    runner: Any = core.model_executor.worker  # type: ignore[attr-defined]
    for name in "ab":
        core.add_request(core_request(name, [*SYSTEM_PROMPT, 1], max_tokens=5))
    core.step()
    core.step()
    assert runner._way == "graph"
    assert runner.last_dispatch.shape.with_prefix


def test_cascade_attention_can_be_turned_off(monkeypatch: Any) -> None:
    core = make_core(monkeypatch, async_scheduling=True, block_size=4, disable_cascade_attn=True)
    runner: Any = core.model_executor.worker  # type: ignore[attr-defined]
    for name in "ab":
        core.add_request(core_request(name, [*SYSTEM_PROMPT, 1], max_tokens=5))
    for _ in range(4):
        core.step()
        assert not runner.last_dispatch.shape.with_prefix
        assert "prefix" not in runner.last_dispatch.reason


def test_a_step_is_launched_while_the_tokens_of_the_one_before_are_unknown(monkeypatch: Any) -> None:
    core = make_core(monkeypatch, async_scheduling=True)
    core.add_request(core_request("a", [1, 2, 3], max_tokens=4))
    assert core.step() is None
    runner: Any = core.model_executor.worker  # type: ignore[attr-defined]
    columns = runner.batch.columns
    assert columns.token_ids[0, :4].tolist() == [1, 2, 3, -1], "a placeholder, until somebody asks"
    assert columns.num_tokens[0] == 4
    [(_, future)] = core.batch_queue
    assert isinstance(future, LateOutput)
    outputs = core.step()
    assert outputs is not None
    first = next_token([1, 2, 3])
    assert [output.new_token_ids for output in outputs.outputs] == [[first]]
    assert columns.token_ids[0, :5].tolist() == [1, 2, 3, first, -1], "the next step is under way already"


def test_tokens_that_arrive_late_are_not_noted_for_who_has_the_slot_by_then(monkeypatch: Any) -> None:
    core = make_core(monkeypatch, async_scheduling=True, max_num_seqs=1, enable_prefix_caching=False)
    core.add_request(core_request("gone", [1, 2, 3], max_tokens=9))
    core.step()
    core.abort_requests(["gone"])
    core.add_request(core_request("next", [4, 4, 4, 4, 4], max_tokens=2))
    core.step()  # takes the slot, and then hears of the token of the other one
    columns = core.model_executor.worker.batch.columns  # type: ignore[attr-defined]
    assert columns.token_ids[0, :5].tolist() == [4] * 5


def test_the_last_token_of_the_longest_sequence_is_not_noted_in_the_next_slot(monkeypatch: Any) -> None:
    core = make_core(monkeypatch, async_scheduling=True, max_model_len=8, max_num_batched_tokens=16, block_size=4)
    longest, other = core_request("longest", [1, 2, 3], max_tokens=5), core_request("other", [4, 2], max_tokens=6)
    core.add_request(longest)
    core.add_request(other)
    got: dict[str, list[int]] = {"longest": [], "other": []}
    columns = core.model_executor.worker.batch.columns  # type: ignore[attr-defined]
    while core.has_work():
        outputs = core.step()
        for output in outputs.outputs if outputs else []:
            got[output.request_id] += output.new_token_ids
        assert columns.token_ids[1, :2].tolist() == [4, 2]
    assert got == {request.request_id: expected(request) for request in (longest, other)}


def test_an_output_that_comes_late_tells_its_failure_to_everybody_who_asks(monkeypatch: Any) -> None:
    core = make_core(monkeypatch, async_scheduling=True)
    core.add_request(core_request("broken", [3, 2, 1]))
    runner: Any = core.model_executor.worker  # type: ignore[attr-defined]
    monkeypatch.setattr(runner._step, "sample", lambda *args: runner._step.sampled.fill_(-1))
    core.step()
    [(_, future)] = core.batch_queue
    for _ in range(2):
        assert isinstance(future.exception(), FloatingPointError)
        with pytest.raises(FloatingPointError, match="request broken"):
            future.result()


def test_a_maximum_that_is_no_number_is_told_with_its_request(monkeypatch: Any) -> None:
    core = make_core(monkeypatch, async_scheduling=False)
    core.add_request(core_request("fine", [1, 2, 3]))
    core.add_request(core_request("broken", [3, 2, 1]))
    runner: Any = core.model_executor.worker  # type: ignore[attr-defined]
    sample = runner._step.sample

    def broken(*args: Any) -> None:
        sample(*args)
        runner._step.sampled[runner.last_dispatch.shape.num_requests - 1] = -1

    monkeypatch.setattr(runner._step, "sample", broken)
    with pytest.raises(FloatingPointError, match="request broken: the maximum of its logits is not a finite number"):
        core.step()


def test_a_decode_step_stages_blocks_and_writes_no_slot_anew(monkeypatch: Any) -> None:
    core = make_core(monkeypatch, async_scheduling=True, block_size=2)
    for name in "abc":
        core.add_request(core_request(name, 3, max_tokens=12))
    for _ in range(3):
        core.step()
    runner: Any = core.model_executor.worker  # type: ignore[attr-defined]
    writes: list[Any] = []
    monkeypatch.setattr(runner._step.requests, "place", lambda *args: writes.append(args))
    monkeypatch.setattr(runner._step.requests, "append_blocks", lambda *args: writes.append(args))
    for _ in range(5):
        core.step()
    assert not writes
    known = runner.batch.columns.block_table
    assert np.array_equal(runner._step.requests.table.block_ids[0, :4], known.ids[0, :4])
    assert runner._way == "graph"


def test_a_batch_follows_from_the_one_before_while_the_same_requests_decode_on(monkeypatch: Any) -> None:
    core = make_core(monkeypatch, async_scheduling=True, block_size=4, enable_prefix_caching=False)
    follows = expect_batches_as_if_made_anew(core, monkeypatch)

    def new_steps(count: int) -> list[bool]:
        start = len(follows)
        for _ in range(count):
            core.step()
        return follows[start:]

    core.add_request(core_request("a", 6, max_tokens=30))
    assert new_steps(4) == [False, False, True, True], "the prompt, the first step of decodes, and on"
    core.add_request(core_request("b", 4, max_tokens=5))
    assert new_steps(3) == [False, False, True], "a request arrives"
    assert new_steps(6) == [True, True, False, True, True, True], "and ends"
    core.add_request(core_request("c", 4, max_tokens=30))
    assert new_steps(3) == [False, False, True]
    core.reset_prefix_cache(reset_running_requests=True)
    assert new_steps(4) == [False, False, True, True], "both were preempted, and come back in other slots"
    core.add_request(core_request("d", 4, max_tokens=30, params={"logprobs": 1}))
    assert not any(new_steps(6)), "the host samples"
    core.abort_requests(["d"])
    assert new_steps(3) == [False, True, True]


@pytest.mark.parametrize("can_read_ahead", [True, False])
def test_a_block_that_is_filled_and_hit_in_one_step_is_not_read_ahead(can_read_ahead: bool, monkeypatch: Any) -> None:
    """A request computes the last token of a block in the step in which another begins behind that block."""
    core = make_core(monkeypatch, async_scheduling=False, block_size=4, max_num_batched_tokens=8, max_num_seqs=4)
    runner: Any = core.model_executor.worker  # type: ignore[attr-defined]
    monkeypatch.setattr(runner.attention, "can_read_ahead", lambda *sizes: can_read_ahead)
    third = core_request("c", 9, max_tokens=4)
    second = core_request("b", 8, max_tokens=4)
    second.prompt_token_ids[:] = third.prompt_token_ids[:8]
    core.add_request(core_request("a", 3, max_tokens=20))
    core.step()
    core.add_request(second)
    core.step()  # 7 of its tokens beside a decode
    core.add_request(third)
    outputs = core.step().outputs
    assert list(runner.last_batch.num_scheduled) == [1, 1, 1], "steps as decodes have them"
    assert max(runner.last_batch.seq_lens) == 9, "the third one begins behind 8 tokens"
    assert runner._way == ("device" if can_read_ahead else "graph")
    assert ("read ahead" in runner.last_dispatch.reason) == can_read_ahead
    tokens = {output.request_id: output.new_token_ids for output in outputs}
    assert tokens["c"] == expected(third)[:1]
    core.step()
    assert runner._way == "graph"


def test_no_other_plan_is_taken_for_the_next_one(monkeypatch: Any) -> None:
    core = make_core(monkeypatch, async_scheduling=True, block_size=4, enable_prefix_caching=False)
    for name in "ab":
        core.add_request(core_request(name, 6, max_tokens=30))
    for _ in range(4):
        core.step()
    runner: Any = core.model_executor.worker  # type: ignore[attr-defined]
    latest, plan = runner._latest, core.scheduler.schedule()
    cached = plan.scheduled_cached_reqs
    assert runner._next_of(latest, plan) is not None
    one, both = cached.req_ids[:1], cached.req_ids
    others = [
        replace(plan, total_num_scheduled_tokens=3),
        replace(plan, total_num_scheduled_tokens=3, scheduled_spec_decode_tokens={"a": [1]}),
        replace(plan, total_num_scheduled_tokens=1, scheduled_cached_reqs=replace(cached, req_ids=one)),
        replace(plan, scheduled_cached_reqs=replace(cached, req_ids=[*one, "c"])),
        replace(plan, scheduled_cached_reqs=replace(cached, req_ids=both[::-1])),
        replace(plan, scheduled_cached_reqs=replace(cached, resumed_req_ids={"a"})),
    ]
    assert [runner._next_of(latest, other) for other in others] == [None] * len(others)


def test_arrays_over_tokens_are_made_when_they_are_asked_for_and_stay_true(monkeypatch: Any) -> None:
    core = make_core(monkeypatch, async_scheduling=True, block_size=4)
    core.add_request(core_request("a", 6, max_tokens=30))
    runner: Any = core.model_executor.worker  # type: ignore[attr-defined]
    for _ in range(4):
        core.step()
    batch = runner.last_batch
    assert not {"positions", "input_ids", "slot_mapping", "block_table"} & vars(batch).keys(), "a graph needs none"
    early = batch.describe()
    core.step()
    assert runner.last_batch is not batch
    assert batch.describe() == early
    assert (early.query_start_loc, early.logits_indices) == ([0, 1], [0])


def calls_of_a_decode_step(num_requests: int, monkeypatch: Any) -> int:
    """Python functions that the worker calls for one step of decodes."""
    core = make_core(monkeypatch, async_scheduling=True, max_num_seqs=64, max_num_batched_tokens=640, block_size=16)
    for index in range(num_requests):
        core.add_request(core_request(f"R{index}", 5, max_tokens=40))
    runner: Any = core.model_executor.worker  # type: ignore[attr-defined]
    for _ in range(4):
        core.step()
    assert runner._way == "graph"
    monkeypatch.setattr(runner._graphs, "_run", lambda shape: runner._step.sampled.fill_(1))
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    plan = core.scheduler.schedule()
    sys.setprofile(count)
    runner.execute_model(plan)
    output = runner.sample_tokens()
    runner.finish(output)
    sys.setprofile(None)
    return calls


def test_the_worker_calls_no_function_per_request_in_a_step_of_decodes(monkeypatch: Any) -> None:
    assert calls_of_a_decode_step(60, monkeypatch) == calls_of_a_decode_step(3, monkeypatch)
