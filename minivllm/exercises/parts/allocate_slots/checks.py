"""An allocation: how many blocks, which are refused, what is published, and what the engine plans with it."""

from __future__ import annotations

from typing import Any

from minivllm.core.block_hash import get_request_block_hasher
from minivllm.core.kv_cache_manager import BlockShortage, KVCacheManager
from minivllm.core.request import Request
from minivllm.exercises.bench import Bench, Run
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest

_SIZE = 4

# The last block of R0 is exactly full when it reaches the model's limit.
TO_THE_LIMIT = Scenario(
    name="to-the-limit",
    title="A request grows to the model's limit in a pool that has just so many blocks",
    teaches="No request needs a slot beyond max_model_len.",
    engine={"max_model_len": 32, "block_size": 4, "num_gpu_blocks_override": 9, "max_num_seqs": 2},
    requests=(
        ScenarioRequest("R0", (Piece(0, 20),), max_tokens=12, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(0, 10),), max_tokens=4, arrival_step=2, sampling=GO_ON),
    ),
)


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [bench.run("kv-pressure"), bench.run("prefix-warmup"), bench.run(TO_THE_LIMIT)]


def _manager(num_blocks: int = 12, **settings: Any) -> KVCacheManager:
    return KVCacheManager(num_blocks, _SIZE, 32, True, **settings)


def _request(name: str, num_tokens: int, first: int = 100) -> Request:
    hasher = get_request_block_hasher(_SIZE, b"exercise")
    tokens = list(range(first, first + num_tokens))
    return Request(name, tokens, SamplingParams(max_tokens=4), block_hasher=hasher)


def _allocate(bench: Bench, manager: KVCacheManager, request: Request, new: int, *hit: Any, **more: Any) -> tuple:
    """Returns the call, and what it gave: numbers of blocks, or the shortage."""
    free = manager.block_pool.get_num_free_blocks()
    rest = "".join(f", {key}={value}" for key, value in more.items())
    found = f", {hit[0]}, [{', '.join(f'#{block.block_id}' for block in hit[1])}]" if hit else ""
    text = (
        f"allocate_slots(manager, {request.request_id}, {new}{found}{rest})   {request.request_id}: "
        f"{request.num_tokens} tokens known, {request.num_computed_tokens} computed; blocks of {_SIZE}, {free} free"
    )
    value = bench.call("allocate_slots", manager, request, new, *hit, text=text, **more).value
    return text, value if isinstance(value, BlockShortage) else [block.block_id for block in value]


def test_blocks_are_rounded_up(bench: Bench) -> None:
    """A request gets as many blocks as its tokens need, rounded up."""
    for tokens, expected in ((1, [1]), (4, [1]), (5, [1, 2]), (12, [1, 2, 3])):
        manager = _manager()
        text, blocks = _allocate(bench, manager, _request("R1", 12), tokens)
        bench.same(text, blocks, expected)
        bench.same(f"{text}; its block table", manager.get_block_ids("R1"), expected)


def test_only_what_is_missing_is_taken(bench: Bench) -> None:
    """A request that has room in its last block takes no new one."""
    manager, request = _manager(), _request("R1", 14)
    _allocate(bench, manager, request, 6)
    request.num_computed_tokens = 6
    text, blocks = _allocate(bench, manager, request, 2)
    bench.same(text, blocks, [], "Its second block has room for two more.")
    request.num_computed_tokens = 8
    text, blocks = _allocate(bench, manager, request, 1)
    bench.same(text, blocks, [3])
    bench.same(f"{text}; its block table", manager.get_block_ids("R1"), [1, 2, 3])


def test_lookahead_and_the_limit(bench: Bench) -> None:
    """Lookahead needs slots, too, and nobody gets slots beyond max_model_len."""
    text, blocks = _allocate(bench, _manager(), _request("R1", 12), 4, num_lookahead_tokens=3)
    bench.same(text, blocks, [1, 2])
    text, blocks = _allocate(bench, _manager(), _request("R1", 31), 31, num_lookahead_tokens=3)
    bench.same(f"{text}, max_model_len 32", blocks, [1, 2, 3, 4, 5, 6, 7, 8])


