"""What a look-up finds, on a cache of which some blocks are gone, and what the engine makes of it."""

from __future__ import annotations

from typing import Any

from minivllm.core.block_hash import get_request_block_hasher
from minivllm.core.kv_cache_manager import KVCacheManager
from minivllm.core.request import Request
from minivllm.exercises.bench import Bench, Run
from minivllm.sampling_params import SamplingParams

_SIZE = 4


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [bench.run("full-hit"), bench.run("prefix-warmup")]


def _manager(*, caching: bool = True) -> KVCacheManager:
    return KVCacheManager(20, _SIZE, 64, caching)


def _request(num_tokens: int, **params: Any) -> Request:
    hasher = get_request_block_hasher(_SIZE, b"exercise")
    return Request(
        "R1", list(range(100, 100 + num_tokens)), SamplingParams(max_tokens=4, **params), block_hasher=hasher
    )


def _look_up(bench: Bench, num_tokens: int, cached: list[int], *, caching: bool = True, **params: Any) -> tuple:
    """Returns the call, and what it gave as (numbers of the blocks' places in the text, tokens)."""
    manager, request = _manager(caching=caching), _request(num_tokens, **params)
    place_of = {}
    for place in cached:
        (block,) = manager.block_pool.get_new_blocks(1)
        manager.block_pool.cache_full_blocks([block], [request.block_hashes[place]])
        place_of[block.block_id] = place
    free = manager.block_pool.get_num_free_blocks()
    which = f"blocks {', '.join(map(str, cached))} are cached" if cached else "nothing is cached"
    off = "" if caching else ", caching is off"
    text = f"get_computed_blocks(manager, R1)   R1: {num_tokens} tokens, blocks of {_SIZE}; {which}{off}"
    called = bench.call("get_computed_blocks", manager, request, text=text)
    called.is_true(
        isinstance(called.value, tuple) and len(called.value) == 2, "a pair: the list of blocks, the number of tokens"
    )
    blocks, tokens = called.value
    bench.same(text, manager.block_pool.get_num_free_blocks(), free, "A look-up takes no block.")
    return text, [place_of.get(block.block_id, "?") for block in blocks], tokens


def test_a_cached_beginning_is_found(bench: Bench) -> None:
    """The blocks of a cached beginning are found, in order."""
    text, places, tokens = _look_up(bench, 18, [0, 1, 2])
    bench.same(text, ([f"block {place}" for place in places], tokens), (["block 0", "block 1", "block 2"], 12))


def test_nothing_cached_is_nothing_found(bench: Bench) -> None:
    """An empty cache gives no blocks and 0 tokens."""
    text, places, tokens = _look_up(bench, 18, [])
    bench.same(text, (places, tokens), ([], 0))


def test_the_first_miss_ends_the_search(bench: Bench) -> None:
    """After the first block that is missing, nothing is taken."""
    text, places, tokens = _look_up(bench, 18, [0, 2, 3])
    bench.same(text, (places, tokens), ([0], 4), "Block 1 is missing: what follows it has no beginning.")


def test_one_token_is_left_to_compute(bench: Bench) -> None:
    """Of a prompt that is cached to its end, the last block is computed again."""
    text, places, tokens = _look_up(bench, 16, [0, 1, 2, 3])
    bench.same(text, (places, tokens), ([0, 1, 2], 12), "16 tokens, and the last must be computed.")
    text, places, tokens = _look_up(bench, 17, [0, 1, 2, 3])
    bench.same(text, (places, tokens), ([0, 1, 2, 3], 16), "The 17th token is left, so all four blocks may be taken.")


def test_who_does_not_ask_finds_nothing(bench: Bench) -> None:
    """With caching off, or for a request that must not read the cache, nothing is found."""
    text, places, tokens = _look_up(bench, 18, [0], caching=False)
    bench.same(text, (places, tokens), ([], 0))
    text, places, tokens = _look_up(bench, 18, [0], skip_reading_prefix_cache=True)
    bench.same(f"{text}, it skips the cache", (places, tokens), ([], 0))


def test_the_engine_shares_a_preamble(bench: Bench) -> None:
    """In the engine: three questions share a preamble, and only what is new is computed."""
    run = bench.run("prefix-warmup")
    bench.same_plans(run)
    bench.sound(run)


def test_the_engine_computes_at_least_a_token(bench: Bench) -> None:
    """In the engine: the very same prompt again still computes its last block."""
    run = bench.run("full-hit")
    bench.same_plans(run)
    bench.sound(run)
