"""Every number of the lesson `mixed-batch` comes out of a run.

The scene, so that anyone can set it up again (chunk limit 256, budget 260, block size 8):

    step 0   W1 arrives: 512 tokens, the first of R1          computes 256 + 256             ends at step 1
    step 2   W2 arrives: 600 tokens, the first of R2          computes 256 + 256 + 88        ends at step 4
    step 5   R0 arrives: 1024 tokens of its own               computes 4 * 256               samples at step 8
    step 9   R1 (2000) and R2 (603) arrive: the mixed batch
"""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from minivllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from minivllm.core.block_hash import get_request_block_hasher
from minivllm.core.messages import EngineCoreRequest
from minivllm.core.request import Request
from minivllm.core.scheduler import Scheduler
from minivllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from minivllm.engine.core import EngineCore
from minivllm.executor.sim import SimExecutor, fake_token_rule
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.driver import Arrival, run
from minivllm.trace.events import EventLog, Header
from minivllm.walkthroughs import find_lesson, lessons
from minivllm.worker.batch_state import BatchState
from minivllm.worker.input_batch import InputBatch
from minivllm.worker.prepared_batch import BatchFacts, prepare
from minivllm.worker.request_columns import RequestColumns
from minivllm.worker.request_slots import RequestSlots

LESSON = find_lesson("mixed-batch")
EXPECTED = LESSON.expected
VOCAB_SIZE = 1000
MAX_NUM_SEQS, MAX_MODEL_LEN = 8, 2048


def tokens(seed: int, count: int) -> list[int]:
    return [(seed * 97 + i * 13) % VOCAB_SIZE for i in range(count)]


PROMPTS = {"W1": tokens(1, 512), "W2": tokens(2, 600), "R0": tokens(3, 1024)}
PROMPTS |= {"R1": PROMPTS["W1"] + tokens(4, 1488), "R2": PROMPTS["W2"] + tokens(5, 3)}
ARRIVAL_STEP = {"W1": 0, "W2": 2, "R0": 5, "R1": 9, "R2": 9}
MAX_TOKENS = {"W1": 1, "W2": 1, "R0": 8, "R1": 4, "R2": 4}


def config(budget: int = EXPECTED["config"]["max_num_batched_tokens"], num_lookahead_tokens: int = 0) -> VllmConfig:
    return VllmConfig(
        model_config=ModelConfig(model="simulated"),
        scheduler_config=SchedulerConfig(
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=budget,
            max_model_len=MAX_MODEL_LEN,
            long_prefill_token_threshold=EXPECTED["config"]["long_prefill_token_threshold"],
            num_lookahead_tokens=num_lookahead_tokens,
        ),
        cache_config=CacheConfig(
            block_size=EXPECTED["config"]["block_size"], num_gpu_blocks=640, hash_seed=b"mixed batch"
        ),
    )


def new_batch(kind: type[RequestSlots] | type[InputBatch]) -> BatchState:
    columns = RequestColumns(MAX_NUM_SEQS, MAX_MODEL_LEN, EXPECTED["config"]["block_size"], seed=0)
    return kind(columns, MAX_NUM_SEQS)


class ExecutorWithBatches(SimExecutor):
    """The simulator, with the worker's two batches kept beside it."""

    def __init__(self) -> None:
        super().__init__(fake_token_rule(VOCAB_SIZE))
        self.batches = {"rows": new_batch(InputBatch), "slots": new_batch(RequestSlots)}
        self.facts: list[dict[str, BatchFacts]] = []
        self.plans: list[SchedulerOutput] = []
        self.outputs: list[ModelRunnerOutput] = []

    def execute_model(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput | None]:
        future = super().execute_model(scheduler_output)
        self.plans.append(scheduler_output)
        here = {}
        for kind, batch in self.batches.items():
            batch.update(scheduler_output)
            if scheduler_output.num_scheduled_tokens:
                here[kind] = prepare(scheduler_output, batch, "none").describe()
        self.facts.append(here)
        return future

    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        future = super().sample_tokens()
        output = future.result()
        self.outputs.append(output)
        for request_id, new_tokens in zip(output.req_ids, output.sampled_token_ids, strict=True):
            for batch in self.batches.values():
                batch.columns.append_tokens(batch.place_of(request_id), new_tokens)
        return future


@pytest.fixture(scope="module")
def executed() -> ExecutorWithBatches:
    executor = ExecutorWithBatches()
    arrivals = [
        Arrival(
            ARRIVAL_STEP[name],
            EngineCoreRequest(name, prompt, SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS[name])),
        )
        for name, prompt in PROMPTS.items()
    ]
    run(EngineCore(config(), executor), arrivals, EventLog(Header()))
    return executor


