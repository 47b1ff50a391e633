"""What is told of blocks is what happened to them, and a look-up that ends says truly why."""

from __future__ import annotations

from typing import Any

import pytest

from minivllm.core.block_hash import get_request_block_hasher
from minivllm.core.request import Request
from minivllm.engine.core import EngineCore
from minivllm.executor.sim import SimExecutor, fake_token_rule
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.driver import run
from minivllm.scenarios.workload import Workload
from minivllm.trace.events import Event, EventLog, Header
from minivllm.trace.recorder import Recorder
from tests.trace.workloads import mixed_document, mixed_workload, workload_of

_SIZE = 4


def request_of(name: str, step: int, tokens: list[int], **more: Any) -> dict[str, Any]:
    return {"id": name, "arrival_step": step, "prompt_token_ids": tokens, "max_tokens": 1, **more}


def simulated(*requests: dict[str, Any], **config: Any) -> list[Event]:
    return traced(workload_of({**mixed_document(**config), "requests": list(requests)}))


def traced(workload: Workload) -> list[Event]:
    core = EngineCore(workload.vllm_config, SimExecutor(fake_token_rule(workload.vocab_size)))
    log = EventLog(Header(), logical=True)
    recorder = Recorder(log, frozenset({"engine_core"}))
    recorder.blocks.watch(core.scheduler.kv_cache_manager)
    with recorder.installation() as installation:
        run(core, workload.arrivals, log, at_step_end=recorder.blocks.step_changes)
    assert not installation.failures
    return log.events


