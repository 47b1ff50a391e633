"""What scripts that were written for vLLM's `LLM` rely on."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from minivllm import LLM, SamplingParams

SMALL = {"max_model_len": 256, "num_gpu_blocks_override": 129, "block_size": 4}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return LLM(model=str(tiny_model), **SMALL)


def test_every_form_of_a_prompt_gives_the_same(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("Once upon")
    forms: list[Any] = ["Once upon", {"prompt": "Once upon"}, {"prompt_token_ids": ids}]
    outputs = llm.generate([*forms, {"prompt": "Once upon", "prompt_token_ids": ids}], GREEDY, use_tqdm=False)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert [output.prompt for output in outputs] == ["Once upon", "Once upon", None, "Once upon"]
    assert [output.outputs[0].text for output in llm.generate(forms[1], GREEDY)] == [outputs[0].outputs[0].text]


@pytest.mark.parametrize("prompt", [{}, {"prompt": 7}, {"prompt_token_ids": [1], "multi_modal_data": {}}, 7, None])
def test_what_is_no_prompt_is_refused(llm: LLM, prompt: Any) -> None:
    with pytest.raises(ValueError, match=r"a prompt (is text or|has no)"):
        llm.generate([prompt], GREEDY)


def test_several_completions_come_as_one_output(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=8, ignore_eos=True)
    first, second = llm.generate(["It was", "A"], params)
    assert [completion.index for completion in first.outputs] == [0, 1, 2]
    assert first.finished
    assert len({tuple(completion.token_ids) for completion in first.outputs}) > 1
    for index in range(3):
        alone = SamplingParams(temperature=1.0, seed=3 + index, max_tokens=8, ignore_eos=True)
        assert llm.generate("A", alone)[0].outputs[0].token_ids == second.outputs[index].token_ids
    assert not llm.llm_engine.output_processor.parent_requests
    assert not llm.llm_engine.output_processor.external_req_ids


def test_a_stop_string_ends_a_request_and_gives_its_blocks_back(llm: LLM) -> None:
    [full] = llm.generate("Once upon a time", SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True))
    text = full.outputs[0].text
    stop = text[9:12]
    [output] = llm.generate(
        "Once upon a time", SamplingParams(temperature=0.0, max_tokens=200, stop=[stop], ignore_eos=True)
    )
    assert output.outputs[0].text == text[: text.index(stop)]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)
    scheduler = llm.llm_engine.engine_core.scheduler
    assert not scheduler.requests
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 128


def test_chat_is_generate_on_the_templates_prompt(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "Hi"}]
    [chat] = llm.chat(conversation, GREEDY, use_tqdm=False)
    assert chat.prompt == "user: Hi\nbot:"
    assert chat.outputs[0].text == llm.generate("user: Hi\nbot:", GREEDY)[0].outputs[0].text
    both = llm.chat([conversation, conversation], GREEDY)
    assert [output.outputs[0].token_ids for output in both] == [chat.outputs[0].token_ids] * 2
    assert llm.chat(conversation, GREEDY, chat_template="{{ messages[0].content }}")[0].prompt == "Hi"


def test_default_parameters_are_those_that_the_model_recommends(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "top_k": 7, "eos_token_id": 0}))
    llm = LLM(model=str(folder), **SMALL)
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.25, top_k=7)
    [output] = llm.generate("A")
    assert len(output.outputs[0].token_ids) <= 16


@pytest.mark.parametrize("option", ["tensor_parallel_size", "quantization", "swap_space"])
def test_an_option_that_would_do_nothing_is_refused_by_name(tiny_model: Path, option: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"unknown engine argument {option!r}")):
        LLM(model=str(tiny_model), **{option: True})


def test_progress_is_drawn_on_a_terminal_only(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm.generate(["A", "It was"], GREEDY)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    llm.generate(["A", "It was"], GREEDY)
    out, err = capsys.readouterr()
    assert out == ""
    assert "/2 prompts" in err
    assert err.endswith("\r\033[K"), "the line is gone at the end"
    llm.generate(["A", "It was"], GREEDY, use_tqdm=False)
    assert capsys.readouterr() == ("", "")


def test_eager_is_how_it_runs_and_the_other_is_refused(tiny_model: Path) -> None:
    assert LLM(model=str(tiny_model), **SMALL, enforce_eager=True).generate("A", GREEDY)[0].finished
    with pytest.raises(ValueError, match="enforce_eager=False asks for CUDA graphs"):
        LLM(model=str(tiny_model), **SMALL, enforce_eager=False)


def test_parameters_may_be_changed_before_they_are_used_and_are_checked_then(llm: LLM) -> None:
    params = llm.get_default_sampling_params()
    params.max_tokens, params.temperature, params.stop = 5, 0.0, ["zzz"]
    params.ignore_eos = True
    [output] = llm.generate("A", params)
    assert len(output.outputs[0].token_ids) == 5
    params.max_tokens = -1
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got -1"):
        llm.generate("A", params)
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got -1"):
        llm.llm_engine.add_request("r", "A", params)


def test_a_change_after_the_request_was_made_does_not_reach_it(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    llm.llm_engine.add_request("r", "A", params)
    params.max_tokens, params.stop = 50, "e"
    while llm.llm_engine.has_unfinished_requests():
        outputs = llm.llm_engine.step()
    assert len(outputs[0].outputs[0].token_ids) == 5
