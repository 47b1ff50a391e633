"""vLLM's arguments are honoured, mean the only thing that there is here, or are refused: none is ignored."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import pytest
import torch

from minivllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from minivllm.engine.fixed_args import FixedArgs
from minivllm.utils.argparse_utils import FlexibleArgumentParser, human_readable_int

OTHER_VALUES: dict[type, Any] = {bool: None, int: 2, float: 4.0, str: "other", type(None): "other"}


@pytest.mark.parametrize("argument", dataclasses.fields(FixedArgs), ids=lambda argument: argument.name)
def test_an_argument_with_one_value_takes_it_and_no_other(argument: dataclasses.Field[Any]) -> None:
    for value in argument.metadata["values"]:
        assert getattr(EngineArgs.from_kwargs(**{argument.name: value}), argument.name) == (
            argument.default if value is None else value
        )
    if {True, False} <= {v for v in argument.metadata["values"] if isinstance(v, bool)}:
        return  # both mean the same
    other = not argument.default if isinstance(argument.default, bool) else OTHER_VALUES[type(argument.default)]
    if other in argument.metadata["values"]:
        other = {"another": "kind"}
    why = argument.metadata["why"]
    for make in (EngineArgs.from_kwargs, EngineArgs):
        with pytest.raises(ValueError, match=rf"^{argument.name} must be .*, got .*: ") as error:
            make(**{argument.name: other})
        assert str(error.value).endswith(why)


def test_none_means_the_default_everywhere() -> None:
    everything = dict.fromkeys(argument.name for argument in dataclasses.fields(EngineArgs))
    assert EngineArgs.from_kwargs(**everything) == EngineArgs()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("float", "float32"),
        ("half", "float16"),
        ("bfloat16", "bfloat16"),
        (torch.bfloat16, "bfloat16"),
        ("auto", "auto"),
    ],
)
def test_every_name_of_a_number_format_is_known(given: Any, meant: str) -> None:
    assert EngineArgs.from_kwargs(dtype=given).dtype == meant


def test_every_argument_has_an_option_and_comes_back_from_it() -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    assert isinstance(parser, FlexibleArgumentParser)
    parser.set_defaults(model="another")
    parser.add_argument("--my-own")
    args = parser.parse_args([])
    names = {argument.name for argument in dataclasses.fields(EngineArgs)}
    assert set(vars(args)) == names | {"my_own"}
    assert EngineArgs.from_cli_args(args) == EngineArgs(model="another")
    assert EngineArgs(**vars(EngineArgs.from_cli_args(args))) == EngineArgs(model="another"), "vars() works"


def test_options_are_read_as_their_arguments_kinds() -> None:
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    line = (
        "--max_model_len 2k --block-size=8 --no-enable-prefix-caching --dtype bfloat16 --watermark 0.25 "
        '--tensor-parallel-size 1 --hf-overrides {} --override-generation-config {"temperature":0.5} --multiprocess '
        "--prefix_caching_hash_seed=a_b --scheduling-policy priority --trust-remote-code --compilation-config 0"
    )
    args = EngineArgs.from_cli_args(parser.parse_args(line.split()))
    assert args == EngineArgs(
        max_model_len=2000,
        block_size=8,
        enable_prefix_caching=False,
        dtype="bfloat16",
        watermark=0.25,
        hf_overrides={},
        override_generation_config={"temperature": 0.5},
        multiprocess=True,
        prefix_caching_hash_seed=b"a_b",
        scheduling_policy="priority",
        trust_remote_code=True,
        compilation_config=0,
    )


def test_a_group_of_pythons_own_parser_takes_the_options_too() -> None:
    parser = argparse.ArgumentParser()
    group = EngineArgs.add_cli_args(parser.add_argument_group("engine"))
    group.set_defaults(model="m")
    assert EngineArgs.from_cli_args(parser.parse_args(["--max_num_seqs", "3"])) == EngineArgs(model="m", max_num_seqs=3)


@pytest.mark.parametrize("line", ["--dtype int8", "--max-num-seqs many", "--scheduling-policy lifo", "--block-size"])
def test_a_wrong_value_on_the_command_line_is_usage(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(line.split())
    assert error.value.code == 2
    assert line.split()[0] in capsys.readouterr().err


def test_a_wrong_value_behind_the_command_line_is_told_as_in_python() -> None:
    args = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(["--tensor-parallel-size", "4"])
    with pytest.raises(ValueError, match="tensor_parallel_size must be 1, got 4: the model runs on one device"):
        EngineArgs.from_cli_args(args)


def test_units_of_numbers() -> None:
    assert [human_readable_int(text) for text in ("7", "-1", "1k", "1K", "2.5k", "1M", "1g")] == [
        7, -1, 1000, 1024, 2500, 2**20, 10**9,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="invalid literal"):
        human_readable_int("1x")