def lookups(events: list[Event]) -> dict[str, dict[str, Any]]:
    """The first look-up of each request."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.kind == "kv.lookup" and event.request is not None:
            found.setdefault(event.request, event.data)
    return found


PROMPT = list(range(100, 114))  # three full blocks and a half one


def test_nobody_had_it() -> None:
    [found] = lookups(simulated(request_of("A", 0, PROMPT))).values()
    assert found == {"asked": 12, "hit": 0, "blocks": [], "first_missing": {"index": 0, "why": "never_computed"}}


def test_the_rest_is_no_full_block() -> None:
    events = simulated(request_of("A", 0, PROMPT), request_of("B", 2, PROMPT))
    stored = [event for event in events if event.kind == "kv.stored"]
    assert [(e.request, e.data["first_token"], e.data["parent"], len(e.data["hashes"])) for e in stored] == [
        ("A", 0, None, 3)
    ]
    found = lookups(events)["B"]
    assert found == {
        "asked": 12,
        "hit": 12,
        "blocks": stored[0].data["blocks"],
        "first_missing": {"index": 3, "why": "not_full"},
    }
    [shared] = [event for event in events if event.kind == "kv.shared"]
    assert (shared.request, shared.data) == ("B", {"blocks": stored[0].data["blocks"], "ref_cnt": [1, 1, 1]})


def test_the_last_token_is_always_computed() -> None:
    events = simulated(request_of("A", 0, PROMPT[:12]), request_of("B", 2, PROMPT[:12]))
    assert lookups(events)["B"]["first_missing"] == {"index": 2, "why": "last_token"}
    assert lookups(events)["B"]["hit"] == 8


@pytest.mark.parametrize("place", [4, 6, 7])
def test_it_goes_on_differently_from_a_token_on(place: int) -> None:
    other = [*PROMPT[:place], 7, *PROMPT[place + 1 :]]
    found = lookups(simulated(request_of("A", 0, PROMPT), request_of("B", 2, other)))["B"]
    assert found["first_missing"] == {"index": 1, "why": "differs", "token": place, "other": "A"}


def test_the_closest_of_several_is_named() -> None:
    events = simulated(
        request_of("A", 0, [*PROMPT[:5], 1, 2, 3, *PROMPT[8:]]),
        request_of("B", 0, [*PROMPT[:6], 1, 2, *PROMPT[8:]]),
        request_of("C", 3, PROMPT),
    )
    assert lookups(events)["C"]["first_missing"] == {"index": 1, "why": "differs", "token": 6, "other": "B"}


def test_prompts_with_nothing_in_common_do_not_differ_they_are_others() -> None:
    found = lookups(simulated(request_of("A", 0, PROMPT), request_of("B", 2, [1, *PROMPT[1:]])))["B"]
    assert found["first_missing"] == {"index": 0, "why": "never_computed"}
    found = lookups(simulated(request_of("A", 0, PROMPT), request_of("B", 2, [PROMPT[0], 1, *PROMPT[2:]])))["B"]
    assert found["first_missing"] == {"index": 0, "why": "differs", "token": 1, "other": "A"}


def test_it_was_there_and_was_evicted() -> None:
    large = [request_of(f"L{i}", 2 + i, list(range(200 + 20 * i, 220 + 20 * i))) for i in range(4)]
    events = simulated(request_of("A", 0, PROMPT), *large, request_of("B", 9, PROMPT), num_gpu_blocks=12)
    evicted = [event for event in events if event.kind == "kv.evicted"]
    assert {event.data["why"] for event in evicted} == {"reused"}
    found = lookups(events)["B"]
    assert found["first_missing"]["why"] == "evicted"
    lost = {event.data["hash"] for event in evicted}
    stored = next(event for event in events if event.kind == "kv.stored" and event.request == "A")
    assert stored.data["hashes"][found["first_missing"]["index"]] in lost


def test_caching_is_off_or_was_not_asked_for() -> None:
    events = simulated(request_of("A", 0, PROMPT), request_of("B", 2, PROMPT), enable_prefix_caching=False)
    assert {found["first_missing"]["why"] for found in lookups(events).values()} == {"caching_off"}
    assert all(found["asked"] == 0 for found in lookups(events).values())


def live() -> tuple[EngineCore, EventLog, Recorder]:
    workload = mixed_workload()
    core = EngineCore(workload.vllm_config, SimExecutor(fake_token_rule(1000)))
    log = EventLog(Header(), logical=True)
    recorder = Recorder(log, frozenset({"engine_core"}))
    recorder.blocks.watch(core.scheduler.kv_cache_manager)
    return core, log, recorder


def add(core: EngineCore, name: str, *, salt: str | None = None, **sampling: Any) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=2, **sampling)
    hasher = get_request_block_hasher(_SIZE, b"seed")
    core.scheduler.add_request(Request(name, PROMPT, params, cache_salt=salt, block_hasher=hasher))


def test_a_salt_and_a_request_that_does_not_ask_are_told_apart() -> None:
    core, log, recorder = live()
    with recorder.installation() as installation:
        for name, options in {"A": {}, "B": {"salt": "s"}, "C": {"prompt_logprobs": 1}}.items():
            add(core, name, **options)
            while core.has_work():
                core.step()
    assert not installation.failures
    found = lookups(log.events)
    assert found["B"]["first_missing"] == {"index": 0, "why": "differs", "other": "A"}
    assert found["C"] == {"asked": 0, "hit": 0, "blocks": [], "first_missing": {"index": 0, "why": "not_asked"}}


def test_a_reset_is_told_block_by_block() -> None:
    core, log, recorder = live()
    with recorder.installation():
        add(core, "A")
        while core.has_work():
            core.step()
        assert core.reset_prefix_cache()
        add(core, "B")
        core.step()
    kinds = [event.kind for event in log.events]
    reset = kinds.index("kv.reset")
    assert kinds[reset - 3 : reset] == ["kv.evicted"] * 3
    assert {event.data["why"] for event in log.events if event.kind == "kv.evicted"} == {"reset"}
    assert lookups(log.events)["B"]["first_missing"]["why"] == "evicted"


@pytest.mark.parametrize("options", [{}, {"async_scheduling": True}, {"enable_prefix_caching": False}])
def test_counts_equal_a_look_at_every_block(options: dict[str, Any]) -> None:
    workload = mixed_workload(**options)
    core = EngineCore(workload.vllm_config, SimExecutor(fake_token_rule(workload.vocab_size)))
    log = EventLog(Header(), logical=True)
    recorder = Recorder(log, frozenset({"engine_core"}))
    pool = core.scheduler.kv_cache_manager.block_pool
    recorder.blocks.watch(core.scheduler.kv_cache_manager)
    state: dict[str, Any] = {"owned": set(), "steps": 0}

    def at_step_end() -> dict[str, Any]:
        changes = recorder.blocks.step_changes()
        owned = {block.block_id for block in pool.blocks if block.ref_cnt}
        cached_free = [b for b in pool.blocks if b.ref_cnt == 0 and b.block_hash is not None]
        assert changes["owned_blocks"] == len(owned)
        assert changes["cached_free_blocks"] == len(cached_free)
        assert set(changes["freed"]) >= state["owned"] - owned
        assert not set(changes["freed"]) & owned
        state.update(owned=owned, steps=state["steps"] + 1)
        return changes

    with recorder.installation() as installation:
        run(core, workload.arrivals, log, at_step_end=at_step_end)
    assert not installation.failures
    assert state["steps"] > 20
    assert any(event.data["freed"] for event in log.events if event.kind == "step.end")
