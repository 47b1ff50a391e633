"""Owns which settings a run can be planned again with, what values they take, and putting them into its settings."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from minivllm.config import CacheConfig, SchedulerConfig, VllmConfig

# Every block is an object of its own, even without a model: a mistyped number must not fill the memory.
_MAX_BLOCKS = 10_000_000
_MAX_NUMBER = 2**31 - 1


class KnobError(ValueError):
    """A setting that does not exist, or a value that it cannot have; the message says what would be right."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting of the scheduler or the cache.

    Attributes:
        name: Its name in vLLM.
        part: Where it stands: "scheduler_config" or "cache_config".
        allowed: The values that it takes, in words.
        read: Makes a value of a text; raises ValueError.
        reasons: The scheduler's reasons that are this setting at work.
    """

    name: str
    part: str
    allowed: str
    read: Callable[[str], Any]
    reasons: frozenset[str] = frozenset()


def _whole(minimum: int, maximum: int = _MAX_NUMBER) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text.replace("_", ""))
        if not minimum <= value <= maximum:
            raise ValueError(text)
        return value

    return read


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 <= value < 1.0:
        raise ValueError(text)
    return value


def _switch(text: str) -> bool:
    values = {"true": True, "false": False, "on": True, "off": False, "1": True, "0": False, "yes": True, "no": False}
    try:
        return values[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _policy(text: str) -> str:
    if text not in ("fcfs", "priority"):
        raise ValueError(text)
    return text


_SCHEDULER, _CACHE = "scheduler_config", "cache_config"
_MEMORY = frozenset({"no_free_blocks", "full_sequence_does_not_fit", "preempted", "preempted_this_step"})
_KNOBS = (
    Knob(
        "max_num_batched_tokens",
        _SCHEDULER,
        "a whole number, at least max_num_seqs",
        _whole(1),
        frozenset({"token_budget"}),
    ),
    Knob("max_num_seqs", _SCHEDULER, "a whole number from 1", _whole(1), frozenset({"max_num_seqs"})),
    Knob("num_gpu_blocks", _CACHE, f"a whole number, 2 to {_MAX_BLOCKS}", _whole(2, _MAX_BLOCKS), _MEMORY),
    Knob("block_size", _CACHE, "a whole number from 1", _whole(1), _MEMORY),
    Knob(
        "long_prefill_token_threshold",
        _SCHEDULER,
        "a whole number; 0 is no limit",
        _whole(0),
        frozenset({"long_prefill_threshold"}),
    ),
    Knob(
        "enable_chunked_prefill",
        _SCHEDULER,
        "true or false",
        _switch,
        frozenset({"chunked_prefill_off"}),
    ),
    Knob("enable_prefix_caching", _CACHE, "true or false", _switch),
    Knob("policy", _SCHEDULER, "fcfs or priority", _policy),
    Knob(
        "scheduler_reserve_full_isl",
        _SCHEDULER,
        "true or false",
        _switch,
        frozenset({"full_sequence_does_not_fit"}),
    ),
    Knob("watermark", _SCHEDULER, "a share of all blocks: 0 or more, below 1", _share, _MEMORY),
    Knob("async_scheduling", _SCHEDULER, "true or false", _switch),
)
KNOBS = {knob.name: knob for knob in _KNOBS}
# As the engine's arguments are called.
_ALSO = {"num_gpu_blocks_override": "num_gpu_blocks", "scheduling_policy": "policy"}


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Read settings as they are given on a command line, NAME=VALUE.

    Raises:
        KnobError: One is unknown, or named twice, or has a value that it cannot have.
    """
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        knob = _knob(name.strip())
        if not equals or not value.strip():
            raise KnobError(f"--set {text}: give it a value: {knob.name}=…, {knob.allowed}")
        if knob.name in settings:
            raise KnobError(f"--set {knob.name} is given twice; leave one out")
        try:
            settings[knob.name] = knob.read(value.strip())
        except ValueError:
            allowed = knob.allowed + (f", at most {_MAX_NUMBER}" if _is_beyond(value.strip(), knob) else "")
            raise KnobError(f"--set {text}: {knob.name} is {allowed}; it cannot be {value.strip()!r}") from None
    return settings


def _is_beyond(value: str, knob: Knob) -> bool:
    """Whether it is a whole number, and beyond a limit that the words for the others do not name."""
    is_number = value.replace("_", "").isdecimal() and "whole number" in knob.allowed
    return is_number and len(value) > 9 and str(_MAX_BLOCKS) not in knob.allowed


def _knob(name: str) -> Knob:
    plain = name.lstrip("-").replace("-", "_").lower()
    plain = _ALSO.get(plain, plain)
    if plain in KNOBS:
        return KNOBS[plain]
    close = difflib.get_close_matches(plain, KNOBS, 1)
    hint = f"did you mean {close[0]} ({KNOBS[close[0]].allowed})? There are" if close else "there are"
    raise KnobError(f"there is no setting {name!r}; {hint}: {', '.join(KNOBS)}")


def with_settings(config: VllmConfig, settings: Mapping[str, Any]) -> VllmConfig:
    """A run's settings with some of them changed.

    Raises:
        KnobError: They contradict each other.
    """
    parts: dict[str, dict[str, Any]] = {_SCHEDULER: {}, _CACHE: {}}
    for name, value in settings.items():
        parts[KNOBS[name].part][name] = value
    try:
        return msgspec.structs.replace(
            config,
            scheduler_config=_replaced(config.scheduler_config, parts[_SCHEDULER]),
            cache_config=_replaced(config.cache_config, parts[_CACHE]),
        )
    except ValueError as error:
        raise KnobError(f"--set {' '.join(f'{k}={v}' for k, v in settings.items())}: {error}") from None


def _replaced(part: Any, changes: dict[str, Any]) -> Any:
    # msgspec's own `replace` makes the object without its checks.
    return type(part)(**{**{f: getattr(part, f) for f in part.__struct_fields__}, **changes}) if changes else part


def old_values(config: VllmConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What these settings were."""
    parts: dict[str, SchedulerConfig | CacheConfig] = {_SCHEDULER: config.scheduler_config, _CACHE: config.cache_config}
    return {name: getattr(parts[KNOBS[name].part], name) for name in settings}
