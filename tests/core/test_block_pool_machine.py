"""The KV cache manager under random use, against a model of a few lines."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minivllm.core.integrity import check_block_pool
from minivllm.core.kv_cache_manager import BlockShortage, KVCacheManager
from minivllm.core.request import Request
from tests.core.building import make_request

MAX_MODEL_LEN = 40

# Few tokens and two families of prompts, so that prefixes are often equal.
Prompt = st.builds(
    lambda family, tail: [family] * 9 + tail,
    st.integers(0, 1),
    st.lists(st.integers(0, 1), max_size=12),
) | st.lists(st.integers(0, 1), min_size=1, max_size=20)


class KVCacheMachine(RuleBasedStateMachine):
    """The model knows, for each request, its tokens and its block ids; and for each block id, whose prefix it holds."""

    @initialize(
        block_size=st.sampled_from([1, 2, 3, 4, 8]),
        num_blocks=st.integers(3, 24),
        caching=st.sampled_from([True] * 3 + [False]),
    )
    def start(self, block_size: int, num_blocks: int, caching: bool) -> None:
        self.block_size, self.num_blocks, self.caching = block_size, num_blocks, caching
        self.manager = KVCacheManager(num_blocks, block_size, MAX_MODEL_LEN, caching)
        self.requests: dict[str, Request] = {}
        self.tables: dict[str, list[int]] = {}
        # What was last published in a block: the tokens from the start of the sequence to the block's end.
        self.published: dict[int, tuple[int, ...]] = {}
        self.count = 0

    @rule(prompt=Prompt, share=st.floats(0.1, 1.0))
    def admit(self, prompt: list[int], share: float) -> None:
        self.count += 1
        request = make_request(f"r{self.count}", prompt, block_size=self.block_size)
        blocks, num_hit = self.manager.get_computed_blocks(request)
        hit_ids = [block.block_id for block in blocks]
        assert num_hit == len(hit_ids) * self.block_size == self._longest_prefix(prompt)
        for i, block_id in enumerate(hit_ids):
            assert self.published[block_id] == tuple(prompt[: (i + 1) * self.block_size]), "the hit is of other tokens"
        num_new = max(1, int((len(prompt) - num_hit) * share))
        got = self.manager.allocate_slots(request, num_new, num_hit, blocks)
        if self._note_allocation(request, got, num_hit + num_new, hit_ids):
            self.requests[request.request_id] = request

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), num_tokens=st.integers(1, 6), lookahead=st.integers(0, 4))
    def go_on(self, data: st.DataObject, num_tokens: int, lookahead: int) -> None:
        """Compute what is known; at the end of it, decode."""
        request = self.requests[data.draw(st.sampled_from(sorted(self.requests)))]
        if request.num_computed_tokens == request.num_tokens:
            if request.num_tokens >= MAX_MODEL_LEN:
                return
            request.append_output_token_ids(data.draw(st.integers(0, 1)))
        count = min(num_tokens, request.num_tokens - request.num_computed_tokens)
        got = self.manager.allocate_slots(request, count, num_lookahead_tokens=lookahead)
        self._note_allocation(request, got, request.num_computed_tokens + count, [], lookahead)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        self.manager.free(self.requests.pop(request_id))
        del self.tables[request_id]

    @rule()
    def reset(self) -> None:
        done = self.manager.reset_prefix_cache()
        assert done == (not self.tables), "refused exactly while a block is in use"
        if done:
            self.published.clear()

    def _note_allocation(
        self, request: Request, got: Any, num_computed: int, hit_ids: list[int], lookahead: int = 0
    ) -> bool:
        held = self.tables.get(request.request_id, hit_ids)
        needed = -(-min(num_computed + lookahead, MAX_MODEL_LEN) // self.block_size) - len(held)
        in_use = {block_id for table in self.tables.values() for block_id in table}
        free = self.num_blocks - 1 - len(in_use | set(hit_ids))
        if isinstance(got, BlockShortage):
            assert needed > free, "refused although there was room"
            return False
        assert 0 <= needed <= free or needed < 0, "granted although there was no room"
        new_ids = [block.block_id for block in got]
        assert len(new_ids) == max(needed, 0)
        assert not set(new_ids) & (in_use | set(hit_ids) | {0}), "a block that was in use was handed out"
        for block_id in new_ids:
            self.published.pop(block_id, None)  # evicted
        table = held + new_ids
        self.tables[request.request_id] = table
        request.num_computed_tokens = num_computed
        if self.caching:
            tokens = list(request.all_token_ids)
            for i in range(min(num_computed, request.num_tokens) // self.block_size):
                self.published[table[i]] = tuple(tokens[: (i + 1) * self.block_size])
        return True

    def _longest_prefix(self, prompt: list[int]) -> int:
        """Brute force: the longest run of published prefixes, of at most all tokens but one."""
        known = set(self.published.values())
        hit = 0
        while hit + self.block_size < len(prompt) and tuple(prompt[: hit + self.block_size]) in known:
            hit += self.block_size
        return hit

    @invariant()
    def everything_agrees(self) -> None:
        if not hasattr(self, "manager"):
            return
        check_block_pool(self.manager)
        for request_id, table in self.tables.items():
            assert self.manager.get_block_ids(request_id) == table
        assert set(self.manager.req_to_blocks) == set(self.tables)
        hashed = {block.block_id for block in self.manager.block_pool.blocks if block.block_hash is not None}
        assert hashed == set(self.published)
        assert len(self.manager.block_pool.cached_block_hash_to_block) == len(set(self.published.values()))

    @invariant()
    def the_common_prefix_equals_brute_force(self) -> None:
        for request_id in getattr(self, "tables", {}):
            common = 0
            while all(table[common : common + 1] == self.tables[request_id][common : common + 1] != []
                      for table in self.tables.values()):  # fmt: skip
                common += 1
            expected = common if self.caching else 0
            for _ in range(2):  # the second answer comes from memory
                assert self.manager.get_num_common_prefix_blocks(request_id) == expected


TestKVCacheMachine = KVCacheMachine.TestCase
