"""Freed blocks: who is free at all, who goes to which end, and what the cache then still knows."""

from __future__ import annotations

from minivllm.core.block_pool import BlockPool
from minivllm.core.free_block_queue import KVCacheBlock
from minivllm.exercises.bench import Bench, Run
from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest

# R0 leaves its prompt in the cache; R1 takes blocks, and R2 asks for R0's prompt again.
FORGETFUL = Scenario(
    name="small-cache",
    title="A small cache: what is forgotten first",
    teaches="The order of the free queue decides what the prefix cache forgets.",
    engine={"max_model_len": 64, "block_size": 4, "num_gpu_blocks_override": 17, "max_num_seqs": 4},
    requests=(
        ScenarioRequest("R0", (Piece(0, 18),), max_tokens=4, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(200, 30),), max_tokens=12, arrival_step=5, sampling=GO_ON),
        ScenarioRequest("R2", (Piece(0, 18), Piece(50, 3)), max_tokens=6, arrival_step=18, sampling=GO_ON),
        ScenarioRequest("R3", (Piece(0, 18), Piece(90, 3)), max_tokens=6, arrival_step=20, sampling=GO_ON),
    ),
)


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [bench.run(FORGETFUL), bench.run("kv-pressure"), bench.run("prefix-warmup")]


def _freed(bench: Bench, names: dict[int, bytes], users: dict[int, int], *, caching: bool = True) -> tuple[str, list]:
    """Take six blocks, give some back in the order 6, 5, ... 1; returns the call and the queue."""
    pool = BlockPool(9, caching)
    blocks = pool.get_new_blocks(6)  # 1 to 6; 7 and 8 stay in the queue
    for block in blocks:
        block.ref_cnt = users.get(block.block_id, 1)
        if block.block_id in names:
            pool.cache_full_blocks([block], [names[block.block_id]])
    shown = ", ".join(_told(block) for block in reversed(blocks))
    called = bench.call("free_blocks", pool, list(reversed(blocks)), text=f"free_blocks(pool, [{shown}])")
    return called.call, [block.block_id for block in pool.free_block_queue]


def _told(block: KVCacheBlock) -> str:
    name = "named" if block.block_hash else "no name"
    return f"#{block.block_id} {name}" + (f" {block.ref_cnt} users" if block.ref_cnt > 1 else "")


def _is(bench: Bench, call: str, got: list[int], expected: list[int], why: str = "") -> None:
    bench.same(call, [f"#{block}" for block in got], [f"#{block}" for block in expected], why)


def test_blocks_with_a_name_are_used_last(bench: Bench) -> None:
    """Blocks with a name go to the tail, in the order in which they are handed in."""
    call, queue = _freed(bench, {i: bytes([i]) * 32 for i in range(1, 7)}, {})
    _is(bench, call, queue, [7, 8, 6, 5, 4, 3, 2, 1])


def test_blocks_without_a_name_are_used_first(bench: Bench) -> None:
    """Blocks without a name go to the head, in the order in which they are handed in."""
    call, queue = _freed(bench, {1: b"1" * 32, 2: b"2" * 32, 4: b"4" * 32}, {})
    _is(bench, call, queue, [6, 5, 3, 7, 8, 4, 2, 1])


def test_a_block_with_users_left_is_not_free(bench: Bench) -> None:
    """A block that another request holds, too, only loses one user."""
    call, queue = _freed(bench, {1: b"1" * 32, 2: b"2" * 32}, {1: 2, 2: 3})
    _is(bench, call, queue, [6, 5, 4, 3, 7, 8], "#1 and #2 still have users.")


def test_without_a_cache_all_go_to_the_tail(bench: Bench) -> None:
    """With caching off, all blocks are equal and go to the tail."""
    call, queue = _freed(bench, {}, {}, caching=False)
    _is(bench, call, queue, [7, 8, 6, 5, 4, 3, 2, 1])


def test_the_null_block_is_never_free(bench: Bench) -> None:
    """The null block is never put into the queue."""
    pool = BlockPool(4, True)
    pool.null_block.ref_cnt = 1
    called = bench.call("free_blocks", pool, [pool.null_block], text="free_blocks(pool, [the null block])")
    _is(bench, called.call, [block.block_id for block in pool.free_block_queue], [1, 2, 3])


def test_the_engine_remembers_what_it_can(bench: Bench) -> None:
    """In the engine: a prompt that was seen before is found again, although others took blocks in between."""
    run = bench.run(FORGETFUL)
    bench.sound(run)
    bench.same_plans(run)


def test_the_engine_loses_no_block(bench: Bench) -> None:
    """In the engine: preempted and finished requests give back every block, once."""
    for scenario in ("kv-pressure", "prefix-warmup"):
        run = bench.run(scenario)
        bench.sound(run)
        bench.same_plans(run)
