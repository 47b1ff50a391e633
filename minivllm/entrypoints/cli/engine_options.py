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
# A GPU plans ahead by default, so it can be switched off, too.
AheadOption = Annotated[
    bool | None,
    typer.Option(
        "--async-scheduling/--no-async-scheduling",
        help="Plan a step while the one before it runs; default: on a GPU.",
        show_default=False,
    ),
]
EnforceEagerOption = Annotated[
    bool, typer.Option("--enforce-eager", help="On a GPU: launch every step kernel by kernel, record no graphs.")
]
KVCacheDtypeOption = Annotated[
    Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"],
    typer.Option("--kv-cache-dtype", help="Number format of the KV cache; auto: the model's. 8 bits need a GPU."),
]


def complete_setting(incomplete: str) -> list[str]:
    """Names of settings, for the shell's completion."""
    from minivllm.analysis.whatif_knobs import KNOBS

    return [f"{name}=" for name in KNOBS if name.startswith(incomplete)]


SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Setting to change; may be given again: max_num_batched_tokens, max_num_seqs, num_gpu_blocks, "
        "block_size, long_prefill_token_threshold, enable_chunked_prefill, enable_prefix_caching, policy, "
        "scheduler_reserve_full_isl, watermark, async_scheduling.",
        metavar="NAME=VALUE",
        autocompletion=complete_setting,
        show_default=False,
    ),
]
# As the engine's arguments are called, where that is not the setting's own name.
_ARGUMENTS = {"num_gpu_blocks": "num_gpu_blocks_override", "policy": "scheduling_policy"}


def with_set(engine: dict[str, Any], texts: list[str] | None) -> dict[str, Any]:
    """Arguments of an engine, and what --set adds to them.

    Raises:
        KnobError: A setting that does not exist, or a value that it cannot have, or one that another option gave.
    """
    if not texts:
        return engine
    from minivllm.analysis.whatif_knobs import KnobError, parse_settings

    settings = {_ARGUMENTS.get(name, name): value for name, value in parse_settings(texts).items()}
    for name in settings.keys() & engine.keys():
        raise KnobError(f"{name} is given twice, by --set and by --{name.replace('_', '-')}; leave one out")
    return {**engine, **settings}


def engine_settings(
    load_format: str,
    dtype: str,
    multiprocess: bool,
    async_scheduling: bool | None,
    max_model_len: int | None,
    enforce_eager: bool,
    kv_cache_dtype: str,
) -> dict[str, Any]:
    """The options as arguments of an engine."""
    return {
        "load_format": load_format,
        "dtype": dtype,
        "multiprocess": multiprocess,
        "async_scheduling": async_scheduling,
        "max_model_len": max_model_len,
        "enforce_eager": enforce_eager,
        "kv_cache_dtype": kv_cache_dtype,
    }
