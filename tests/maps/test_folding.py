"""What many requests have in common is told of the first few; data, and who was asked for, are never folded."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from minivllm.entrypoints.cli.map_view import MapView
from minivllm.entrypoints.cli.plan_view import PlanView
from minivllm.maps.folding import Folded, Folding
from minivllm.maps.plan import plan_map
from minivllm.trace.reader import Log, read_log, read_window
from tests.trace.workloads import simulated_log, workload_of

IDS = [f"R{number}" for number in range(64)]


def crowd(num_requests: int, max_num_seqs: int) -> Log:
    """A run of many requests that all come at once."""
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 512, "block_size": 4, "num_gpu_blocks": 999}
    requests = [
        {"id": f"R{n}", "arrival_step": 0, "prompt_token_ids": [n, 7, 8, 9, 9], "max_tokens": 6}
        for n in range(num_requests)
    ]
    document = {"name": "crowd", "config": {**limits, "max_model_len": 128}, "requests": requests}
    return read_log(simulated_log(workload_of(document)))


def drawn(log: Log, *, request: str | None = None, iteration: str | None = None, width: int = 100) -> str:
    view, plan = PlanView(iteration, request), plan_map(log)
    file = io.StringIO()
    view.draw(plan, view.choose(plan), log.header, Console(file=file, width=width))
    return file.getvalue()


def test_a_few_alike_are_told_one_by_one() -> None:
    sentences = [f"R{n} arrived with {n} tokens." for n in range(2, 8)]
    assert Folding(IDS).sentences(sentences) == sentences


@pytest.mark.parametrize(("lang", "line"), [("en", "… and 61 more in the same way: R3–R63."), ("zh", "R3–R63。")])
def test_of_many_alike_the_first_are_told_and_the_others_named(lang: str, line: str) -> None:
    sentences = [f'{i} entered: {n + 9} tokens computed now; it sampled "{"a" * n}".' for n, i in enumerate(IDS)]
    told = Folding(IDS, lang).sentences(sentences)
    assert told[:3] == sentences[:3]
    assert told[3].endswith(line)
    assert len(told) == 4


def test_what_has_another_reason_stands_by_itself() -> None:
    waits = [f"{i} waits: behind R4, where the loop stopped." for i in IDS[5:]]
    told = Folding(IDS).sentences(["R4 waits: 4 of 4 places are taken (max_num_seqs).", *waits, "The cache is empty."])
    assert told[0].startswith("R4 waits: 4 of 4")
    assert told[-1] == "The cache is empty."
    assert len(told) == 1 + 3 + 1 + 1


def test_nothing_of_the_one_that_was_asked_for_is_left_out() -> None:
    sentences = [f"{i} arrived with 9 tokens." for i in IDS]
    told = Folding(IDS, keep="R40").sentences(sentences)
    assert "R40 arrived with 9 tokens." in told
    assert told[3] == "… and 60 more in the same way: R3–R39, R41–R63."
    rows = Folding(IDS, keep="R40").rows(IDS, lambda i: "new", lambda i: i)
    assert "R40" in rows
    assert [len(row.entries) for row in rows if isinstance(row, Folded)] == [37, 20]


def test_neighbours_of_another_kind_are_not_folded_together() -> None:
    rows = Folding(IDS).rows(IDS, lambda i: "running" if int(i[1:]) < 5 else "new", lambda i: i)
    assert rows[:8] == IDS[:8]
    assert [row.entries for row in rows[8:]] == [IDS[8:]]


@pytest.mark.parametrize("max_num_seqs", [4, 64])
def test_an_iteration_of_many_requests_fits_on_a_screen(max_num_seqs: int) -> None:
    log = crowd(64, max_num_seqs)
    plan = plan_map(log)
    for entry in plan["iterations"]:
        who = {e["request"] for key in ("scheduled", "not_scheduled") for e in entry[key]}
        assert who <= {request for line in entry["narration"] for request in line.replace(":", " ").split()}
        own = drawn(log, iteration=str(entry["iteration"])).split("\n\n")[0]
        assert len(own.splitlines()) <= 40
    for width in (40, 80, 160):
        assert max(map(cell_len, drawn(log, width=width).splitlines())) <= width


def test_a_long_run_is_told_up_to_a_limit_and_then_says_how_to_see_the_rest() -> None:
    log = crowd(100, 2)
    picture = drawn(log)
    assert len(picture.splitlines()) < 400
    assert "see --iteration N, --iteration " in picture
    assert "R99" in drawn(log, request="R99")


def test_iterations_with_the_same_requests_waiting_are_one_line() -> None:
    log = crowd(9, 2)
    assert "in each, 2 requests decoded one token, and 7 waited as before" in drawn(log)


def test_the_story_above_a_state_map_is_folded_and_a_window_counts_all_tokens_of_a_request() -> None:
    log = crowd(64, 64)
    file = io.StringIO()
    MapView("state", "0").draw(log, Console(file=file, width=120))
    assert "… and 61 more in the same way: R3–R63." in file.getvalue()
    assert log.path is not None
    window = read_window(log.path, 4, 5)
    assert "R0   [5 prompt tokens]   (6 tokens, length)" in drawn(window)
