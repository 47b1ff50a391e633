"""Owns the options of commands that use an engine plainly: how it is made, not what it is asked."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

LoadFormatOption = Annotated[
    Literal["auto", "dummy"],
    typer.Option("--load-format", help="dummy: random weights of the model's shape, from its config.json alone."),
]
DtypeOption = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option("--dtype", help="Number format; auto: float32 on a CPU, the checkpoint's own on a GPU."),
]
MultiprocessOption = Annotated[bool, typer.Option("--mp", help="Give the engine core a process of its own.")]
AsyncSchedulingOption = Annotated[
    bool, typer.Option("--async-scheduling", help="Plan a step while the one before it runs.")
]


def engine_settings(
    load_format: str, dtype: str, multiprocess: bool, async_scheduling: bool, max_model_len: int | None
) -> dict[str, Any]:
    """The options as arguments of an engine."""
    return {
        "load_format": load_format,
        "dtype": dtype,
        "multiprocess": multiprocess,
        "async_scheduling": async_scheduling,
        "max_model_len": max_model_len,
    }
