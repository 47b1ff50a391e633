"""What a request asks of the sampler holds however its plans cut, preempt or draft it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from minivllm.config import BatchKind
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from minivllm.sampling_params import SamplingParams
from tests.models.forward import all_logits
from tests.sample import reference
from tests.sample.reference import Row
from tests.worker.driver import PlanDriver, make_worker

PROMPT = [5, 17, 3, 88, 41, 9, 60, 2, 33, 71, 12, 54, 8]
BATCHES: list[BatchKind] = ["slots", "rows"]
PENALTIES = SamplingParams(
    temperature=0.0, repetition_penalty=1.8, frequency_penalty=1.5, presence_penalty=0.5, logprobs=2, prompt_logprobs=3
)
RULES: dict[str, SamplingParams] = {
    "penalties": PENALTIES,
    "bad words": SamplingParams(
        temperature=0.0, bad_words_token_ids=tuple((i, j) for i in range(0, 96, 2) for j in range(1, 96, 2))
    ),
    "allowed": SamplingParams(temperature=0.0, allowed_token_ids=tuple(range(20, 40)), presence_penalty=2.0),
    "min tokens": SamplingParams(temperature=0.0, min_tokens=3, all_stop_token_ids=tuple(range(48))),
    "bias": SamplingParams(temperature=0.0, logit_bias={i: 3.0 for i in range(30)}, frequency_penalty=2.0),
}


@pytest.fixture(params=BATCHES)
def driver(request: pytest.FixtureRequest, tiny_llama: Path) -> PlanDriver:
    return PlanDriver(make_worker(tiny_llama, request.param))


@pytest.fixture(scope="module")
def expected(tiny_llama: Path) -> dict[str, list[int]]:
    """Eight tokens by each set of rules, each from the whole sequence's logits and the plain reference."""
    model = ModelLoader(find_model(str(tiny_llama))).load(torch.device("cpu"), torch.float32)
    outputs: dict[str, list[int]] = {}
    for name, params in RULES.items():
        output: list[int] = []
        for _ in range(8):
            logits = all_logits(model, PROMPT + output)[-1].tolist()
            left = reference.run(Row(logits, params, PROMPT, output), reference.BEFORE_ARGMAX)
            output.append(left.index(max(left)))
        outputs[name] = output
    assert len({tuple(output) for output in outputs.values()}) == len(RULES), "every rule changes the output"
    return outputs


@pytest.mark.parametrize("name", RULES)
def test_rules_see_the_prompt_and_the_output_so_far(
    driver: PlanDriver, expected: dict[str, list[int]], name: str
) -> None:
    driver.add("plain", PROMPT[:7])
    driver.add("a", PROMPT, RULES[name])
    driver.prefill("plain", "a")
    for _ in range(7):
        driver.step({"plain": 1, "a": 1})
    assert driver.output("a") == expected[name]


@pytest.mark.parametrize("name", RULES)
def test_a_preempted_request_goes_on_with_the_right_counts(
    driver: PlanDriver, expected: dict[str, list[int]], name: str
) -> None:
    driver.add("a", PROMPT, RULES[name])
    driver.add("b", PROMPT[:5])
    driver.prefill("a", "b")
    driver.decode("a", 3)
    driver.step({"b": 1}, preempt={"a"})
    driver.step({"b": 1})
    driver.step({"a": 4})
    driver.prefill("a")
    assert driver.decode("a", 3) == expected[name]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_rules_at_a_draft_see_the_drafts_before_it(
    driver: PlanDriver, expected: dict[str, list[int]], name: str, right: int
) -> None:
    driver.add("a", PROMPT, RULES[name])
    driver.prefill("a")
    drafts = [token if i < right else (token + 1) % 90 for i, token in enumerate(expected[name][1:4])]
    driver.step({"a": 4}, drafts={"a": drafts})
    assert driver.output("a") == expected[name][: 2 + right]
    driver.step({"a": 3}, drafts={"a": [-1, -1]})  # drafts that nobody knows yet
    assert driver.decode("a", 5 - right) == expected[name]


def scores_of(driver: PlanDriver, req_id: str) -> tuple[Any, ...]:
    prompt = driver.prompt_logprobs[req_id]
    return prompt.logprob_token_ids, prompt.logprobs, driver.logprobs.get(req_id), driver.ranks.get(req_id)


