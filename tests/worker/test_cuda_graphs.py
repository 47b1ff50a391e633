"""Which steps find a graph, and with how much padding. Capturing itself needs a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minivllm.attention.backend import AttentionCGSupport
from minivllm.worker.cuda_graphs import (
    CudaGraphs,
    GraphDispatcher,
    StepShape,
    capture_sizes,
    most_in_pieces,
    piece_sizes,
    resolve_cudagraph_mode,
)
from minivllm.worker.staging import SampledTokens, StagedRows


def test_sizes_are_dense_where_steps_are_short():
    assert capture_sizes(256)[:6] == [1, 2, 4, 8, 16, 24]
    assert capture_sizes(256)[-3:] == [480, 496, 512]
    assert [size for size in capture_sizes(256) if 240 <= size <= 272] == [240, 248, 256, 272]
    assert capture_sizes(3) == [1, 2, 4]
    assert capture_sizes(4, query_len=3) == [1, 2, 4, 8, 16, 24]


@pytest.mark.parametrize(
    ("query_lens", "mode", "tokens", "requests"),
    [
        ([1], "FULL", 1, 1),
        ([1] * 3, "FULL", 4, 4),
        ([1] * 9, "FULL", 16, 16),
        ([1] * 17, "FULL", 20, 20),  # 24 would be more than can come
        ([1] * 20, "FULL", 20, 20),
        ([1, 2], "NONE", 3, 2),
        ([7], "NONE", 7, 1),
    ],
)
def test_decodes_take_the_smallest_graph_that_holds_them(query_lens, mode, tokens, requests):
    found = GraphDispatcher(max_num_seqs=20).dispatch(query_lens)
    assert (found.mode, found.shape.num_tokens, found.shape.num_requests) == (mode, tokens, requests), found.reason


def test_mixed_steps_find_a_graph_only_where_they_are_captured():
    decodes_only, both = GraphDispatcher(20), GraphDispatcher(20, capture_mixed=True)
    assert decodes_only.dispatch([1, 5]).reason == "prompts in the step, and only steps of decodes are captured"
    assert both.dispatch([1, 9]).shape == StepShape(16, 16, 0)
    assert both.dispatch([1, 39]).shape == StepShape(40, 20, 0)
    assert both.dispatch([1, 40]).reason == "41 tokens, and the largest graph has 40"
    assert both.dispatch([1, 1]).shape == StepShape(2, 2, 1), "steps of decodes have graphs of their own"


@pytest.mark.parametrize(
    ("mode", "query_lens", "how", "tokens", "requests"),
    [
        ("FULL_AND_PIECEWISE", [1] * 3, "FULL", 4, 4),  # padded in both
        ("FULL_AND_PIECEWISE", [1, 9], "PIECEWISE", 16, 2),  # attention gets two requests
        ("FULL_AND_PIECEWISE", [1, 40], "NONE", 41, 2),
        ("PIECEWISE", [1] * 3, "PIECEWISE", 4, 3),
        ("PIECEWISE", [40], "PIECEWISE", 40, 1),
        ("FULL_DECODE_ONLY", [1, 9], "NONE", 10, 2),
        ("FULL", [1, 9], "FULL", 16, 16),
    ],
)
def test_each_mode_has_its_graphs(mode, query_lens, how, tokens, requests):
    dispatcher = GraphDispatcher.for_mode(mode, max_num_seqs=20, most_in_pieces=40)
    found = dispatcher.dispatch(query_lens)
    assert (found.mode, found.shape.num_tokens, found.shape.num_requests) == (how, tokens, requests), found.reason
    assert (found.shape in dispatcher.first_shapes()) == (how == "FULL")
    assert (how == "PIECEWISE") <= (found.shape.num_tokens in dispatcher.first_pieces())


@pytest.mark.parametrize("most", [1, 5, 300, 512, 2048, 3000, 8192])
def test_less_than_an_eighth_of_a_step_in_pieces_is_padding_and_nothing_of_the_longest(most):
    sizes = piece_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    dispatcher = GraphDispatcher.for_mode("FULL_AND_PIECEWISE", 256, most)
    for tokens in range(2, most + 1):
        found = dispatcher.dispatch([tokens])
        padding = found.shape.num_tokens - tokens
        assert found.mode == "PIECEWISE"
        assert 0 <= padding < 8 if tokens < 128 else padding < tokens / 8, found.reason
    assert dispatcher.dispatch([most + 1]).reason == f"{most + 1} tokens, and the largest pieces have {most}"


@pytest.mark.parametrize(
    ("max_num_batched_tokens", "weights_per_layer", "most"),
    [
        (2048, 15_728_640, 2048),  # 0.6B: steps as long as they can be
        (16384, 15_728_640, 8192),
        (16384, 46_792_704, 2048),  # 1.5B
        (8192, 218_103_808, 512),  # 8B: the host is faster than the GPU from there on
        (8192, 10**12, 512),
        (100, 15_728_640, 100),
        (2000, 15_728_640, 2000),
    ],
)
def test_steps_are_in_pieces_as_long_as_launching_them_takes_longer(max_num_batched_tokens, weights_per_layer, most):
    assert most_in_pieces(max_num_batched_tokens, weights_per_layer) == most


def test_pieces_of_the_largest_size_come_first_then_the_smallest_if_decodes_need_them():
    assert GraphDispatcher.for_mode("PIECEWISE", 20, 40).first_pieces() == [40, 1, 2, 4, 8, 32, 24, 16]
    decodes_are_whole = GraphDispatcher.for_mode("FULL_AND_PIECEWISE", 20, 40)
    assert decodes_are_whole.first_pieces() == [40, 32, 24, 16, 8, 4, 2, 1]


SUPPORT = ("NEVER", "UNIFORM_SINGLE_TOKEN_DECODE", "UNIFORM_BATCH", "ALWAYS")


@pytest.mark.parametrize(
    ("asked", "had"),
    [  # one for each support
        (None, ["PIECEWISE", *["FULL_AND_PIECEWISE"] * 3]),
        ("NONE", ["NONE"] * 4),
        ("PIECEWISE", ["PIECEWISE"] * 4),
        ("FULL", [None, "FULL_AND_PIECEWISE", "FULL_AND_PIECEWISE", "FULL"]),
        ("FULL_DECODE_ONLY", ["PIECEWISE", *["FULL_DECODE_ONLY"] * 3]),
        ("FULL_AND_PIECEWISE", ["PIECEWISE", *["FULL_AND_PIECEWISE"] * 3]),
    ],
)
def test_the_mode_is_what_attention_supports_of_what_was_asked_for(asked, had):
    for name, mode in zip(SUPPORT, had, strict=True):
        if mode is None:
            with pytest.raises(ValueError, match="attention backend x supports graphs NEVER; take PIECEWISE"):
                resolve_cudagraph_mode(asked, AttentionCGSupport[name], "x")
            continue
        got, change = resolve_cudagraph_mode(asked, AttentionCGSupport[name], "x")
        assert got == mode
        assert (change is None) == (asked in (None, mode) and not (asked is None and name == "NEVER"))


def test_with_drafts_a_decode_has_several_tokens():
    dispatcher = GraphDispatcher(max_num_seqs=8, query_len=3)
    assert dispatcher.dispatch([3, 3, 3]).shape == StepShape(9, 3, 3)
    assert dispatcher.dispatch([3] * 8).shape == StepShape(24, 8, 3)
    assert dispatcher.dispatch([1]).mode == "NONE"


@pytest.mark.parametrize("max_num_seqs", [513, 544, 1000, 1024, 1025, 2000])
def test_all_decodes_have_a_graph_and_little_padding(max_num_seqs):
    dispatcher = GraphDispatcher(max_num_seqs)
    first, *_ = dispatcher.first_shapes()
    assert first.num_requests == dispatcher.shapes()[0].num_requests == max_num_seqs
    for requests in range(257, max_num_seqs + 1):
        found = dispatcher.dispatch(np.ones(requests, dtype=np.int32))
        step = 16 if requests <= 512 else 32 if requests <= 1024 else 64
        assert found.mode == "FULL"
        assert requests <= found.shape.num_requests < requests + step
        assert found.shape.num_requests <= max_num_seqs


def test_the_largest_shape_is_captured_first_and_every_dispatch_names_one_of_them():
    dispatcher = GraphDispatcher(max_num_seqs=30, capture_mixed=True)
    shapes = dispatcher.shapes()
    assert [shape.num_tokens for shape in shapes] == sorted((shape.num_tokens for shape in shapes), reverse=True)
    assert len(set(shapes)) == len(shapes)
    for requests in range(1, 31):
        assert dispatcher.dispatch([1] * requests).shape in shapes
        assert dispatcher.dispatch([1] * (requests - 1) + [2]).shape in shapes


def test_staged_rows_are_padded_and_a_ring_of_buffers_is_reused():
    rows = StagedRows(2, 4, torch.device("cpu"))
    for step in range(8):
        rows.stage([[step, step + 1], [7]], padding=[0, -1])
        assert rows.on_device.tolist() == [[step, step + 1, 0, 0], [7, -1, -1, -1]]


def test_sampled_tokens_are_those_of_their_step():
    copies, sampled = SampledTokens(4, torch.device("cpu")), torch.zeros(2, dtype=torch.int64)
    first = copies.start(sampled.fill_(3))
    second = copies.start(sampled.fill_(4))
    assert (first.tolist(), second.tolist()) == ([3, 3], [4, 4])
    third, fourth = copies.start(sampled.fill_(5)), copies.start(sampled.fill_(6))
    assert [copy.tolist() for copy in (first, third, fourth)] == [[3, 3], [5, 5], [6, 6]], "the ring came round"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_replay_sees_what_its_tensors_hold_by_then():
    x = torch.zeros(8, device="cuda")
    total = torch.zeros(8, device="cuda")

    def run(shape: StepShape) -> None:
        total[: shape.num_tokens] += x[: shape.num_tokens] * 2

    graphs = CudaGraphs(run, torch.device("cuda"))
    graphs.capture([StepShape(8, 8, 1), StepShape(4, 4, 1)])
    assert StepShape(4, 4, 1) in graphs
    total.zero_()
    x.fill_(1)
    graphs.replay(StepShape(4, 4, 1))
    assert total.tolist() == [2.0] * 4 + [0.0] * 4
