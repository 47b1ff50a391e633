"""Owns reading a workload file: engine limits and pinned arrivals, with made-up tokens and no model.

The format is that of the scheduler oracle. Every mistake in a file is told with its place and what would be right.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from minivllm.config import CacheConfig, ModelConfig, SchedulerConfig, SchedulerPolicy, Semantics, VllmConfig
from minivllm.core.messages import EngineCoreRequest
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.driver import DEFAULT_MAX_STEPS, Arrival
from minivllm.scenarios.json_place import line_of, line_of_repeated_key

# Arrivals of one step differ by one in `arrival_time`; steps lie this far apart.
_ARRIVAL_TIME_PER_STEP = 1000

# Every block is an object of its own, even without a model: a mistyped number must not fill the memory.
_MAX_BLOCKS = 10_000_000

_MAX_TOKEN_ID = (1 << 31) - 1

_MISSING = re.compile(r"Object missing required field `(\w+)`")
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text in quotes",
    type(None): "null",
}


class WorkloadError(ValueError):
    """A workload that cannot be run. The message names the file, the place and the remedy."""


class WorkloadConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the simulated engine: see SchedulerConfig and CacheConfig for what they mean."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_gpu_blocks: int
    max_model_len: int
    long_prefill_token_threshold: int = 0
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    policy: SchedulerPolicy = "fcfs"
    vocab_size: int = 1000
    eos_token_id: int | None = None
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    max_steps: int = DEFAULT_MAX_STEPS


class WorkloadRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request of a workload."""

    id: str
    arrival_step: int
    prompt_token_ids: list[int]
    max_tokens: int
    priority: int = 0
    min_tokens: int = 0
    stop_token_ids: list[int] | None = None
    eos_token_id: int | msgspec.UnsetType | None = msgspec.UNSET
    ignore_eos: bool = False
    abort_step: int | None = None
    abort_phase: Literal["before", "mid"] = "before"
    arrival_time: float | None = None


class _WorkloadFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    config: WorkloadConfig
    requests: list[WorkloadRequest]


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload, ready to run.

    Attributes:
        name: Its name.
        vllm_config: Engine settings.
        vocab_size: Of the made-up tokens.
        arrivals: Who comes when.
        max_steps: Step limit of the run.
    """

    name: str
    vllm_config: VllmConfig
    vocab_size: int
    arrivals: list[Arrival]
    max_steps: int


def load_workload(path: Path, semantics: Semantics) -> Workload:
    """Read and check a workload file.

    Raises:
        WorkloadError: The file is missing, is not JSON, or describes something that cannot be run.
    """
    try:
        raw = path.read_text(encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise WorkloadError(
            f"{path}: not a text file in UTF-8 (byte {error.start}); convert it first, for instance with "
            "iconv -f latin1 -t utf-8"
        ) from None
    try:
        document = json.loads(raw, object_pairs_hook=_each_key_once)
    except json.JSONDecodeError as error:
        raise WorkloadError(
            f"{path}, line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}. Is the file complete?"
        ) from None
    except WorkloadError as error:
        raise WorkloadError(f"{path}, line {line_of_repeated_key(raw)}: {error}") from None
    except RecursionError:
        raise WorkloadError(f"{path}: nested too deeply: a workload has its values four brackets deep") from None
    except ValueError:
        raise WorkloadError(f"{path}: not JSON that can be read: a number has thousands of digits") from None
    try:
        _check_keys(document)
        return _build(msgspec.convert(document, _WorkloadFile), semantics)
    except msgspec.ValidationError as error:
        place = _place_of(str(error))
        raise WorkloadError(f"{path}: {_explained(str(error), place, document)} (line {line_of(raw, place)})") from None
    except ValueError as error:
        raise WorkloadError(f"{path}: {error}{_line_of(str(error), raw)}") from None


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON takes the last of two equal keys without a word; here that is most likely a slip."""
    document: dict[str, Any] = {}
    for key, value in pairs:
        if key in document:
            raise WorkloadError(f"the key {key!r} stands twice in one object; leave one out")
        document[key] = value
    return document


def _build(file: _WorkloadFile, semantics: Semantics) -> Workload:
    config = file.config
    _check_at_least("config.vocab_size", config.vocab_size, 1)
    _check_at_least("config.max_steps", config.max_steps, 1)
    if config.num_gpu_blocks > _MAX_BLOCKS:
        raise WorkloadError(f"config.num_gpu_blocks must be at most {_MAX_BLOCKS}, got {config.num_gpu_blocks}")
    scheduler_config = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        enable_chunked_prefill=config.enable_chunked_prefill,
        policy=config.policy,
        scheduler_reserve_full_isl=config.scheduler_reserve_full_isl,
        watermark=config.watermark,
        async_scheduling=config.async_scheduling,
        semantics=semantics,
    )
    cache_config = CacheConfig(
        block_size=config.block_size,
        num_gpu_blocks=config.num_gpu_blocks,
        enable_prefix_caching=config.enable_prefix_caching,
        hash_seed=b"workload",
    )
    vllm_config = VllmConfig(
        model_config=ModelConfig(model="simulated"), scheduler_config=scheduler_config, cache_config=cache_config
    )
    seen: set[str] = set()
    arrivals = []
    for index, request in enumerate(file.requests):
        where = f"requests[{index}] ({request.id!r})"
        if request.id in seen:
            raise WorkloadError(f"{where}: the id is used twice; give every request its own")
        seen.add(request.id)
        arrivals.append(_arrival(index, request, config, where))
    return Workload(file.name, vllm_config, config.vocab_size, arrivals, config.max_steps)