def assert_close(ours: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """Token ids and ranks equal, scores up to rounding."""
    assert ours[0] == expected[0]
    assert ours[3] == expected[3]
    for mine, theirs in ((ours[1], expected[1]), (ours[2], expected[2])):
        assert [x for row in mine for x in row] == pytest.approx([x for row in theirs for x in row], abs=1e-4)


@pytest.fixture(scope="module")
def whole(tiny_llama: Path) -> tuple[Any, ...]:
    driver = PlanDriver(make_worker(tiny_llama))
    driver.add("a", PROMPT, PENALTIES)
    driver.prefill("a")
    driver.decode("a", 5)
    return scores_of(driver, "a")


def test_prompt_scores_are_those_of_the_logits(tiny_llama: Path, whole: tuple[Any, ...]) -> None:
    model = ModelLoader(find_model(str(tiny_llama))).load(torch.device("cpu"), torch.float32)
    logprobs = all_logits(model, PROMPT).log_softmax(dim=-1)
    token_ids, scores = whole[:2]
    assert [row[0] for row in token_ids] == PROMPT[1:]
    for position, (ids, values) in enumerate(zip(token_ids, scores, strict=True)):
        assert values == pytest.approx(logprobs[position, ids].tolist(), abs=1e-4)
        assert sorted(ids[1:]) == sorted(logprobs[position].topk(3).indices.tolist())


@pytest.mark.parametrize("chunk", [1, 4, 5, 12])
def test_scores_of_chunks_are_those_of_the_whole(driver: PlanDriver, whole: tuple[Any, ...], chunk: int) -> None:
    driver.add("a", PROMPT, PENALTIES)
    while (left := driver.debt("a")) > chunk:
        output = driver.step({"a": chunk})
        assert output.logprobs is output.prompt_logprobs_dict is None, "nothing is told before there is a token"
    driver.step({"a": left})
    driver.decode("a", 5)
    assert_close(scores_of(driver, "a"), whole)


@pytest.mark.parametrize("computed", [2, 12])
def test_scores_of_a_prompt_that_was_interrupted(driver: PlanDriver, whole: tuple[Any, ...], computed: int) -> None:
    driver.add("a", PROMPT, PENALTIES)
    driver.step({"a": computed})
    driver.step({}, preempt={"a"})
    driver.step({"a": 5})
    driver.prefill("a")
    driver.decode("a", 2)
    driver.step({}, preempt={"a"})
    driver.step({"a": 14})  # over the end of the prompt, and not to the end of the output
    driver.prefill("a")
    driver.decode("a", 2)
    assert_close(scores_of(driver, "a"), whole)


def test_scores_of_drafts_that_stand_and_of_none_that_do_not(driver: PlanDriver, whole: tuple[Any, ...]) -> None:
    driver.add("before", PROMPT[:4], SamplingParams(temperature=0.0, logprobs=1))
    driver.add("a", PROMPT, PENALTIES)
    driver.add("after", PROMPT[:6], SamplingParams(temperature=0.0, logprobs=0))
    driver.prefill("before", "a", "after")
    output = driver.decode("a", 5)[:6]
    driver.add("b", PROMPT, PENALTIES)
    driver.prefill("b")
    driver.step({"before": 1, "b": 4, "after": 1}, drafts={"b": [output[1], output[2], (output[3] + 1) % 90]})
    assert driver.output("b") == output[:4]
    driver.step({"b": 3}, drafts={"b": [(output[4] + 1) % 90, 3]})
    driver.decode("b", 1)
    assert_close(scores_of(driver, "b"), whole)
    assert [len(row) for row in driver.logprobs["before"]] == [2, 2]
    assert [len(row) for row in driver.logprobs["after"]] == [1, 1]


def test_a_prompt_of_one_token_has_no_scores(driver: PlanDriver) -> None:
    driver.add("a", [7], PENALTIES)
    driver.prefill("a")
    assert driver.prompt_logprobs["a"].logprobs == []


def test_what_was_collected_goes_with_its_request(driver: PlanDriver) -> None:
    driver.add("a", PROMPT, PENALTIES)
    driver.step({"a": 5})
    driver.finish("a")
    driver.step({})
    assert not driver.worker.runner.prompt_logprobs_worker._collected


def test_nobody_asks_nothing_crosses(driver: PlanDriver) -> None:
    driver.add("a", PROMPT)
    output = driver.prefill("a")
    assert output.logprobs is output.prompt_logprobs_dict is None
