"""`explain`: the learner's questions as one command each, the document's keys, and mistakes in one clear line."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run

TOPICS = ("slot", "budget", "alloc", "hit-rate", "memory", "graph", "weights", "roofline", "ledger")

# A learner's question (spec: number), the command that answers it, and what the answer must say.
QUESTIONS = [
    (
        "5: how do max_num_seqs, max_num_batched_tokens and max_model_len relate?",
        "explain budget --iteration 3 -s mixed-batch",
        ("max_num_batched_tokens (260) bounds", "max_num_seqs (8) bounds", "max_model_len (2304) bounds"),
    ),
    (
        "6: how can a prompt run that is longer than max_num_batched_tokens?",
        "explain budget --request R1 -s chunked",
        ("200 = 0 + 63 + 63 + 63 + 11", "A prompt only has to fit max_model_len"),
    ),
    (
        "7: is KV allocated up front or block by block, and can more run than the start-up log says?",
        "explain alloc --request R0 -s kv-pressure",
        ("Blocks come one by one", "nobody reserves them", "requests of max_model_len"),
    ),
    (
        "10: what does the hit rate count?",
        "explain hit-rate -s kv-pressure",
        ("tokens found / tokens looked up", "Only whole blocks are cached", "of preempted requests that came back"),
    ),
    (
        "18: how is slot_mapping computed, and can slots collide?",
        "explain slot --request R1 --pos 37 -s chunked",
        ("slot = block_table[37 // 16] * 16 + 37 % 16 =", "so their slots differ"),
    ),
    (
        "21: queue time, TTFT, prefill and decode time of a request?",
        "explain ledger --request R1 -s hello",
        ("life = queue + prefill + decode", "queue iterations", "ttft iterations", "decode iterations"),
    ),
    (
        "spare: where does num_gpu_blocks come from?",
        "explain memory -s hello",
        ("bytes per block = 2 * layers", "num_gpu_blocks is set"),
    ),
    (
        "spare: how does load_weights map names?",
        "explain weights -s hello",
        ("q_proj, k_proj, v_proj one below the other", "gate_proj, up_proj one below the other", "head is tied"),
    ),
]


@pytest.mark.parametrize(("question", "command", "said"), QUESTIONS, ids=[q[0] for q in QUESTIONS])
def test_a_learners_question_is_one_command(run: Run, question: str, command: str, said: tuple[str, ...]) -> None:
    ended = run(*command.split(), "--width", "300")
    assert ended.code == 0, ended.err
    for words in said:
        assert words in ended.out
    assert ended.err.startswith("next: minivllm ")


def test_the_next_command_works(run: Run) -> None:
    for topic in TOPICS:
        ended = run("explain", topic, "-s", "kv-pressure")
        following = ended.err.strip().removeprefix("next: minivllm ").split()
        assert run(*following).code == 0, following


def test_the_document_has_the_keys_of_the_contract(run: Run) -> None:
    for topic in TOPICS:
        document = run("explain", topic, "-s", "kv-pressure", "--json").json
        assert document["schema"] == "minivllm.explain/1"
        assert {"topic", "request", "formula", "values", "result", "source"} <= document.keys()
        assert document["topic"] == topic
        assert document["source"].keys() == {"ours", "vllm"}


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("width", ["40", "79", "110", "160"])
def test_it_fits_the_screen_and_ascii_is_ascii(run: Run, topic: str, width: str) -> None:
    out = run("explain", topic, "-s", "kv-pressure", "--width", width, "--ascii").out
    assert out.isascii()
    assert max(len(line) for line in out.splitlines()) <= int(width)


def test_a_given_machine_gives_the_floor(run: Run) -> None:
    command = ("explain", "roofline", "-s", "chunked", "--iteration", "1", "--json")
    values = run(*command, "--bandwidth-gb-s", "10", "--tflops", "0.1").json["values"]
    assert values["floor_ms"] == max(values["bytes"] / 1e7, values["flops"] / 1e8)
    assert "floor_ms" not in run(*command).json["values"]


def test_a_machine_can_be_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    told = [{"read_gb_per_s": 20.0, "multiply_gflops": 100.0}]
    monkeypatch.setattr("minivllm.bench.floor.floor", lambda *args: told)
    values = run("explain", "roofline", "-s", "chunked", "--measure", "--json").json["values"]
    assert (values["bandwidth_gb_s"], values["tflops"]) == (20.0, 0.1)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("explain slots -s hello", 2, "there is no topic 'slots'; did you mean slot?"),
        ("explain everything -s hello", 2, "there are: slot, budget"),
        ("explain budget --pos 3 -s hello", 2, "--pos is for slot, not for budget"),
        ("explain slot --tflops 3 -s hello", 2, "--tflops is for roofline, not for slot"),
        ("explain roofline --tflops 3 -s hello", 2, "belong together: give both"),
        ("explain roofline --tflops 0 --bandwidth-gb-s 1 -s hello", 2, "--tflops must be a number above 0, got 0"),
        ("explain roofline --tflops 1e-320 --bandwidth-gb-s 1 -s hello", 2, "--tflops must be from 1e-06 to 1e+09"),
        ("explain roofline --tflops 1 --bandwidth-gb-s 1e308 -s hello", 2, "--bandwidth-gb-s must be from 1e-06"),
        ("bench latency --tflops 1 --bandwidth-gb-s 0", 2, "--bandwidth-gb-s must be a number above 0, got 0"),
        ("bench throughput --tflops nan --bandwidth-gb-s 1", 2, "--tflops must be a number above 0, got nan"),
        ("explain roofline --measure --tflops 1 -s hello", 2, "exclude each other"),
        ("explain ledger --request R99 -s hello", 1, "this run has no request 'R99'; it has R0, R1"),
        ("explain budget --iteration 999 -s hello", 1, "the nearest is"),
        ("explain slot --request R0 --pos 999 -s hello", 1, "R0 has no position 999"),
        ("explain hit-rate -s thrash", 1, "prefix caching is off in this run"),
    ],
)
def test_mistakes_are_one_line(run: Run, command: str, code: int, said: str) -> None:
    ended = run(*command.split())
    assert ended.code == code
    assert said in ended.error
    assert ended.out == ""


def test_a_long_table_is_cut_and_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minivllm.entrypoints.cli.explain_view._SHOWN", 2)
    rows = run("explain", "hit-rate", "-s", "kv-pressure", "--json").json["tables"][0]["rows"]
    assert len(rows) > 2
    assert f"and {len(rows) - 2} more (--json has all)" in run("explain", "hit-rate", "-s", "kv-pressure").out


def test_what_is_the_same_for_the_whole_run_says_so(run: Run) -> None:
    ended = run("explain", "memory", "--request", "R0", "-s", "hello")
    assert ended.code == 0
    assert "memory is the same for the whole run" in ended.err


def test_a_simulated_log_has_no_model_to_explain(run: Run, tmp_path: object) -> None:
    assert run("simulate", "-s", "kv-pressure", "--out", "simulated.jsonl").code == 0
    ended = run("explain", "memory", "--log", "simulated.jsonl")
    assert ended.code == 1
    assert "its header holds no shape of a model (model_shape); no model ran" in ended.error
    assert run("explain", "slot", "--log", "simulated.jsonl", "--json").json["result"] is not None


def test_it_needs_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from minivllm.entrypoints.cli.main import main; "
        "code = main(['explain', 'ledger', '-s', 'two-processes', '--json']); "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules; sys.exit(code)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
