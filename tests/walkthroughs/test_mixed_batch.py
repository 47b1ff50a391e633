"""Every number of the lesson `mixed-batch` comes out of a run of its scenario, with made-up tokens and no model.

Plans depend on how many tokens there are, and on which prefixes are equal, not on what the tokens are: so story token i
of a scenario stands here for a number made from i.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future

import pytest

from minivllm.config import VllmConfig
from minivllm.core.messages import EngineCoreRequest
from minivllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.core import EngineCore
from minivllm.executor.sim import SimExecutor, fake_token_rule
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.driver import Arrival, run
from minivllm.scenarios.registry import Piece, Scenario, ScenarioRequest, get_scenario
from minivllm.trace.events import EventLog, Header
from minivllm.trace.install import Installation
from minivllm.trace.probes import PlanProbes
from minivllm.walkthroughs import find_lesson, lessons
from minivllm.worker.batch_state import BatchState
from minivllm.worker.input_batch import InputBatch
from minivllm.worker.prepared_batch import BatchFacts, prepare
from minivllm.worker.request_columns import RequestColumns
from minivllm.worker.request_slots import RequestSlots

LESSON = find_lesson("mixed-batch")
EXPECTED = LESSON.expected
ITERATION = EXPECTED["iteration"]


def tokens(piece: Piece) -> list[int]:
    return [i * 13 % 997 for i in range(piece.start, piece.start + piece.count)]


def prompt_of(request: ScenarioRequest) -> list[int]:
    return [token for piece in request.prompt for token in tokens(piece)]


def arrival(index: int, request: ScenarioRequest) -> Arrival:
    params = SamplingParams(temperature=0.0, max_tokens=request.max_tokens, **request.sampling)
    core_request = EngineCoreRequest(request.id, prompt_of(request), params, arrival_time=float(index))
    drafts = {step: tokens(piece) for step, piece in request.drafts.items()}
    return Arrival(request.arrival_step, core_request, drafts=drafts)


class ExecutorWithBatches(SimExecutor):
    """The simulator, with the worker's two batches kept beside it."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        super().__init__(fake_token_rule(997))
        self.batches: dict[str, BatchState] = {}
        limits = vllm_config.scheduler_config
        for name, kind in (("rows", InputBatch), ("slots", RequestSlots)):
            columns = RequestColumns(
                limits.max_num_seqs, limits.max_model_len, vllm_config.cache_config.block_size, seed=0
            )
            self.batches[name] = kind(columns, limits.max_num_seqs)
        self.plans: list[SchedulerOutput] = []
        self.facts: list[dict[str, BatchFacts]] = []
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


def execute(scenario: Scenario) -> tuple[ExecutorWithBatches, EventLog]:
    vllm_config = EngineArgs.from_kwargs(**scenario.engine).create_engine_config(max_position_embeddings=4096)
    executor = ExecutorWithBatches(vllm_config)
    log = EventLog(Header())
    arrivals = [arrival(index, request) for index, request in enumerate(scenario.requests)]
    core = EngineCore(vllm_config, executor)
    with Installation(PlanProbes(log).probes()) as installation:
        run(core, arrivals, log)
    assert not installation.failures
    return executor, log


@pytest.fixture(scope="module")
def run_of_the_scenario() -> tuple[ExecutorWithBatches, EventLog]:
    return execute(get_scenario(LESSON.scenario))


@pytest.fixture
def executed(run_of_the_scenario) -> ExecutorWithBatches:
    return run_of_the_scenario[0]


def test_the_plan_of_the_mixed_iteration(executed):
    plan = executed.plans[ITERATION]
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
        num_known = len(new[req_id].prompt_token_ids) if req_id in new else 1020 + 5
        assert num_known == entry["num_tokens_known"]
    assert plan.total_num_scheduled_tokens == EXPECTED["config"]["max_num_batched_tokens"]


@pytest.mark.parametrize("kind", ["rows", "slots"])
def test_the_batch_of_the_mixed_iteration(executed, kind):
    facts = executed.facts[ITERATION][kind]
    assert {name: getattr(facts, name) for name in EXPECTED[kind]} == EXPECTED[kind]


def test_who_samples_and_who_takes_blocks(executed):
    output = executed.outputs[ITERATION]
    sampled = [i for i, new in zip(output.req_ids, output.sampled_token_ids, strict=True) if new]
    assert sampled == EXPECTED["sampled"]
    plan = executed.plans[ITERATION]
    block_size = EXPECTED["config"]["block_size"]
    taken = {r.req_id: len(r.block_ids) - r.num_computed_tokens // block_size for r in plan.scheduled_new_reqs}
    taken |= {
        i: len(blocks or [])
        for i, blocks in zip(plan.scheduled_cached_reqs.req_ids, plan.scheduled_cached_reqs.new_block_ids, strict=True)
    }
    assert taken == EXPECTED["blocks_taken"]


def test_the_answer_to_the_question(executed):
    assert executed.plans[ITERATION + 1].num_scheduled_tokens == EXPECTED["next"]


def test_the_scene_is_the_one_in_the_text(executed):
    engine = get_scenario(LESSON.scenario).engine
    assert get_scenario(LESSON.scenario).look_at == ITERATION
    assert {name: engine[name] for name in EXPECTED["config"]} == EXPECTED["config"]
    before = executed.plans[ITERATION].scheduled_cached_reqs
    assert before.req_ids == ["R0"]
    assert before.num_output_tokens == [5]


def test_why_the_loop_stopped(run_of_the_scenario):
    _, log = run_of_the_scenario
    (decided,) = [e.data for e in log.events if e.kind == "schedule" and e.step == ITERATION]
    assert {name: decided["stop"][name] for name in EXPECTED["stop"]} == EXPECTED["stop"]
    assert [cut["reason"] for cut in decided["cut"] if cut["request"] == "R1"] == ["long_prefill_threshold"]


@pytest.mark.parametrize("budget", [int(budget) for budget in EXPECTED["with_three_drafts"]])
def test_three_drafts_are_four_query_tokens(budget):
    scenario = get_scenario("mixed-batch-drafts")
    scenario = dataclasses.replace(scenario, engine={**scenario.engine, "max_num_batched_tokens": budget})
    executor, _ = execute(scenario)
    plan = executor.plans[ITERATION]
    assert plan.num_scheduled_tokens == EXPECTED["with_three_drafts"][str(budget)]
    assert len(plan.scheduled_spec_decode_tokens["R2"]) == 3
    if budget == 261:
        slots = executor.facts[ITERATION]["slots"]
        assert (slots.order, slots.query_start_loc) == (["R2", "R0", "R1"], [0, 4, 5, 261])
        assert slots.logits_indices == [0, 1, 2, 3, 4, 260]


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
