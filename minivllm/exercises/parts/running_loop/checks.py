"""The running loop: who gets how much, who gives way, and whole runs that are planned as the engine plans them."""

from __future__ import annotations

from typing import Any

from minivllm.config import CacheConfig, SchedulerConfig
from minivllm.core.decisions import StepDecisions
from minivllm.core.request import Request, RequestStatus
from minivllm.core.scheduler import Scheduler
from minivllm.core.step import Step
from minivllm.exercises.bench import Bench, Run
from minivllm.sampling_params import SamplingParams

# name, known tokens, computed tokens
_Running = tuple[str, int, int]


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [bench.run("kv-pressure"), bench.run("chunked")]


def _scheduled(
    bench: Bench, running: list[_Running], budget: int = 64, free: int = 20, **config: Any
) -> tuple[str, Scheduler, Step]:
    """One call of the learner's loop, with these requests running and so many blocks free."""
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": budget, "max_model_len": 64, **config}
    blocks = sum(-(-computed // 4) for _, _, computed in running) + free + 1
    scheduler = Scheduler(
        SchedulerConfig(**settings), CacheConfig(block_size=4, num_gpu_blocks=blocks, enable_prefix_caching=False)
    )
    for name, known, computed in running:
        request = Request(name, list(range(known)), SamplingParams(max_tokens=8))
        scheduler.requests[name] = request
        if computed:
            scheduler.kv_cache_manager.allocate_slots(request, computed)
        request.num_computed_tokens = computed
        request.status = RequestStatus.RUNNING
        scheduler.running.append(request)
    step = Step(budget, StepDecisions(budget))
    told = ", ".join(f"{name} ({computed} of {known} computed)" for name, known, computed in running)
    limits = "".join(f", {key} {value}" for key, value in config.items())
    text = f"schedule_running(scheduler, step)   running: {told}; budget {budget}, {free} blocks of 4 free{limits}"
    bench.call("schedule_running", scheduler, step, text=text)
    return text, scheduler, step


def test_everybody_gets_what_is_owed(bench: Bench) -> None:
    """A request that decodes gets one token, one in its prompt gets the rest of it."""
    text, _, step = _scheduled(bench, [("A", 9, 8), ("B", 30, 12), ("C", 7, 6)])
    bench.same(text, step.num_scheduled_tokens, {"A": 1, "B": 18, "C": 1})
    bench.same(f"{text}; in the plan", [r.request_id for r in step.scheduled_running_reqs], ["A", "B", "C"])
    bench.same(f"{text}; budget left", step.token_budget, 44)


def test_the_budget_is_kept(bench: Bench) -> None:
    """Who comes when little is left gets what is left; who comes after that gets nothing."""
    text, scheduler, step = _scheduled(bench, [("A", 9, 8), ("B", 30, 12), ("C", 7, 6)], budget=10)
    bench.same(text, step.num_scheduled_tokens, {"A": 1, "B": 9})
    bench.same(f"{text}; budget left", step.token_budget, 0)
    bench.same(f"{text}; still running", [r.request_id for r in scheduler.running], ["A", "B", "C"])


def test_a_long_prompt_is_cut(bench: Bench) -> None:
    """No request gets more than long_prefill_token_threshold."""
    text, _, step = _scheduled(bench, [("A", 30, 4), ("B", 9, 8)], long_prefill_token_threshold=12)
    bench.same(text, step.num_scheduled_tokens, {"A": 12, "B": 1})


def test_new_blocks_are_told(bench: Bench) -> None:
    """New blocks are in the plan, for those who got some."""
    text, _, step = _scheduled(bench, [("A", 9, 8), ("B", 7, 6)])
    got = {name: [block.block_id for block in blocks] for name, blocks in step.new_blocks.items()}
    bench.same(text, got, {"A": [5]}, "A's 9th token needs a third block; B has room in its second.")


def test_the_last_one_gives_way(bench: Bench) -> None:
    """When blocks run out, the last request is preempted, and the one that asked goes on."""
    text, scheduler, step = _scheduled(bench, [("A", 9, 8), ("B", 9, 8), ("C", 7, 6)], free=1)
    bench.same(text, step.num_scheduled_tokens, {"A": 1, "B": 1})
    bench.same(f"{text}; preempted", [r.request_id for r in step.preempted], ["C"])
    bench.same(f"{text}; still running", [r.request_id for r in scheduler.running], ["A", "B"])
    bench.same(f"{text}; waiting", [r.request_id for r in scheduler.waiting], ["C"])


def test_the_one_that_asks_may_be_the_last(bench: Bench) -> None:
    """If the last request is the one that asks, it gives way itself, and the loop is over."""
    text, scheduler, step = _scheduled(bench, [("A", 9, 8), ("B", 9, 8)], free=1)
    bench.same(text, step.num_scheduled_tokens, {"A": 1})
    bench.same(f"{text}; preempted", [r.request_id for r in step.preempted], ["B"])
    bench.same(f"{text}; still running", [r.request_id for r in scheduler.running], ["A"])


def test_several_may_have_to_give_way(bench: Bench) -> None:
    """One victim may not be enough: each gives what it has, the last one first."""
    text, _, step = _scheduled(bench, [("A", 28, 8), ("B", 5, 4), ("C", 5, 4), ("D", 5, 4)], free=2)
    bench.same(f"{text}; preempted", [r.request_id for r in step.preempted], ["D", "C", "B"])
    bench.same(text, step.num_scheduled_tokens, {"A": 20})


def test_the_engine_preempts_as_ever(bench: Bench) -> None:
    """In the engine: three stories in too few blocks; who loses, when, and what is said."""
    run = bench.run("kv-pressure")
    bench.sound(run)
    bench.same_plans(run, only_decisions=True)


def test_the_engine_serves_decodes_first(bench: Bench) -> None:
    """In the engine: a long prompt is computed in chunks, beside a request that decodes."""
    run = bench.run("chunked")
    bench.sound(run)
    bench.same_plans(run, only_decisions=True)
