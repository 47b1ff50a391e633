"""What a step did to the pool is what a comparison block by block finds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from minivllm.trace.pool_watch import PoolWatch


@dataclass
class Block:
    block_id: int
    ref_cnt: int
    block_hash: bytes | None


@dataclass
class Pool:
    blocks: list[Block]


_STATES = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([None, b"x", b"y"])), min_size=6, max_size=6)


@given(steps=st.lists(_STATES, min_size=2, max_size=6))
def test_changes_are_found(steps: list[list[tuple[int, bytes | None]]]) -> None:
    pool = Pool([Block(i, users, name) for i, (users, name) in enumerate(steps[0])])
    watch = PoolWatch(pool)
    for before, now in itertools.pairwise(steps):
        for block, (users, name) in zip(pool.blocks, now, strict=True):
            # A name that is equal need not be the same object.
            block.ref_cnt, block.block_hash = users, None if name is None else bytes(bytearray(name))
        pairs = list(enumerate(zip(before, now, strict=True)))
        assert watch.changes() == {
            "owned_blocks": sum(users > 0 for users, _ in now),
            "cached_free_blocks": sum(users == 0 and name is not None for users, name in now),
            "freed": [i for i, ((was, _), (users, _)) in pairs if was and not users],
            "evicted": [i for i, ((_, old), (_, name)) in pairs if old is not None and old != name],
        }
