"""The runner's output depends on the requests, not on how the plans cut them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minivllm.config import BatchKind
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from minivllm.sampling_params import SamplingParams
from tests.models.forward import all_logits
from tests.worker.driver import PlanDriver, make_worker

PROMPT = [5, 17, 3, 88, 41, 9, 60, 2, 33, 71, 12, 54, 8]
BATCHES: list[BatchKind] = ["slots", "rows"]


@pytest.fixture(params=BATCHES)
def driver(request: pytest.FixtureRequest, tiny_llama: Path) -> PlanDriver:
    return PlanDriver(make_worker(tiny_llama, request.param))


@pytest.fixture(scope="module")
def greedy_output(tiny_llama: Path) -> list[int]:
    """Eight greedy tokens after PROMPT, each from the logits of the whole sequence."""
    model = ModelLoader(find_model(str(tiny_llama))).load(torch.device("cpu"), torch.float32)
    tokens = list(PROMPT)
    for _ in range(8):
        tokens.append(int(all_logits(model, tokens)[-1].argmax()))
    return tokens[len(PROMPT) :]


def test_decoding_equals_recomputing_everything(driver: PlanDriver, greedy_output: list[int]) -> None:
    driver.add("a", PROMPT)
    driver.prefill("a")
    assert driver.decode("a", 7) == greedy_output


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 12])
def test_a_prompt_in_chunks_samples_once_and_the_same(driver: PlanDriver, greedy_output: list[int], chunk: int) -> None:
    driver.add("a", PROMPT)
    while (left := driver.debt("a")) > chunk:
        assert driver.step({"a": chunk}).sampled_token_ids == [[]]
    assert driver.step({"a": left}).sampled_token_ids == [greedy_output[:1]]
    assert driver.decode("a", 7) == greedy_output


@pytest.mark.parametrize("hit", [4, 8, 12])
def test_a_prefix_hit_gives_the_tokens_of_the_whole_prompt(
    driver: PlanDriver, greedy_output: list[int], hit: int
) -> None:
    driver.add("a", PROMPT)
    driver.prefill("a")
    driver.add("b", PROMPT)
    driver.share_prefix("b", "a", hit)
    driver.prefill("b")
    assert driver.decode("b", 7) == greedy_output


def test_a_preempted_request_goes_on_where_it_was(driver: PlanDriver, greedy_output: list[int]) -> None:
    driver.add("a", PROMPT)
    driver.add("b", PROMPT[:5])
    driver.prefill("a", "b")
    driver.decode("a", 3)
    driver.step({"b": 1}, preempt={"a"})
    driver.step({"b": 1})
    driver.prefill("a")  # prompt and output, in other blocks
    assert driver.decode("a", 3) == greedy_output


def test_a_resumed_request_takes_the_tokens_that_the_plan_tells(driver: PlanDriver) -> None:
    driver.add("a", PROMPT)
    driver.prefill("a")
    driver.step({}, preempt={"a"})
    driver.tokens["a"] = [*PROMPT, 7, 7]  # not what was sampled
    driver.prefill("a")
    assert driver.facts.input_ids == [*PROMPT, 7, 7]


def test_a_request_left_out_for_some_steps_goes_on(driver: PlanDriver, greedy_output: list[int]) -> None:
    for name in ("a", "b", "c"):
        driver.add(name, PROMPT)
    driver.prefill("a", "b", "c")
    driver.step({"b": 1})
    driver.step({"c": 1, "b": 1})
    driver.step({"a": 1, "c": 1})
    for name in ("a", "b", "c"):
        assert driver.decode(name, 8 - len(driver.output(name))) == greedy_output


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_drafts_are_kept_up_to_the_first_wrong_one(driver: PlanDriver, greedy_output: list[int], right: int) -> None:
    driver.add("a", PROMPT)
    driver.prefill("a")
    drafts = [token if i < right else (token + 1) % 90 for i, token in enumerate(greedy_output[1:4])]
    output = driver.step({"a": 1 + len(drafts)}, drafts={"a": drafts})
    assert output.sampled_token_ids == [greedy_output[1 : 2 + right]]
    assert driver.decode("a", 6 - right) == greedy_output


def test_unknown_drafts_are_rejected(driver: PlanDriver, greedy_output: list[int]) -> None:
    driver.add("a", PROMPT)
    driver.prefill("a")
    assert driver.step({"a": 4}, drafts={"a": [-1, -1, -1]}).sampled_token_ids == [greedy_output[1:2]]
    assert driver.decode("a", 6) == greedy_output


def test_seeded_draws_are_equal_with_and_without_drafts(driver: PlanDriver) -> None:
    params = SamplingParams(temperature=1.5, seed=11)
    driver.add("plain", PROMPT, params)
    driver.prefill("plain")
    drawn = driver.decode("plain", 7)
    driver.add("drafted", PROMPT, params)
    driver.prefill("drafted")
    driver.step({"drafted": 4}, drafts={"drafted": [drawn[1], drawn[2], 0]})
    assert driver.output("drafted")[:3] == drawn[:3]
    assert driver.decode("drafted", 8 - len(driver.output("drafted"))) == drawn


def test_a_request_without_a_seed_draws_the_same_in_the_next_run(tiny_llama: Path) -> None:
    def run(seed: int) -> list[int]:
        driver = PlanDriver(make_worker(tiny_llama, seed=seed))
        driver.add("a", PROMPT, SamplingParams(temperature=2.0))
        driver.prefill("a")
        return driver.decode("a", 7)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_plan_without_tokens_still_delivers_its_news(driver: PlanDriver) -> None:
    driver.add("a", PROMPT)
    driver.prefill("a")
    driver.finish("a")
    assert driver.step({}).req_ids == []
    driver.finish("a")  # told twice: harmless
    driver.step({})
    driver.add("b", PROMPT)
    driver.prefill("b")
    assert driver.facts.places == [0]


def test_a_step_is_one_execute_and_one_sample(driver: PlanDriver) -> None:
    with pytest.raises(RuntimeError, match="needs an execute_model before it"):
        driver.worker.sample_tokens()
    driver.add("a", PROMPT)
    driver.worker.execute_model(driver.plan({"a": 3}, {}, set()))
    with pytest.raises(RuntimeError, match="called twice without sample_tokens"):
        driver.worker.execute_model(driver.plan({"a": 3}, {}, set()))


def test_the_batch_explains_itself_in_plain_integers(driver: PlanDriver) -> None:
    driver.add("a", PROMPT)
    driver.step({"a": 6})
    facts = driver.facts
    assert facts.order == ["a"]
    assert facts.query_start_loc == [0, 6]
    assert facts.seq_lens == [6]
    assert facts.positions == [0, 1, 2, 3, 4, 5]
    assert facts.input_ids == PROMPT[:6]
    assert facts.block_table == {"a": [1, 2]}
    assert facts.slot_mapping == [4, 5, 6, 7, 8, 9]
    assert facts.logits_indices == [5]
    assert (facts.num_tokens, facts.num_tokens_padded) == (6, 6)
    assert (facts.graph_mode, facts.attention_backend) == ("NONE", "torch_sdpa")


def test_drafts_have_logits_rows_of_their_own(driver: PlanDriver) -> None:
    driver.add("a", PROMPT)
    driver.add("b", PROMPT[:4])
    driver.prefill("a", "b")
    driver.step({"a": 4, "b": 1}, drafts={"a": [1, 2, 3]})
    assert driver.facts.order == ["a", "b"]
    assert driver.facts.query_start_loc == [0, 4, 5]
    assert driver.facts.logits_indices == [0, 1, 2, 3, 4]


def test_pages_are_zeros_whatever_the_memory_held_before(tiny_llama: Path) -> None:
    for size in [64, 256, 1024, 4096, 1 << 16] * 50:
        torch.full((size,), torch.nan)  # freed at once, for the next who asks for memory
    caches = make_worker(tiny_llama, "slots").runner.kv_caches
    assert all(not cache.any() and cache.data_ptr() % 64 == 0 for cache in caches)
