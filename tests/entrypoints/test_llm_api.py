"""What scripts that were written for vLLM's `LLM` rely on."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from minivllm import LLM, EngineArgs, SamplingParams
from minivllm.models.errors import ModelError

SMALL = {"max_model_len": 256, "num_gpu_blocks_override": 129, "block_size": 4}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return LLM(model=str(tiny_model), **SMALL)


def test_every_form_of_a_prompt_gives_the_same(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("Once upon")
    forms: list[Any] = ["Once upon", {"prompt": "Once upon"}, {"prompt_token_ids": ids}, ids, tuple(ids)]
    outputs = llm.generate([*forms, {"prompt": "Once upon", "prompt_token_ids": ids}], GREEDY, use_tqdm=False)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert [output.prompt for output in outputs] == ["Once upon", "Once upon", None, None, None, "Once upon"]
    assert [len(llm.generate(prompts, GREEDY)) for prompts in (ids, [ids], [ids, ids], [], "A")] == [1, 1, 2, 0, 1]
    assert [output.outputs[0].text for output in llm.generate(forms[1], GREEDY)] == [outputs[0].outputs[0].text]


@pytest.mark.parametrize("prompt", [{}, {"prompt": 7}, {"prompt_token_ids": [1], "multi_modal_data": {}}, 7.5, None])
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


def test_an_option_that_nobody_knows_is_refused_by_name(tiny_model: Path) -> None:
    with pytest.raises(TypeError, match=r"unknown engine argument 'swap_space'; known are async_scheduling, "):
        LLM(model=str(tiny_model), swap_space=4)
    with pytest.raises(TypeError, match=r"unknown engine argument 'max_num_seq'; did you mean 'max_num_seqs'\?"):
        LLM(model=str(tiny_model), max_num_seq=4)


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


def test_eager_is_how_it_runs_and_graphs_are_refused_where_there_could_be_any(tiny_model: Path) -> None:
    assert LLM(model=str(tiny_model), **SMALL, enforce_eager=True).generate("A", GREEDY)[0].finished
    assert LLM(model=str(tiny_model), **SMALL, enforce_eager=False).generate("A", GREEDY)[0].finished, "no graphs here"
    with pytest.raises(ValueError, match="cudagraph_mode FULL cannot be had: a CPU has no graphs; leave it out"):
        LLM(model=str(tiny_model), **SMALL, cudagraph_mode="FULL")
    nested = {"cudagraph_mode": "NONE"}
    assert LLM(model=str(tiny_model), **SMALL, compilation_config=nested).generate("A", GREEDY)[0].finished
    with pytest.raises(ValueError, match=r"cudagraph_mode must be one of NONE, PIECEWISE, FULL, .*, got 'HALF'"):
        LLM(model=str(tiny_model), **SMALL, compilation_config={"cudagraph_mode": "HALF"})
    with pytest.raises(ValueError, match="enforce_eager asks for no CUDA graphs, cudagraph_mode FULL for some"):
        LLM(model=str(tiny_model), **SMALL, cudagraph_mode="FULL", enforce_eager=True)


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


def test_prompts_of_every_form_mix_with_parameters_of_their_own(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("It was")
    prompts: list[Any] = ["A", ids, {"prompt": "One day"}]
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (2, 3, 4)]
    outputs = llm.generate(prompts, params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 3, 4]
    assert [output.prompt for output in outputs] == ["A", None, "One day"]


def test_a_bar_of_the_callers_is_advanced_and_closed(llm: LLM) -> None:
    seen: list[Any] = []

    class Bar:
        def __init__(self, **settings: Any) -> None:
            seen.append(settings)

        def update(self, count: int) -> None:
            seen.append(count)

        def close(self) -> None:
            seen.append("closed")

    llm.generate(["A", "It was"], GREEDY, use_tqdm=Bar)
    assert seen == [{"total": 2, "desc": "Processed prompts"}, 1, 1, "closed"]
    with pytest.raises(ValueError, match="use_tqdm must be True, False or a function"):
        llm.generate("A", GREEDY, use_tqdm="yes")  # type: ignore[arg-type]


def test_special_tokens_can_be_left_out_of_a_text(llm: LLM) -> None:
    [output] = llm.generate("A", GREEDY, tokenization_kwargs={"add_special_tokens": False})
    assert (output.prompt, output.prompt_token_ids) == ("A", llm.get_tokenizer().encode("A", add_special_tokens=False))
    with pytest.raises(ValueError, match="tokenization_kwargs has no 'truncation'"):
        llm.generate("A", GREEDY, tokenization_kwargs={"truncation": True})


@pytest.mark.parametrize("name", ["embed", "classify", "score", "beam_search", "sleep", "apply_model"])
def test_what_vllms_has_beyond_is_refused_by_name(llm: LLM, name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^LLM.{name} is not here: "):
        getattr(llm, name)
    assert not hasattr(llm, name)
    with pytest.raises(AttributeError, match="'LLM' object has no attribute 'nonsense'"):
        llm.nonsense  # noqa: B018


def test_adapters_are_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="lora_request must be None: there are no adapters"):
        llm.generate("A", GREEDY, lora_request=1)  # type: ignore[arg-type]


def test_a_chat_template_comes_with_the_engine_as_source_or_file(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("<{{ messages[-1].content }}>")
    conversation = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    for template in (str(file), file, file.read_text()):
        llm = LLM(model=str(tiny_model), chat_template=template, **SMALL)
        assert llm.chat(conversation, GREEDY)[0].prompt == "<Hi>"
        assert llm.chat(conversation, GREEDY, chat_template="{{ 7 }}")[0].prompt == "7"
    with pytest.raises(ValueError, match=r"chat_template 'nowhere.jinja' is neither Jinja source nor a file: No such"):
        LLM(model=str(tiny_model), chat_template="nowhere.jinja", **SMALL)
    with pytest.raises(ValueError, match="chat_template_content_format must be 'auto' or 'string', got 'openai'"):
        llm.chat(conversation, GREEDY, chat_template_content_format="openai")  # type: ignore[arg-type]


def test_a_conversation_goes_on_inside_its_last_message(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "Hi"}, {"role": "bot", "content": "Hello, my"}]
    settings: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    [output] = llm.chat(conversation, GREEDY, **settings)
    assert output.prompt == "user: Hi\nbot: Hello, my"
    with pytest.raises(ValueError, match="exclude each other"):
        llm.chat(conversation, GREEDY, continue_final_message=True)


def test_what_the_files_recommend_can_be_left_out_or_overruled(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "top_k": 7}))

    def defaults(**settings: Any) -> SamplingParams:
        return LLM(model=str(folder), **SMALL, **settings).get_default_sampling_params()

    assert defaults(generation_config="vllm") == SamplingParams()
    assert defaults(override_generation_config={"top_k": 3}) == SamplingParams(temperature=0.25, top_k=3)
    with pytest.raises(ValueError, match=r"override_generation_config recommends .*: top_p must be in"):
        defaults(override_generation_config={"top_p": 3.0})
    with pytest.raises(ValueError, match=r"generation_config must be 'auto' .* or 'vllm' .*, got '/nowhere'"):
        defaults(generation_config="/nowhere")


def test_a_block_releases_the_model_at_its_end(tiny_model: Path) -> None:
    with LLM(model=str(tiny_model), **SMALL, multiprocess=True) as llm:
        assert llm.generate("A", GREEDY)[0].finished
        process = llm.llm_engine.client._core.process  # type: ignore[attr-defined]
        assert process.poll() is None
    assert process.poll() is not None
    llm.shutdown()


@pytest.mark.parametrize("multiprocess", [False, True])
def test_forgetting_cached_prefixes_preempts_who_runs_only_if_asked(tiny_model: Path, multiprocess: bool) -> None:
    with LLM(model=str(tiny_model), **SMALL, multiprocess=multiprocess) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
        [plain] = llm.generate("Once upon a time", params)
        assert llm.reset_prefix_cache()
        engine = llm.llm_engine
        engine.add_request("r", "Once upon a time", params)
        outputs = [*engine.step(), *engine.step()]
        assert not engine.reset_prefix_cache(), "its blocks are held"
        assert engine.reset_prefix_cache(reset_running_requests=True)
        while engine.has_unfinished_requests():
            outputs += engine.step()
        assert outputs[-1].outputs[0].token_ids == plain.outputs[0].token_ids


def test_from_engine_args_is_the_same_as_its_arguments(tiny_model: Path) -> None:
    args = EngineArgs(model=str(tiny_model), max_model_len=128, num_gpu_blocks_override=65)
    assert LLM.from_engine_args(args).llm_engine.vllm_config.scheduler_config.max_model_len == 128


@pytest.mark.parametrize("priority", ["first", 1.5, True, 2**63])
def test_a_priority_is_a_whole_number(llm: LLM, priority: Any) -> None:
    with pytest.raises(ValueError, match="priority must be a whole number of 64 bits, got "):
        llm.generate("A", GREEDY, priority=[priority])


def test_a_recommendation_that_is_no_number_is_refused_by_its_file(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"temperature": "hot"}))
    with pytest.raises(ModelError, match=r"generation_config\.json: temperature must be a number, got 'hot'"):
        LLM(str(folder))


def test_an_output_tells_when_what_happened(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **SMALL, disable_log_stats=False)
    before, [first, second] = time.time(), llm.generate(["Once", "It was"], GREEDY)
    times = first.metrics
    assert times is not None
    assert before <= times.arrival_time <= time.time()
    assert 0 < times.scheduled_ts <= times.first_token_ts < times.last_token_ts
    assert 0 < times.first_token_latency <= time.time() - before
    assert times.num_generation_tokens == len(first.outputs[0].token_ids) == 8
    assert second.metrics is not None
    assert second.metrics.arrival_time >= times.arrival_time
    [none] = LLM(model=str(tiny_model), **SMALL).generate("Once", GREEDY)
    assert none.metrics is None
    assert none.outputs[0].token_ids == first.outputs[0].token_ids
