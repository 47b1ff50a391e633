"""The kernel against plain attention, on tables that are all mixed up, and an engine that decodes with it."""

from __future__ import annotations

import torch

from minivllm.exercises.bench import Bench, Run, WrongError
from minivllm.exercises.decode_seam import dense_attention
from minivllm.scenarios.definition import GO_ON, Scenario, ScenarioRequest

SHORT = Scenario(
    name="three-tokens",
    title="Two requests, three tokens each",
    teaches="A kernel that reads through a block table gives what plain attention gives.",
    engine={"max_model_len": 64, "block_size": 4, "num_gpu_blocks_override": 33, "max_num_seqs": 4},
    requests=(
        ScenarioRequest("R0", "Once upon a time", max_tokens=3, sampling=GO_ON),
        ScenarioRequest("R1", "The cat sat on the wall and", max_tokens=3, sampling=GO_ON),
    ),
)


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [bench.run(SHORT)]


def _attended(
    bench: Bench, lengths: list[int], tables: list[list[int]], *, heads: int, kv_heads: int, size: int
) -> None:
    """Hold the kernel against plain attention."""
    generator = torch.Generator().manual_seed(len(lengths) + heads)
    pages = 1 + max(page for table in tables for page in table)
    keys, values = (torch.randn(pages * size, kv_heads, 8, generator=generator) for _ in range(2))
    query = torch.randn(len(lengths), heads, 8, generator=generator)
    width = max(map(len, tables))
    block_table = torch.tensor([table + [-1] * (width - len(table)) for table in tables], dtype=torch.int32)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    arguments = (query, keys, values, block_table, seq_lens, size)
    text = (
        f"paged_decode(...)   lengths {lengths}, pages {tables} of {size} tokens, "
        f"{heads} query heads, {kv_heads} KV heads, head_dim 8"
    )
    got = bench.call("paged_decode", *arguments, text=text).value
    expected = dense_attention(*arguments)
    wrong = (~torch.isclose(got, expected, rtol=1e-4, atol=1e-5)).nonzero()
    if len(wrong):
        request, head, _ = wrong[0].tolist()
        raise WrongError(
            f"Request {request}, head {head} is the first that differs.",
            call=text,
            expected=_told(expected[request, head]),
            got=_told(got[request, head]),
        )


def _told(values: torch.Tensor) -> str:
    return "[" + ", ".join(f"{value:.4f}" for value in values.tolist()) + "]"


def test_one_page(bench: Bench) -> None:
    """A context that fills one page."""
    _attended(bench, [4], [[0]], heads=1, kv_heads=1, size=4)


def test_pages_in_any_order(bench: Bench) -> None:
    """Pages lie anywhere in the cache, and the last one is not full."""
    _attended(bench, [11], [[5, 0, 3]], heads=1, kv_heads=1, size=4)


def test_a_context_longer_than_a_tile(bench: Bench) -> None:
    """More tokens than a tile holds: what was summed up must shrink."""
    _attended(bench, [37], [[4, 1, 7, 0, 2]], heads=1, kv_heads=1, size=8)


def test_heads_that_share(bench: Bench) -> None:
    """Query heads that share a KV head, and several KV heads."""
    _attended(bench, [9], [[2, 0, 1]], heads=4, kv_heads=2, size=4)


def test_several_requests(bench: Bench) -> None:
    """Requests of different lengths, each with its own table."""
    _attended(bench, [3, 18, 1], [[6], [1, 0, 5, 3, 2], [4]], heads=2, kv_heads=1, size=4)


def test_the_engine_decodes_with_it(bench: Bench) -> None:
    """In the engine: six layers of eight heads decode with your kernel, and the text is the same."""
    run = bench.run(SHORT)
    bench.same_tokens(run)
    bench.sound(run)
