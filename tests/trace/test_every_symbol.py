"""Everything that stands on the map is told of when it runs: frontend, core and worker, in one process and in two."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any

import pytest

import minivllm
from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.async_llm import AsyncLLM
from minivllm.engine.core_client import AsyncMPClient, SyncMPClient
from minivllm.engine.llm_engine import LLMEngine
from minivllm.engine.wire import TraceSettings
from minivllm.entrypoints.llm import LLM
from minivllm.models.model_zoo import find_model
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.registry import get_scenario
from minivllm.scenarios.run import run_scenario
from minivllm.sourcemap.registry import entries
from minivllm.tokenizer import load_tokenizer
from minivllm.trace.events import Event, EventLog, Header
from minivllm.trace.merge import write_merged
from minivllm.trace.plan_lines import plan_lines
from minivllm.trace.reader import read_log
from minivllm.trace.recorder import Recorder

_ENGINE: dict[str, Any] = {"model": "stories-5m", "max_model_len": 128, "num_gpu_blocks_override": 33, "block_size": 8}


def registered() -> set[str]:
    """Every symbol, all modules imported (but those that are run as programs, and kernels that need a GPU)."""
    for module in pkgutil.walk_packages(minivllm.__path__, "minivllm."):
        if not module.name.endswith(("__main__", "_script", "core_main")):
            importlib.import_module(module.name)
    return {entry.ours for entry in entries()}


async def use_async(engine: AsyncLLM) -> list[str]:
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)

    async def text(request_id: str) -> str:
        last = ""
        async for output in engine.generate("Once upon a time", params, request_id):
            last = output.outputs[0].text
        return last

    texts = await asyncio.gather(text("A"), text("B"))
    stream = engine.generate("Once upon a time", SamplingParams(max_tokens=99, ignore_eos=True), "C")
    await anext(stream)
    await engine.abort("C")
    await stream.aclose()
    assert await engine.reset_prefix_cache() in (True, False)
    return list(texts)


def async_run(folder: Path) -> tuple[list[Event], list[str]]:
    """A free-running core in its own process, for callers on an event loop; both sides recorded."""
    args = EngineArgs.from_kwargs(**_ENGINE)
    part = folder / "core.jsonl"
    tokenizer = load_tokenizer(find_model(args.model).path)
    log = EventLog(Header(level="function"))
    recorder = Recorder(log, frozenset({"frontend"}), tokenizer=tokenizer)
    with recorder.installation() as installation:
        client = AsyncMPClient(args.resolve_engine_config(), TraceSettings(str(part), "function"))
        engine = AsyncLLM(client.vllm_config, client, tokenizer, client.vocab_size, client.eos_token_ids)
        texts = asyncio.run(use_async(engine))
        engine.shutdown()
    assert not installation.failures
    core = read_log(part)
    merged = write_merged(core.header, log.events, core.events, folder / "run.jsonl", logical=False)
    assert [event for event in merged.events if event.kind == "probe.failed"] == []
    return merged.events, texts


def offline_run() -> list[Event]:
    """One process, with everything that a sampler can be asked for."""
    log = EventLog(Header(level="function"))
    recorder = Recorder(log)
    rules = SamplingParams(
        temperature=0.7, top_k=20, top_p=0.9, min_p=0.01, max_tokens=4, min_tokens=2, seed=1, ignore_eos=True,
        repetition_penalty=1.1, bad_words=["dog"], logit_bias={5: 1.0}, logprobs=2, prompt_logprobs=1, n=2,
    )  # fmt: skip
    with recorder.installation() as installation:
        llm = LLM(**_ENGINE, batch="rows")
        recorder.blocks.watch(llm.llm_engine.engine_core.scheduler.kv_cache_manager)
        llm.generate("Once upon a time", rules)
        llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=2), chat_template="{{ messages }}")
        llm.llm_engine.add_request("gone", "Once", SamplingParams(max_tokens=50, ignore_eos=True))
        llm.llm_engine.step()
        llm.llm_engine.abort_request(["gone"])
        llm.llm_engine.reset_prefix_cache()
    assert not installation.failures
    return log.events


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Event]]:
    names = registered()
    assert len(names) > 70
    return {
        "async": async_run(tmp_path_factory.mktemp("async"))[0],
        "offline": offline_run(),
        "two processes": run_scenario(get_scenario("hello"), {}, mp=True, level="function").log.events,
        "ahead": run_scenario(get_scenario("hello"), {"async_scheduling": True}, level="function").log.events,
        "slots": run_scenario(get_scenario("kv-pressure"), {"batch": "slots"}, level="function").log.events,
        "rows": run_scenario(get_scenario("continuous-batching"), {"batch": "rows"}, level="function").log.events,
    }


def functions_of_this_package() -> dict[tuple[str, str], Any]:
    """Every function that any module or class here holds, by where it holds it."""
    held: dict[tuple[str, str], Any] = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith(("minivllm", "tests")):
            continue
        for key, value in list(vars(module).items()):
            held[name, key] = value
            if isinstance(value, type) and value.__module__.startswith("minivllm"):
                held.update({(f"{name}.{key}", part): inner for part, inner in vars(value).items()})
    return {place: value for place, value in held.items() if callable(value) or isinstance(value, staticmethod)}


def test_afterwards_everything_is_the_very_same_object() -> None:
    names = registered()
    before = functions_of_this_package()
    recorder = Recorder(EventLog(Header(level="function")))
    with recorder.installation():
        during = functions_of_this_package()
    changed = {place for place, value in during.items() if value is not before.get(place)}
    assert len(changed) > len(names) - 5, "methods, functions, and the names that other modules bound to them"
    after = functions_of_this_package()
    assert before.keys() == after.keys()
    assert [place for place, value in after.items() if value is not before[place]] == []


def test_every_symbol_is_told_of(runs: dict[str, list[Event]]) -> None:
    told = {event.src for events in runs.values() for event in events}
    for events in runs.values():
        for event in events:
            if event.kind == "process.started":
                told |= {thread["loop"] for thread in event.data["threads"]}
    assert registered() - told == set()


def test_calls_of_threads_tasks_and_streams_are_told_with_their_place(runs: dict[str, list[Event]]) -> None:
    calls = [event for event in runs["async"] if event.kind == "call"]
    names = {(str(call.src).rpartition(":")[2], call.process, call.thread) for call in calls}
    assert ("AsyncLLM.generate", "frontend", None) in names
    assert ("decode_from_core", "frontend", "process_outputs_socket") in names
    assert ("decode_to_core", "engine_core", "process_input_sockets") in names
    assert ("encode", "engine_core", "process_output_sockets") in names
    assert ("GPUModelRunner.model_forward", "worker", None) in names
    by_id = {call.data["id"]: call for call in calls}
    for call in calls:
        if str(call.src).endswith("AsyncLLM.add_request"):
            assert str(by_id[call.data["parent"]].src).endswith("AsyncLLM.generate")


def test_a_core_that_runs_freely_is_told_of_like_any_other(tmp_path: Path) -> None:
    events, texts = async_run(tmp_path)
    lines = plan_lines(events, is_async=False)
    assert [line["step"] for line in lines] == list(range(len(lines)))
    assert sum(len(line.get("arrived", [])) for line in lines) <= 3
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    [untraced] = LLM(**_ENGINE).generate("Once upon a time", params)
    assert texts == [untraced.outputs[0].text] * 2
    sent: dict[str, str] = {}
    for event in events:
        if event.kind == "output.text" and event.request is not None:
            sent[event.request] = sent.get(event.request, "") + event.data["delta"]
    assert list(sent.values()).count(texts[0]) == 2


def test_a_keyframe_of_a_core_that_runs_freely_knows_who_has_ended(tmp_path: Path) -> None:
    part = tmp_path / "core.jsonl"
    config = EngineArgs.from_kwargs(**_ENGINE).resolve_engine_config()
    client = SyncMPClient(config, TraceSettings(str(part)))
    engine = LLMEngine(client.vllm_config, client, None, client.vocab_size, client.eos_token_ids)
    for request_id, max_tokens in (("short", 5), ("long", 80)):
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        engine.add_request(request_id, {"prompt_token_ids": [5, 6, 7]}, params)
    while engine.has_unfinished_requests():
        engine.step()
    engine.shutdown()
    [keyframe] = [event for event in read_log(part).events if event.kind == "keyframe"]
    assert keyframe.step == 64
    short, long = keyframe.data["state"]["requests"].values()
    assert (short["status"], short["num_tokens"], short["block_ids"]) == ("FINISHED_LENGTH_CAPPED", 8, [])
    assert (long["status"], long["num_prompt_tokens"], len(long["block_ids"]) > 5) == ("RUNNING", 3, True)
    assert all("arrived" in entry for entry in (short, long))
