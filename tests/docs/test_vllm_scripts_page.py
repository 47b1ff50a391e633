"""docs/vllm-scripts.md names every argument that has one value, with its reason, and its program runs."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import fields
from pathlib import Path

from minivllm.engine.fixed_args import FixedArgs

PAGE = (Path(__file__).parents[2] / "docs" / "vllm-scripts.md").read_text(encoding="utf-8")


def test_every_argument_with_one_value_stands_on_the_page() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.split("| argument |")[1].splitlines()[2:] if "|" in line]
    told = {name: (values, why) for names, values, why in rows for name in re.findall(r"`(\w+)`", names)}
    assert set(told) == {argument.name for argument in fields(FixedArgs)}
    for argument in fields(FixedArgs):
        values, why = told[argument.name]
        assert why == argument.metadata["why"]
        assert ", ".join(map(repr, argument.metadata["values"])) in values.split("; ")


def test_the_program_runs() -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program, {})
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("Once upon a time ")
    assert lines[1].startswith("None ")
    assert lines[2].startswith("A ")
