"""A queue and a step of one's own: the policy, the plan, and an engine in which nobody starves."""

from __future__ import annotations

from minivllm.config import CacheConfig, SchedulerConfig
from minivllm.core.request import Request
from minivllm.core.scheduler import Scheduler
from minivllm.core.scheduler_output import SchedulerOutput
from minivllm.exercises.bench import Bench, Run
from minivllm.exercises.replacing import replaced
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest

# One place. R1 is long, and short ones keep coming.
ONE_PLACE = Scenario(
    name="one-place",
    title="One place, one long request, and short ones that keep coming",
    teaches="Short requests first, and nobody starves.",
    engine={"max_model_len": 128, "block_size": 8, "num_gpu_blocks_override": 65, "max_num_seqs": 1},
    requests=(
        ScenarioRequest("R0", (Piece(0, 10),), max_tokens=3, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(50, 60),), max_tokens=2, sampling=GO_ON),
        ScenarioRequest("R2", (Piece(20, 9),), max_tokens=2, arrival_step=1, sampling=GO_ON),
        ScenarioRequest("R3", (Piece(30, 5),), max_tokens=2, arrival_step=1, sampling=GO_ON),
        ScenarioRequest("R4", (Piece(40, 7),), max_tokens=2, arrival_step=2, sampling=GO_ON),
        ScenarioRequest("R5", (Piece(60, 6),), max_tokens=2, arrival_step=4, sampling=GO_ON),
        ScenarioRequest("R6", (Piece(70, 8),), max_tokens=2, arrival_step=5, sampling=GO_ON),
    ),
)

# Says that waiting requests enter in the order of their arrival: the one rule that this policy is meant to break.
_FIRST_COME = ("INV-13",)


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [bench.run(ONE_PLACE), bench.run("continuous-batching")]


def _request(name: str, num_tokens: int) -> Request:
    return Request(name, list(range(num_tokens)), SamplingParams(max_tokens=8))


def _served(bench: Bench, arrivals: list[str], call: str) -> tuple[list[str], object]:
    """A queue to which requests were added, "A9" with 9 tokens; and how many of them are to be taken out at once."""
    queue = bench.call("ShortestFirstQueue", text="ShortestFirstQueue()").value
    order = []
    for word in arrivals:
        if word == "pop":
            order.append(bench.call("", queue.pop_request, text=call).value.request_id)
        elif word.startswith("<"):
            bench.call("", queue.prepend_request, _request(word[1], int(word[2:])), text=call)
        else:
            bench.call("", queue.add_request, _request(word[0], int(word[1:])), text=call)
    return order, queue


def _order(bench: Bench, arrivals: list[str], expected: list[str], why: str = "") -> None:
    """Everybody is taken out, in the expected order."""
    num_requests = sum(word != "pop" for word in arrivals)
    pops = ["pop"] * (num_requests - arrivals.count("pop"))
    call = f"a queue: {', '.join(arrivals + pops)}   (A9: add A with 9 tokens; <A9: prepend)"
    order, queue = _served(bench, arrivals + pops, call)
    bench.same(call, order, expected, why)
    bench.same(f"{call}; len afterwards", len(queue), 0)  # type: ignore[arg-type]


def test_short_ones_come_first(bench: Bench) -> None:
    """Who owes the fewest tokens is next; of equal ones, who came first."""
    _order(bench, ["A9", "B3", "C5", "D3"], ["B", "D", "C", "A"])


def test_peeking_takes_nobody_out(bench: Bench) -> None:
    """peek_request says who pop_request will take, and len counts all."""
    call = "a queue: add A with 9 tokens, add B with 3; peek_request, peek_request, pop_request"
    _, queue = _served(bench, ["A9", "B3"], call)
    peeks = [bench.call("", queue.peek_request, text=call).value.request_id for _ in range(2)]  # type: ignore[attr-defined]
    bench.same(f"{call}; peeked", peeks, ["B", "B"])
    bench.same(f"{call}; len", len(queue), 2)  # type: ignore[arg-type]


def test_nobody_starves(bench: Bench) -> None:
    """Who was overtaken three times is next, whatever it owes."""
    _order(bench, ["A90", "B1", "C1", "D1", "E1", "F1"], ["B", "C", "D", "A", "E", "F"])
    _order(
        bench,
        ["A90", "B80", "C1", "D1", "E1", "F1", "G1"],
        ["C", "D", "E", "A", "B", "F", "G"],
        "A and B were both overtaken by C, D and E; A came first.",
    )


