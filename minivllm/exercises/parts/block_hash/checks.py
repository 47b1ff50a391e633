"""What a block's name must be: a function of all that comes before, and of nothing else."""

from __future__ import annotations

import subprocess
import sys

from minivllm.exercises.bench import Bench, WrongError
from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest

_START = bytes(32)

# R1 begins with the tokens that R0 has in its second block, and R2 has them in its second, after another first one.
SAME_BLOCK = Scenario(
    name="same-block-after-another",
    title="Prompts that have a block in common, after different beginnings",
    teaches="A block is named by all that comes before it.",
    engine={"max_model_len": 128, "block_size": 8, "num_gpu_blocks_override": 33, "max_num_seqs": 4},
    requests=(
        ScenarioRequest("R0", (Piece(0, 8), Piece(100, 12)), max_tokens=4, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(100, 8), Piece(40, 12)), max_tokens=4, arrival_step=5, sampling=GO_ON),
        ScenarioRequest("R2", (Piece(60, 8), Piece(100, 12)), max_tokens=4, arrival_step=5, sampling=GO_ON),
        ScenarioRequest("R3", (Piece(0, 8), Piece(100, 12)), max_tokens=4, arrival_step=5, sampling=GO_ON),
    ),
)


def engine(bench: Bench) -> list:
    """The runs that must change when the solution is broken."""
    return [bench.run("prefix-warmup"), bench.run(SAME_BLOCK)]


def test_a_name_is_32_bytes_and_always_the_same(bench: Bench) -> None:
    """A name is 32 bytes, and the same call gives the same name."""
    first = bench.call("hash_block_tokens", _START, [5, 6, 7, 8])
    first.is_true(isinstance(first.value, bytes) and len(first.value) == 32, "32 bytes")
    again = bench.call("hash_block_tokens", _START, [5, 6, 7, 8])
    again.gives(first.value, "The same call gave another name the second time.")


def test_every_token_counts(bench: Bench) -> None:
    """Another token, or the same ones in another order, is another name."""
    first = bench.call("hash_block_tokens", _START, [5, 6, 7, 8]).value
    for tokens in ([5, 6, 7, 9], [8, 7, 6, 5], [5, 6, 78, 8], [300, 6, 7, 8], [44, 6, 7, 8]):
        other = bench.call("hash_block_tokens", _START, tokens)
        other.is_true(other.value != first, "another name than that of [5, 6, 7, 8]")
    pairs = [[1, 23], [12, 3], [300, 1], [44, 1]]  # alike when written without a comma, or cut to a byte
    names = [bench.call("hash_block_tokens", _START, tokens) for tokens in pairs]
    names[-1].is_true(len({name.value for name in names}) == len(pairs), f"four names for {pairs}")


def test_the_parent_counts(bench: Bench) -> None:
    """The same tokens after another parent are another block."""
    first = bench.call("hash_block_tokens", _START, [5, 6, 7, 8]).value
    other = bench.call("hash_block_tokens", first, [5, 6, 7, 8])
    other.is_true(other.value != first, "another name than after the start of the chain")


def test_extra_keys_count(bench: Bench) -> None:
    """A salt or an adapter is another name, and one kind of key is never taken for the other."""
    keys = [(), (("salt", "x"),), (("salt", "y"),), (("lora", "x", "x"),), (("salt", "x"), ("lora", "x", "x"))]
    calls = [bench.call("hash_block_tokens", _START, [5, 6], key) for key in keys]
    for place, call in enumerate(calls):
        same = [keys[i] for i, other in enumerate(calls[:place]) if other.value == call.value]
        call.is_true(not same, f"another name than with {same[0] if same else ''}")


def test_other_processes_give_the_same_name(bench: Bench) -> None:
    """Another process gives the same name: no number that Python draws when it starts."""
    here = bench.call("hash_block_tokens", _START, [5, 6, 7, 8], (("salt", "x"),))
    program = (
        "import runpy, sys; part = runpy.run_path(sys.argv[1])['hash_block_tokens'];"
        "sys.stdout.write(part(bytes(32), [5, 6, 7, 8], (('salt', 'x'),)).hex())"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(bench.file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONHASHSEED": "77"})
    if done.returncode == 0 and done.stdout != here.value.hex():
        raise WrongError(
            "hash() of a text is another number in each process.", call=here.call, expected="one name", got="two names"
        )


def test_the_engine_finds_what_it_has_computed(bench: Bench) -> None:
    """In the engine: three questions with one preamble, and the second and third find it in the cache."""
    run = bench.run("prefix-warmup")
    bench.same_plans(run)
    bench.sound(run)


def test_the_engine_takes_nobody_elses_block(bench: Bench) -> None:
    """In the engine: a block with the same tokens after another beginning is not taken."""
    run = bench.run(SAME_BLOCK)
    bench.same_plans(run)
    bench.same_tokens(run)
    bench.sound(run)