def test_the_plan_of_the_mixed_iteration(executed):
    plan = executed.plans[EXPECTED["iteration"]]
    new = {request.req_id: request for request in plan.scheduled_new_reqs}
    cached = plan.scheduled_cached_reqs
    computed = {**dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))}
    computed |= {req_id: request.num_computed_tokens for req_id, request in new.items()}
    assert list(plan.num_scheduled_tokens) == [entry["request"] for entry in EXPECTED["scheduled"]]
    for entry in EXPECTED["scheduled"]:
        req_id = entry["request"]
        assert plan.num_scheduled_tokens[req_id] == entry["num_tokens"]
        assert computed[req_id] == entry["num_computed_before"]
        assert (req_id in new) == (entry["kind"] == "new")
        known = len(PROMPTS[req_id]) + (entry["kind"] == "running")  # R0 has sampled one token
        assert known == entry["num_tokens_known"]
    assert plan.total_num_scheduled_tokens == EXPECTED["config"]["max_num_batched_tokens"]


@pytest.mark.parametrize("kind", ["rows", "slots"])
def test_the_batch_of_the_mixed_iteration(executed, kind):
    facts = executed.facts[EXPECTED["iteration"]][kind]
    assert {name: getattr(facts, name) for name in EXPECTED[kind]} == EXPECTED[kind]


def test_who_samples_and_who_takes_blocks(executed):
    output = executed.outputs[EXPECTED["iteration"]]
    sampled = [i for i, new in zip(output.req_ids, output.sampled_token_ids, strict=True) if new]
    assert sampled == EXPECTED["sampled"]
    plan = executed.plans[EXPECTED["iteration"]]
    block_size = EXPECTED["config"]["block_size"]
    taken = {r.req_id: len(r.block_ids) - r.num_computed_tokens // block_size for r in plan.scheduled_new_reqs}
    taken |= {
        i: len(blocks or [])
        for i, blocks in zip(plan.scheduled_cached_reqs.req_ids, plan.scheduled_cached_reqs.new_block_ids, strict=True)
    }
    assert taken == EXPECTED["blocks_taken"]


def test_the_answer_to_the_question(executed):
    assert executed.plans[EXPECTED["iteration"] + 1].num_scheduled_tokens == {"R0": 1, "R1": 256, "R2": 1}


@pytest.mark.parametrize("budget", [int(budget) for budget in EXPECTED["with_three_drafts"]])
def test_three_drafts_are_four_query_tokens(budget):
    vllm_config = config(budget, num_lookahead_tokens=3)
    scheduler = Scheduler(vllm_config.scheduler_config, vllm_config.cache_config)
    hasher = get_request_block_hasher(vllm_config.cache_config.block_size, b"mixed batch")
    executor = SimExecutor(fake_token_rule(VOCAB_SIZE))

    def add(name: str) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=8)
        scheduler.add_request(Request(name, PROMPTS[name], params, block_hasher=hasher))

    def step() -> SchedulerOutput:
        plan = scheduler.schedule()
        executor.execute_model(plan)
        scheduler.update_from_output(plan, executor.sample_tokens().result())
        return plan

    add("W1")
    while scheduler.has_requests() and scheduler.requests:
        step()
    for name in ("R0", "R2"):
        add(name)
        while scheduler.requests[name].num_output_tokens == 0:
            step()
    add("R1")
    scheduler.update_draft_token_ids({"R2": [1, 2, 3]})
    plan = scheduler.schedule()
    assert plan.num_scheduled_tokens == EXPECTED["with_three_drafts"][str(budget)]
    assert plan.scheduled_spec_decode_tokens == {"R2": [1, 2, 3]}
    if budget == 261:
        batch = new_batch(RequestSlots)
        assert batch.order(plan) == ["R2", "R0", "R1"]


def test_the_text_tells_these_numbers():
    text = " ".join(LESSON.text.split())
    for kind in ("rows", "slots"):
        for name in ("query_start_loc", "seq_lens", "logits_indices"):
            assert f"{name} = {EXPECTED[kind][name]}" in text
    for budget, counts in EXPECTED["with_three_drafts"].items():
        assert f"budget {budget}: R0 {counts['R0']}, R2 {counts['R2']}, R1 {counts['R1']}" in text


def test_every_lesson_has_a_title_and_something_to_show():
    for lesson in lessons():
        assert lesson.title
        assert lesson.minutes > 0
        assert lesson.scenario
        assert lesson.expected["scheduled"]
    with pytest.raises(KeyError, match="mixed-batch"):
        find_lesson("nothing")