def test_a_shortage_changes_nothing(bench: Bench) -> None:
    """Without enough blocks it says what is missing, and takes none."""
    manager = _manager(3)
    request = _request("R1", 12)
    text, value = _allocate(bench, manager, request, 12)
    bench.same(f"{text}; what it gives", type(value).__name__, "BlockShortage")
    bench.same(f"{text}; asked", value.numbers["asked"], 3)
    bench.same(f"{text}; free blocks afterwards", manager.block_pool.get_num_free_blocks(), 2)
    bench.same(f"{text}; its block table", manager.get_block_ids("R1"), [])


def test_all_known_tokens_must_fit_if_asked(bench: Bench) -> None:
    """full_sequence_must_fit: refused unless all known tokens fit, however few are computed now."""
    text, value = _allocate(bench, _manager(3), _request("R1", 12), 4, full_sequence_must_fit=True)
    bench.same(f"{text}; what it gives", type(value).__name__, "BlockShortage")
    bench.same(f"{text}; of the full sequence", value.full_sequence, True)
    text, blocks = _allocate(bench, _manager(4), _request("R1", 12), 4, full_sequence_must_fit=True)
    bench.same(text, blocks, [1])


def test_found_blocks_become_the_requests(bench: Bench) -> None:
    """Blocks that were found in the cache come first in the table, and leave the free queue."""
    manager = _manager()
    first = _request("R1", 12)
    _allocate(bench, manager, first, 12)
    manager.free(first)
    second = _request("R2", 14)
    found, tokens = manager.get_computed_blocks(second)
    text, blocks = _allocate(bench, manager, second, 2, tokens, found)
    bench.same(text, blocks, [4])
    bench.same(f"{text}; its block table", manager.get_block_ids("R2"), [1, 2, 3, 4])
    bench.same(f"{text}; free blocks afterwards", manager.block_pool.get_num_free_blocks(), 7)


def test_found_blocks_that_lie_free_are_asked_for(bench: Bench) -> None:
    """A found block without users is no longer free: it counts in what is asked."""
    manager = _manager(4)
    first = _request("R1", 8)
    _allocate(bench, manager, first, 8)
    manager.free(first)
    second = _request("R2", 16)
    found, tokens = manager.get_computed_blocks(second)
    text, value = _allocate(bench, manager, second, 8, tokens, found)
    bench.same(f"{text}; what it gives", type(value).__name__, "BlockShortage", "2 found ones and 2 new ones of 3.")
    bench.same(f"{text}; asked", value.numbers["asked"], 4)


def test_full_blocks_are_published(bench: Bench) -> None:
    """Full blocks get their names at once, but none beyond the known tokens."""
    manager, request = _manager(), _request("R1", 10)
    text, _ = _allocate(bench, manager, request, 10)
    hits = [manager.block_pool.get_cached_block(name) is not None for name in request.block_hashes]
    bench.same(f"{text}; its two full blocks are published", hits, [True, True])
    manager, request = _manager(), _request("R1", 10)
    text, _ = _allocate(bench, manager, request, 4)
    hits = [manager.block_pool.get_cached_block(name) is not None for name in request.block_hashes]
    bench.same(f"{text}; its full blocks that are published", hits, [True, False])
    text, _ = _allocate(bench, _manager(), _request("R1", 10), 10, delay_cache_blocks=True)


def test_the_engine_preempts_when_it_must(bench: Bench) -> None:
    """In the engine: three stories in too few blocks, planned as always."""
    run = bench.run("kv-pressure")
    bench.sound(run)
    bench.same_plans(run)


def test_the_engine_shares_and_keeps_to_the_limit(bench: Bench) -> None:
    """In the engine: a shared preamble, and a request that grows to the model's limit."""
    for scenario in ("prefix-warmup", TO_THE_LIMIT):
        run = bench.run(scenario)
        bench.sound(run)
        bench.same_plans(run)
