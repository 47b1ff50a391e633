"""The rule about hits: on the fault that it is for, on sound runs, and on all other faults."""

from __future__ import annotations

from minivllm.exercises import rules
from minivllm.exercises.bench import Bench
from minivllm.exercises.faults import run_here
from minivllm.exercises.runs import Run


def engine(bench: Bench) -> list[Run]:
    """The run of the planted fault."""
    return [run_here(bench)]


def test_it_finds_the_fault(bench: Bench) -> None:
    """The rule speaks where R2 is given a block of R1, in that iteration."""
    rules.must_fire(bench, "state")


def test_it_is_silent_where_nothing_is_wrong(bench: Bench) -> None:
    """The rule says nothing of any scenario, nor of the runs of this course without their faults."""
    rules.must_be_silent(bench, "state")


def test_it_bears_every_other_fault(bench: Bench) -> None:
    """The rule comes to the end of the runs of all other faults of this course; whether it finds them is told."""
    rules.must_bear_faults(bench)