def test_only_those_before_are_overtaken(bench: Bench) -> None:
    """A request is overtaken by who came later, and not by who was there before."""
    _order(
        bench,
        ["A1", "B1", "C1", "D1", "Z90", "E1", "pop", "pop", "pop", "F1", "G1", "H1", "I1"],
        ["A", "B", "C", "D", "E", "F", "G", "Z", "H", "I"],
        "A to D came before Z; E, F and G overtook it.",
    )


def test_a_preempted_one_is_next(bench: Bench) -> None:
    """A request that is put back is before all others, and the last one put back is first."""
    _order(bench, ["A3", "B5", "<C90", "<D50"], ["D", "C", "A", "B"])


def test_removed_ones_are_gone(bench: Bench) -> None:
    """Aborted requests are taken out wherever they are."""
    call = "a queue: add A, B, C, prepend D; remove_requests({B, D})"
    queue = bench.call("ShortestFirstQueue", text="ShortestFirstQueue()").value
    made = {name: _request(name, place + 1) for place, name in enumerate("ABCD")}
    for name in "ABC":
        bench.call("", queue.add_request, made[name], text=call)
    bench.call("", queue.prepend_request, made["D"], text=call)
    bench.call("", queue.remove_requests, {made["B"], made["D"]}, text=call)
    bench.same(f"{call}; in order", [request.request_id for request in queue], ["A", "C"])
    bench.same(f"{call}; len", len(queue), 2)


def test_iterating_shows_the_order_of_service(bench: Bench) -> None:
    """Iterating gives the order in which requests would be served, and changes nothing."""
    call = "list(queue)   A 90 tokens; B, C, D, E 1 token each"
    _, queue = _served(bench, ["A90", "B1", "C1", "D1", "E1"], call)
    for _ in range(2):
        order = [request.request_id for request in bench.call("", list, queue, text=call).value]
        bench.same(call, order, ["B", "C", "D", "A", "E"])


def test_a_step_gives_a_plan(bench: Bench) -> None:
    """schedule() returns the plan, counts its tokens as computed, and keeps the reasons."""
    with replaced(bench.replacements()):
        config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=16, max_model_len=64)
        cache = CacheConfig(block_size=4, num_gpu_blocks=20, enable_prefix_caching=False)
        scheduler = Scheduler(config, cache)
        for name, tokens in (("A", 12), ("B", 6), ("C", 3)):
            scheduler.add_request(_request(name, tokens))
        call = "scheduler.schedule()   waiting: A 12 tokens, B 6, C 3; 2 places, budget 16"
        called = bench.call("", scheduler.schedule, text=call)
    called.is_true(isinstance(called.value, SchedulerOutput), "a SchedulerOutput")
    bench.same(f"{call}; tokens", called.value.num_scheduled_tokens, {"C": 3, "B": 6})
    bench.same(f"{call}; new requests", [new.req_id for new in called.value.scheduled_new_reqs], ["C", "B"])
    told = [new.num_computed_tokens for new in called.value.scheduled_new_reqs]
    bench.same(f"{call}; computed before, as the worker is told", told, [0, 0], "Build the plan before you count.")
    computed = {name: scheduler.requests[name].num_computed_tokens for name in "ABC"}
    bench.same(f"{call}; computed afterwards", computed, {"A": 0, "B": 6, "C": 3})
    stop = scheduler.last_decisions.stop
    bench.same(f"{call}; why the loop stopped", stop and str(stop.reason), "max_num_seqs")


def test_the_engine_serves_short_ones_first(bench: Bench) -> None:
    """In the engine: with one place, short requests overtake a long one three times, and no more."""
    run = bench.run(ONE_PLACE)
    order = [name for event in run.log.events if event.kind == "schedule" for name in event.data["new"]]
    expected = ["R0", "R3", "R5", "R4", "R1", "R2", "R6"]
    if order != expected:
        place = next(i for i, (a, b) in enumerate(zip(order, expected, strict=False)) if a != b)
        step = next(e.step for e in run.log.events if e.kind == "schedule" and order[place] in e.data["new"])
        message = f"{order[place]} entered, and it was {expected[place]}'s turn."
        raise bench.wrong(run, step, message, call=f"{run.call}: who enters", expected=expected, got=order)
    bench.sound(run, _FIRST_COME)


def test_the_engine_keeps_its_promises(bench: Bench) -> None:
    """In the engine: requests come and go, some are preempted; no invariant breaks, and everybody gets their text."""
    for scenario in ("continuous-batching", "kv-pressure"):
        run = bench.run(scenario)
        bench.sound(run, _FIRST_COME)
        bench.same_tokens(run)
