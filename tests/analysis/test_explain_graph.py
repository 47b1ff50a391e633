"""The rule of dispatch that is explained is the one that the worker has."""

from __future__ import annotations

import itertools

import pytest

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.explain import explain
from minivllm.analysis.explain_answer import Ask
from minivllm.analysis.explain_graph import capture_sizes, captured_decodes, dispatch, most_in_pieces, piece_sizes
from minivllm.trace.events import Event
from minivllm.trace.reader import Log
from minivllm.worker import cuda_graphs
from tests.analysis.logs import changed, event_of, recorded


@pytest.mark.parametrize(("max_num_seqs", "query_len"), list(itertools.product((1, 3, 8, 100, 300, 600), (1, 3))))
def test_sizes_and_rule_are_the_workers(max_num_seqs: int, query_len: int) -> None:
    assert capture_sizes(max_num_seqs, query_len) == cuda_graphs.capture_sizes(max_num_seqs, query_len)
    pieces = piece_sizes(2048)
    dispatcher = cuda_graphs.GraphDispatcher(max_num_seqs, query_len, most_in_pieces=2048)
    shapes = sorted(shape.num_requests for shape in dispatcher.shapes())
    assert captured_decodes(max_num_seqs, query_len) == shapes
    for requests in range(1, max_num_seqs + 1):
        for query_lens in ([query_len] * requests, [query_len] * (requests - 1) + [17], [2] * (requests - 1) + [1900]):
            theirs = dispatcher.dispatch(query_lens)
            assert dispatch(query_lens, max_num_seqs, query_len, pieces) == (
                theirs.mode,
                theirs.shape.num_tokens,
                theirs.reason,
            )


@pytest.mark.parametrize("most", [1, 300, 512, 2048, 3000, 8192])
@pytest.mark.parametrize("weights_per_layer", [1, 15_728_640, 46_792_704, 10**12])
def test_sizes_of_pieces_are_the_workers(most: int, weights_per_layer: int) -> None:
    assert piece_sizes(most) == cuda_graphs.piece_sizes(most)
    assert most_in_pieces(most, weights_per_layer) == cuda_graphs.most_in_pieces(most, weights_per_layer)


def test_a_cpu_has_none_and_a_gpu_would_have_one() -> None:
    answer = explain(recorded("hello"), "graph", Ask(iteration=5))
    assert answer.result == {"mode": "NONE", "padded": answer.values["tokens"]}
    assert "a CPU has no graphs to replay" in answer.answer
    assert answer.values["on_a_gpu"]["mode"] == "FULL"


def test_it_follows_the_batch() -> None:
    def replay(events: list[Event]) -> None:
        event_of(events, "prepare_inputs", 5).data.update(graph_mode="FULL", num_tokens_padded=4)

    answer = explain(changed(recorded("hello"), replay), "graph", Ask(iteration=5))
    assert answer.result == {"mode": "FULL", "padded": 4}
    assert "in one graph (FULL)" in answer.answer
    assert answer.filled == f"padding = 4 - {answer.values['tokens']} = {4 - answer.values['tokens']}"


def test_without_the_batch_it_cannot_know() -> None:
    log = recorded("hello")
    with pytest.raises(CannotKnowError, match=r"batch \(prepare_inputs\) of iteration 5"):
        explain(Log(log.header, [e for e in log.events if e.kind != "prepare_inputs"]), "graph", Ask(iteration=5))