def _arrival(index: int, request: WorkloadRequest, config: WorkloadConfig, where: str) -> Arrival:
    _check_at_least(f"{where}: arrival_step", request.arrival_step, 0)
    if not request.prompt_token_ids:
        raise WorkloadError(f"{where}: prompt_token_ids is empty; give it at least one token")
    for key, token_ids in (
        ("prompt_token_ids", request.prompt_token_ids),
        ("stop_token_ids", request.stop_token_ids or []),
    ):
        for position, token_id in enumerate(token_ids):
            if not 0 <= token_id <= _MAX_TOKEN_ID:
                raise WorkloadError(f"{where}: {key}[{position}] is {token_id}; a token id is 0 to {_MAX_TOKEN_ID}")
    if request.abort_step is not None:
        _check_at_least(f"{where}: abort_step", request.abort_step, 0)
    # null is an answer, too: this request has no such token.
    eos_token_id = config.eos_token_id if request.eos_token_id is msgspec.UNSET else request.eos_token_id
    arrival_time = request.arrival_time
    if arrival_time is None:
        arrival_time = float(request.arrival_step * _ARRIVAL_TIME_PER_STEP + index)
    if not math.isfinite(arrival_time):
        raise WorkloadError(f"{where}: arrival_time must be finite, got {arrival_time}")
    try:
        sampling_params = SamplingParams(
            temperature=0.0,
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            stop_token_ids=tuple(request.stop_token_ids or ()),
            ignore_eos=request.ignore_eos,
            eos_token_id=eos_token_id,
        )
    except ValueError as error:
        raise WorkloadError(f"{where}: {error}") from None
    core_request = EngineCoreRequest(
        request.id, request.prompt_token_ids, sampling_params, arrival_time=arrival_time, priority=request.priority
    )
    return Arrival(request.arrival_step, core_request, request.abort_step, request.abort_phase)


def _check_at_least(name: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise WorkloadError(f"{name} must be at least {minimum}, got {value}")


def _check_keys(document: Any) -> None:
    """Name an unknown key with the known one that it may stand for; msgspec only says that it is unknown."""
    if not isinstance(document, dict):
        raise WorkloadError(f"a workload is a JSON object with 'config' and 'requests', got {_shown(document)}")
    # Keys beside these two are remarks; a misspelt one is missed as missing.
    places: list[tuple[str, Any, type[msgspec.Struct]]] = [("config.", document.get("config"), WorkloadConfig)]
    requests = document.get("requests")
    for index, request in enumerate(requests if isinstance(requests, list) else []):
        places.append((f"requests[{index}].", request, WorkloadRequest))
    for prefix, value, struct in places:
        known = list(struct.__struct_fields__)
        for key in value if isinstance(value, dict) else ():
            if key not in known:
                close = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
                raise WorkloadError(f"{prefix}{key} is not a key of a workload; {hint}")


def _place_of(message: str) -> list[str | int]:
    """Where msgspec found the mistake: ["requests", 3, "max_tokens"]. For a missing key, where it should be."""
    text, _, place = message.partition(" - at `$")
    path: list[str | int] = [int(index) if index else key for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", place)]
    missing = _MISSING.match(text)
    return [*path, missing[1]] if missing else path


def _explained(message: str, place: list[str | int], document: Any) -> str:
    """msgspec's message in a user's words: what stands there, and what should."""
    name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")
    annotation: Any = _WorkloadFile
    for step in place:
        if isinstance(step, str):
            annotation = typing.get_type_hints(annotation)[step]
        else:
            annotation = _without_none(annotation).__args__[0]
    if _MISSING.match(message):
        return f"{name} is missing; it must be {_in_words(annotation)}"
    value = document
    for step in place:
        value = value[step]
    return f"{name} must be {_in_words(annotation)}, got {_shown(value)}"


def _in_words(annotation: Any) -> str:
    """What a JSON value of a type is: "a whole number"."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return " or ".join(_in_words(kind) for kind in annotation.__args__ if kind is not msgspec.UnsetType)
    if typing.get_origin(annotation) is Literal:
        return " or ".join(f'"{value}"' for value in annotation.__args__)
    if typing.get_origin(annotation) is list:
        return "a list of whole numbers" if annotation.__args__[0] is int else "a list of objects"
    return _WORDS.get(annotation, "an object")


def _without_none(annotation: Any) -> Any:
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    return next(kind for kind in annotation.__args__ if kind is not type(None)) if is_union else annotation


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _line_of(message: str, raw: str) -> str:
    """The line of the file that one of our own messages is about; the first one if it names no place."""
    named = re.match(r"requests\[(\d+)\](?: \('.*?'\):)?[. ]?(\w*)", message)
    if named:
        path: list[str | int] = ["requests", int(named[1]), named[2]]
    else:
        key = re.split(r"\W", message.removeprefix("config."), maxsplit=1)[0]
        path = ["config", key] if message.startswith("config") or key in WorkloadConfig.__struct_fields__ else []
    return f" (line {line_of(raw, path)})"
