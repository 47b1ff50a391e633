"""Owns options of scripts: a parser that takes `--max_model_len` for `--max-model-len`, and an option per argument.

Upstream: vllm/utils/argparse_utils.py::FlexibleArgumentParser, vllm/engine/arg_utils.py::get_kwargs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import types
from typing import Any, Literal, Union, get_args, get_origin

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)([kmgtKMGT])")


class FlexibleArgumentParser(argparse.ArgumentParser):
    """argparse, with underscores and hyphens meaning the same in the names of options."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See argparse; other methods come through here."""
        given = sys.argv[1:] if args is None else args
        return super().parse_known_args([_hyphens(argument) for argument in given], namespace)


def _hyphens(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if argument.startswith("--") else argument


def add_option(parser: argparse._ActionsContainer, argument: dataclasses.Field[Any], hint: Any) -> None:
    """Give a parser an option for a field of a dataclass.

    Args:
        parser: The parser, or a group of one.
        argument: The field. Its default is the option's.
        hint: The field's type.
    """
    flag = f"--{argument.name.replace('_', '-')}"
    names = [flag] if flag == f"--{argument.name}" else [flag, f"--{argument.name}"]
    kinds = [kind for kind in _members(hint) if kind is not type(None)]
    if bool in kinds:
        parser.add_argument(*names, action=argparse.BooleanOptionalAction, default=argument.default)
        return
    choices = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)] or None
    read = next((_READERS[kind] for kind in kinds if kind in _READERS), str)
    if Any in kinds or any(get_origin(kind) is dict for kind in kinds):
        read = _json_or_text
    metavar = None if choices else argument.name.upper()
    parser.add_argument(*names, type=read, default=argument.default, choices=choices, metavar=metavar)


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def human_readable_int(text: str) -> int:
    """A whole number, perhaps with a unit: 2k is 2000, 2K is 2048.

    Raises:
        ValueError: It is none.
    """
    match = _NUMBER.fullmatch(text.strip())
    return int(text) if match is None else int(float(match[1]) * _UNITS[match[2]])


def _json_or_text(text: str) -> Any:
    """A number, an object or null as JSON writes them; whatever else is a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


_READERS: dict[Any, Any] = {int: human_readable_int, float: float, bytes: str.encode, str: str}
