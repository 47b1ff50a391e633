"""A caller gives up: before a step, in the middle of one, twice, or too late."""

from __future__ import annotations

import pytest

from minivllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from minivllm.core.integrity import check_integrity
from minivllm.core.messages import EngineCoreRequest
from minivllm.core.request import RequestStatus
from minivllm.engine.core import EngineCore
from minivllm.executor.sim import SimExecutor, fake_token_rule
from minivllm.sampling_params import SamplingParams
from tests.core.building import add, answer, core_request, ids, make_core, make_request, make_scheduler, step

ABORTED = RequestStatus.FINISHED_ABORTED


def test_an_abort_frees_the_blocks_at_once_and_the_worker_hears_of_it_with_the_next_plan() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a", 9), make_request("b", 9))
    step(scheduler)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    (ended,) = scheduler.finish_requests(["a"], ABORTED)
    check_integrity(scheduler)
    assert ended.status == ABORTED
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free + 3
    plan, _ = step(scheduler)
    assert plan.finished_req_ids == {"a"}
    assert plan.num_scheduled_tokens == {"b": 1}


def test_the_last_one_aborted_is_still_told_to_the_worker() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a"))
    step(scheduler)
    scheduler.finish_requests(["a"], ABORTED)
    assert scheduler.has_requests()
    plan, _ = step(scheduler)
    assert plan.finished_req_ids == {"a"}
    assert plan.total_num_scheduled_tokens == 0
    assert not scheduler.has_requests()


@pytest.mark.parametrize("place", ["waiting", "running", "preempted", "blocked"])
def test_it_works_wherever_the_request_stands(place: str) -> None:
    scheduler = make_scheduler(num_gpu_blocks=9, max_model_len=32)
    status = RequestStatus.WAITING_FOR_REMOTE_KVS if place == "blocked" else RequestStatus.WAITING
    add(scheduler, make_request("a", 8, max_tokens=16), make_request("b", 8, max_tokens=16))
    target = make_request("x", 8, max_tokens=16, status=status)
    if place != "waiting":
        add(scheduler, target)
        step(scheduler)
    else:
        step(scheduler)
        add(scheduler, target)
    while place == "preempted" and target.status != RequestStatus.PREEMPTED:
        step(scheduler)
    assert ids(scheduler.finish_requests(["x"], ABORTED)) == ["x"]
    check_integrity(scheduler)
    assert "x" not in scheduler.requests
    while scheduler.has_requests():
        plan, _ = step(scheduler)
        assert "x" not in plan.num_scheduled_tokens
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 8


def test_it_is_idempotent_and_ignores_ids_that_are_unknown_or_ended() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a"), make_request("b", max_tokens=1))
    step(scheduler)  # ends b
    assert ids(scheduler.finish_requests(["b", "nobody", "a", "a"], ABORTED)) == ["a"]
    assert scheduler.finish_requests(["a", "b"], ABORTED) == []
    check_integrity(scheduler)


def test_blocks_return_in_the_order_of_the_ids_asked_for() -> None:
    def free_order(names: list[str]) -> list[int]:
        scheduler = make_scheduler(num_gpu_blocks=9)
        add(scheduler, *(make_request(name, 9) for name in "ab"))
        step(scheduler)
        scheduler.finish_requests(names, ABORTED)
        return [block.block_id for block in scheduler.kv_cache_manager.block_pool.free_block_queue]

    assert free_order(["a", "b"]) == [6, 3, 7, 8, 2, 1, 5, 4]
    assert free_order(["b", "a"]) == [3, 6, 7, 8, 5, 4, 2, 1]


def test_an_abort_between_plan_and_output_discards_the_output() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a"), make_request("b"))
    plan = scheduler.schedule()
    output = answer(scheduler, plan)
    scheduler.finish_requests(["a"], ABORTED)
    outputs = scheduler.update_from_output(plan, output)
    check_integrity(scheduler)
    assert [o.request_id for o in outputs.outputs] == ["b"]


def test_only_an_end_can_be_asked_for() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a"))
    with pytest.raises(AssertionError, match="does not end a request"):
        scheduler.finish_requests(["a"], RequestStatus.PREEMPTED)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_engine_handles_an_abort_after_the_model_ran_and_before_its_output_counts(is_async: bool) -> None:
    core = make_core(async_scheduling=is_async)
    core.add_request(core_request("a"))
    core.add_request(core_request("b"))
    core.step()
    core.aborts_queue.append(["a"])
    result = core.step()
    assert result is not None
    assert [o.request_id for o in result.outputs] == ["b"]
    assert "a" not in core.scheduler.requests
    check_integrity(core.scheduler)


def test_the_output_of_an_aborted_requests_step_in_flight_is_dropped() -> None:
    """Planned ahead: when the abort comes, two steps with its tokens are under way."""
    core = make_core(async_scheduling=True)
    core.add_request(core_request("a"))
    core.step()
    core.step()
    assert core.abort_requests(["a"]) == ["a"]
    while core.has_work():
        result = core.step()
        assert not (result and result.outputs)
        check_integrity(core.scheduler)
    assert core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 199


def test_an_id_is_not_free_while_output_of_its_aborted_request_is_on_its_way() -> None:
    engine = EngineCore(
        VllmConfig(
            model_config=ModelConfig(model="none"),
            cache_config=CacheConfig(num_gpu_blocks=16, block_size=4),
            scheduler_config=SchedulerConfig(max_num_seqs=2, async_scheduling=True),
        ),
        SimExecutor(fake_token_rule(100)),
    )
    request = EngineCoreRequest("R0", [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=8))
    engine.add_request(request)
    assert engine.step() is None, "planned and running, nothing committed yet"
    engine.abort_requests(["R0"])
    with pytest.raises(ValueError, match="request id 'R0' is in use"):
        engine.add_request(request)
    engine.step()
    assert not engine.scheduler.ended_in_flight
    engine.add_request(request)
    outputs = []
    while engine.has_work():
        if result := engine.step():
            outputs += [token for output in result.outputs for token in output.new_token_ids]
    assert len(outputs) == 8
